package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

// TestTreeHash: the listing is what the comment of TreeHash says, spelt out here.
// '-' sorts before '.', '.' before '/', and upper case before lower.
func TestTreeHash(t *testing.T) {
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	files := []TreeFile{
		{"stage.json", one, 12},
		{"data/rows.jsonl", two, 9007199254740993},
		{"data.csv", one, 0},
		{"data-1.csv", one, 3},
		{"README", two, 4},
	}
	listing := two + " 4 README\n" +
		one + " 3 data-1.csv\n" +
		one + " 0 data.csv\n" +
		two + " 9007199254740993 data/rows.jsonl\n" +
		one + " 12 stage.json\n"
	sum := sha256.Sum256([]byte(listing))
	want := hex.EncodeToString(sum[:])
	if got := TreeHash(files); got != want {
		t.Errorf("TreeHash = %s, want %s", got, want)
	}
	files[0], files[4] = files[4], files[0]
	if got := TreeHash(files); got != want {
		t.Errorf("in another order TreeHash = %s, want %s", got, want)
	}
	if files[0].Path != "README" {
		t.Error("TreeHash sorted its argument")
	}
}

func TestCheckTree(t *testing.T) {
	sum := strings.Repeat("0", 64)
	for _, tt := range []struct {
		files []TreeFile
		want  string // the beginning of the error
	}{
		{[]TreeFile{{"a", sum, 0}, {"a.b/c", sum, 1}, {".hidden/..x/-", sum, 1}}, ""},
		{nil, "a tree has at least one file"},
		{[]TreeFile{{"", sum, 0}}, `"" is no path`},
		{[]TreeFile{{"/etc/passwd", sum, 0}}, `"/etc/passwd" is no path`},
		{[]TreeFile{{"a/../b", sum, 0}}, `"a/../b" is no path`},
		{[]TreeFile{{"./a", sum, 0}}, `"./a" is no path`},
		{[]TreeFile{{"a//b", sum, 0}}, `"a//b" is no path`},
		{[]TreeFile{{"a/", sum, 0}}, `"a/" is no path`},
		{[]TreeFile{{"a b", sum, 0}}, `"a b" is no path`},
		{[]TreeFile{{"a\nb", sum, 0}}, `"a\nb" is no path`},
		{[]TreeFile{{"a\\b", sum, 0}}, `"a\\b" is no path`},
		{[]TreeFile{{"a\x00", sum, 0}}, `"a\x00" is no path`},
		{[]TreeFile{{"é", sum, 0}}, `"é" is no path`},
		{[]TreeFile{{strings.Repeat("a", 256), sum, 0}}, `"aaa`},
		{[]TreeFile{{strings.Repeat("a/", 512) + "a", sum, 0}}, `"a/a`},
		{[]TreeFile{{"a", sum[1:], 0}}, "a: "},
		{[]TreeFile{{"a", strings.Repeat("A", 64), 0}}, "a: "},
		{[]TreeFile{{"a", sum, -1}}, "a: -1 is no size"},
		{[]TreeFile{{"a", sum, 0}, {"a", sum, 0}}, "a stands twice"},
		{[]TreeFile{{"a/b/c", sum, 0}, {"a/b", sum, 0}}, "a/b is a file, so a/b/c cannot be in it"},
	} {
		err := CheckTree(tt.files)
		if got := message(err); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("CheckTree(%.60v): %s, want %s", tt.files, got, tt.want)
		}
		if hash := TreeHash(tt.files); (hash == "") != (err != nil) {
			t.Errorf("TreeHash(%.60v) = %q, and CheckTree says %v", tt.files, hash, err)
		}
	}
}
