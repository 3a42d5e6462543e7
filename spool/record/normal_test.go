package record

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/hanzoai/link/spool/canon"
)

func TestHIP1334Item2(t *testing.T) {
	var v struct {
		Vectors []struct {
			Input  json.RawMessage `json:"payload_input"`
			Leaves []string        `json:"leaves_normalized"`
			Hash   canon.Hash
		} `json:"contamination_hash"`
	}
	readVector(t, "hip1334-vectors.json", &v)
	if len(v.Vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, want := range v.Vectors {
		hash, matches := ContaminationHash(canon.Raw(want.Input))
		if hash != want.Hash || !matches {
			t.Errorf("ContaminationHash(%s) = %s, %t; want %s", want.Input, hash, matches, want.Hash)
		}
		leaves, err := Leaves(canon.Raw(want.Input))
		if err != nil || want.Leaves != nil && strings.Join(leaves, "|") != strings.Join(want.Leaves, "|") {
			t.Errorf("Leaves(%s) = %q, %v; want %q", want.Input, leaves, err, want.Leaves)
		}
	}
}

func TestContaminationHashOfEmptyLeaves(t *testing.T) {
	tests := []struct {
		input   string
		matches bool
	}{
		{`{"x":1,"y":[2,null,true]}`, false}, // purely numeric: would match every other
		{`{"text":"..."}`, false},
		{`"a"`, true},
		{`{"a":"","b":"word"}`, true},
		{`{"a":`, false}, // not JSON
	}
	for _, tt := range tests {
		if _, matches := ContaminationHash(canon.Raw(tt.input)); matches != tt.matches {
			t.Errorf("ContaminationHash(%s) takes part: %t, want %t", tt.input, matches, tt.matches)
		}
	}
	// An empty leaf keeps its place, so that these two differ.
	a, _ := ContaminationHash(canon.Raw(`["","a"]`))
	b, _ := ContaminationHash(canon.Raw(`["a",""]`))
	if a == b {
		t.Error("empty leaves do not keep their place")
	}
	// Names of members do not count; their order does.
	c, _ := ContaminationHash(canon.Raw(`{"z":"a","b":""}`))
	if c != a {
		t.Error("leaves are not in canonical order")
	}
}

func TestNormal(t *testing.T) {
	tests := []struct{ in, want string }{
		{"Hello,  World!", "hello world"},
		{"  a\u00a0b\t", "a b"},
		{"", ""},
		{"—", ""},
		{"ΟΔΟΣ", "οδος"},           // final sigma
		{"ΣΟΦΟΣ ΣΑΣ", "σοφος σας"}, // each word its own
		{"ΑΣ'", "ας"},              // past what case ignores
		{"ΑΣ'Α", "ασ α"},           // and not before a letter
		{"Σ", "σ"},                 // no letter before it
		{"İstanbul", "i stanbul"},  // i and U+0307, which is not alphanumeric
		{"हिन्दी", "हिन दी"},       // vowel signs are alphabetic, the virama is not
		{"①", "①"},                 // numeric
		{"Ⓐ", "ⓐ"},                 // Other_Alphabetic, and cased
		{"été", "été"},
		{"e\u0301te\u0301", "e te"}, // nothing is composed
		{"ẞ", "ß"},
		{"Ǆ", "ǆ"},
		{"\u0363", "\u0363"},         // alphabetic, though a mark
		{"\U0001E6C0", "\U0001E6C0"}, // Tai Yo, new in Unicode 17
		{"a\x1fb", "a b"},            // the separator of leaves
	}
	for _, tt := range tests {
		if got := Normal(tt.in); got != tt.want {
			t.Errorf("Normal(%q) = %q, want %q", tt.in, got, tt.want)
		}
		if got := Normal(Normal(tt.in)); got != Normal(tt.in) {
			t.Errorf("Normal(%q) is not a normal form: its own is %q", Normal(tt.in), got)
		}
	}
}

// TestUnicodeTables checks counts that were taken from Rust 1.95 by hand, and that
// the tables agree with Go's where Go's older ones know a letter.
func TestUnicodeTables(t *testing.T) {
	if UnicodeVersion != "17.0.0" {
		t.Errorf("the tables are of Unicode %s; a change of version changes hashes", UnicodeVersion)
	}
	n := 0
	for r := range rune(unicode.MaxRune + 1) {
		if unicode.Is(alphanumeric, r) {
			n++
		} else if unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.Is(unicode.Other_Alphabetic, r) {
			t.Errorf("%U is alphanumeric to Go %s, not here", r, unicode.Version)
		}
		if got, want := lowerRune(r), unicode.ToLower(r); got != want && want != r && r != 'İ' {
			t.Errorf("%U in lower case is %U, and to Go %s %U", r, got, unicode.Version, want)
		}
	}
	if n != 149_106 {
		t.Errorf("%d alphanumeric code points, want 149106", n)
	}
}

func FuzzNormal(f *testing.F) {
	f.Add("ΟΔΟΣ İ ①")
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		n := Normal(s)
		if strings.HasPrefix(n, " ") || strings.HasSuffix(n, " ") || strings.Contains(n, "  ") || strings.Contains(n, leafSeparator) {
			t.Errorf("Normal(%q) = %q", s, n)
		}
	})
}
