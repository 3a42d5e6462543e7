package canon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

const vectors = "../../test/vectors/"

func readVector(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(vectors + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestHIP1334Item1(t *testing.T) {
	var v struct {
		CanonicalJSON struct {
			Input     string `json:"input_text"`
			Canonical string
			Hash      Hash
		} `json:"canonical_json"`
	}
	readVector(t, "hip1334-vectors.json", &v)
	want := v.CanonicalJSON
	got, err := Canonicalize([]byte(want.Input))
	if err != nil || string(got) != want.Canonical || HashOf(got) != want.Hash {
		t.Errorf("Canonicalize(%s) = %s, %v, hash %s; want %s, hash %s", want.Input, got, err, HashOf(got), want.Canonical, want.Hash)
	}
}

type canonVector struct {
	Input   string
	Canon   string
	Hash    Hash
	Refused bool
}

func canonVectors(t testing.TB) []canonVector {
	t.Helper()
	f, err := os.Open(vectors + "canon-vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []canonVector
	for line, err := range Lines(f, 1<<20) {
		if err != nil {
			t.Fatal(err)
		}
		var v canonVector
		if err := json.Unmarshal(line.Bytes, &v); err != nil {
			t.Fatalf("line %d: %v", line.N, err)
		}
		all = append(all, v)
	}
	return all
}

func TestVectors(t *testing.T) {
	for _, v := range canonVectors(t) {
		got, err := Canonicalize([]byte(v.Input))
		if v.Refused {
			if err == nil {
				t.Errorf("Canonicalize(%s) = %s, want it refused", v.Input, got)
			}
			continue
		}
		if err != nil || string(got) != v.Canon || HashOf(got) != v.Hash {
			t.Errorf("Canonicalize(%s) = %s, %v, hash %s; want %s, hash %s", v.Input, got, err, HashOf(got), v.Canon, v.Hash)
		}
	}
}

// TestNumbersAreNotRFC8785 takes the numbers of RFC 8785 appendix B: the same
// digits here, and no exponent.
func TestNumbersAreNotRFC8785(t *testing.T) {
	var v struct{ Cases [][2]string }
	readVector(t, "rfc8785-numbers.json", &v)
	for _, c := range v.Cases {
		bits, err := strconv.ParseUint(c[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		f := math.Float64frombits(bits)
		got, err := Marshal(f)
		if err != nil || strings.ContainsAny(string(got), "eE") {
			t.Errorf("Marshal(%v) = %s, %v; want no exponent", f, got, err)
		}
		if back, _ := strconv.ParseFloat(string(got), 64); back != f {
			t.Errorf("Marshal(%v) = %s, which reads as %v", f, got, back)
		}
		// Integers within 64 bits stand as written, so they are left out here.
		if strings.ContainsAny(c[1], ".e") {
			if fromJCS, err := Canonicalize([]byte(c[1])); err != nil || !bytes.Equal(fromJCS, got) {
				t.Errorf("Canonicalize(%s) = %s, %v; want %s", c[1], fromJCS, err, got)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	tests := []struct{ in, want string }{
		// A tie has two shortest spellings. Both are kept; the long one is rounded to even.
		{"0.7832717895507813", "0.7832717895507813"},
		{"0.7832717895507812", "0.7832717895507812"},
		{"0.78327178955078125", "0.7832717895507812"},
		{"-849.7888793945313", "-849.7888793945313"},
		{"7832717895507813e-16", "0.7832717895507812"}, // not positional, so not kept
		// As long as the shortest, but with more digits.
		{"18446744073709551616", "18446744073709552000"},
		{"99999999999999991611392", "100000000000000000000000"},
		{"0.10", "0.1"},
		{"10.0", "10"},
		{"1e2", "100"},
		{"-0", "0"},
		{"-0.0e7", "0"},
		{"-9223372036854775808", "-9223372036854775808"},
		{"-9223372036854775809", "-9223372036854776000"},
		{"1e-400", "0"}, // underflow is a value, overflow is not
	}
	for _, tt := range tests {
		got, err := Canonicalize([]byte(tt.in))
		if err != nil || string(got) != tt.want {
			t.Errorf("Canonicalize(%s) = %s, %v; want %s", tt.in, got, err, tt.want)
		}
	}
}

// TestEscapes writes every Unicode scalar and checks that exactly 34 are escaped.
func TestEscapes(t *testing.T) {
	escapes := map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`}
	for r := range rune(0x20) {
		if escapes[r] == "" {
			escapes[r] = fmt.Sprintf(`\u%04x`, r)
		}
	}
	if len(escapes) != 34 {
		t.Fatalf("%d escapes, want 34", len(escapes))
	}
	for r := range rune(utf8.MaxRune + 1) {
		if !utf8.ValidRune(r) {
			continue
		}
		want := escapes[r]
		if want == "" {
			want = string(r)
		}
		if got := string(appendString(nil, string(r))); got != `"`+want+`"` {
			t.Fatalf("appendString(%U) = %s, want %q", r, got, want)
		}
	}
	// However it was escaped in the source.
	got, err := Canonicalize([]byte(`"\u0041\/\u00e9\ud83d\ude00\u000a\u001F\u2028"`))
	if want := "\"A/é😀\\n\\u001f\u2028\""; err != nil || string(got) != want {
		t.Errorf("Canonicalize = %s, %v; want %s", got, err, want)
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		name, in, pointer string
	}{
		{"nothing", "", ""},
		{"two values", "1 2", ""},
		{"garbage after", "{} x", ""},
		{"byte order mark", "\ufeff1", ""},
		{"invalid UTF-8", "[\"\xff\"]", "/0"},
		{"lone high surrogate", `{"a":"\ud800"}`, "/a"},
		{"surrogates in the wrong order", `"\ude00\ud83d"`, ""},
		{"control character", "[1,\"\n\"]", "/1"},
		{"duplicate member", `{"a":{"x":1,"\u0078":2}}`, "/a/x"},
		{"number overflows", `{"a":[0,-1e400]}`, "/a/1"},
		{"leading zero", "[01]", ""},
		{"plus sign", "[+1]", "/0"},
		{"NaN", "NaN", ""},
		{"hexadecimal", "0x10", ""},
		{"trailing comma", `{"a":1,}`, ""},
		{"member name is not a string", `{1:2}`, ""},
		{"unclosed", `{"a":[`, "/a"},
		{"wrong bracket", `[}`, "/0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Canonicalize([]byte(tt.in))
			var at *Error
			if !errors.As(err, &at) {
				t.Fatalf("Canonicalize(%q) = %s, %v; want an *Error", tt.in, got, err)
			}
			if at.Pointer != tt.pointer {
				t.Errorf("Canonicalize(%q): %v; is at %q, want %q", tt.in, err, at.Pointer, tt.pointer)
			}
		})
	}
}

// TestLoneSurrogate shows no more of the text than the escape that is wrong.
func TestLoneSurrogate(t *testing.T) {
	for _, in := range []string{`{"a":"\ud800","b":1}`, "{\"a\":\"\\ud800\",\n\"b\":1}", `{"a":"\ud800"}`, `{"a":"\ud800\u0041"}`} {
		_, err := Canonicalize([]byte(in))
		if want := "/a: lone surrogate `\\ud800` in string (byte 6)"; err == nil || err.Error() != want {
			t.Errorf("Canonicalize(%q): %v, want %s", in, err, want)
		}
	}
}

func TestDepth(t *testing.T) {
	arrays := func(n int) []byte {
		return []byte(strings.Repeat("[", n) + strings.Repeat("]", n))
	}
	objects := func(n int) []byte {
		return []byte(strings.Repeat(`{"":`, n) + "0" + strings.Repeat("}", n))
	}
	type holder struct{ X Raw }
	for _, make := range []func(int) []byte{arrays, objects} {
		for n, ok := range map[int]bool{MaxDepth: true, MaxDepth + 1: false} {
			if _, err := Canonicalize(make(n)); (err == nil) != ok {
				t.Errorf("Canonicalize of depth %d: %v", n, err)
			}
			var r Raw
			if err := Unmarshal(make(n), &r); (err == nil) != ok {
				t.Errorf("Unmarshal of depth %d: %v", n, err)
			}
			inside := make(n - 1)
			if _, err := Marshal(holder{inside}); (err == nil) != ok {
				t.Errorf("Marshal of depth %d: %v", n, err)
			}
			var h holder
			if err := Unmarshal([]byte(`{"X":`+string(inside)+`}`), &h); (err == nil) != ok {
				t.Errorf("Unmarshal of depth %d into a field: %v", n, err)
			}
		}
	}
}

// TestAmplification canonicalizes megabytes of five-byte numbers of 309 digits.
func TestAmplification(t *testing.T) {
	src := []byte("[" + strings.Repeat("1e308,", 400_000) + "0]")
	if out, err := Canonicalize(src); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Canonicalize of %d bytes = %d bytes, %v; want ErrTooLarge", len(src), len(out), err)
	}
	if out, err := Canonicalize(src[:6*1000+1]); err == nil {
		t.Errorf("Canonicalize of an unclosed array = %d bytes", len(out))
	}
	var r Raw
	if allocated := testing.AllocsPerRun(1, func() { Unmarshal(src, &r) }); allocated > 20 {
		t.Errorf("Unmarshal into a Raw made %v allocations", allocated)
	}
	if out, err := Marshal(Raw(src)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Marshal of a Raw of %d bytes = %d bytes, %v; want ErrTooLarge", len(src), len(out), err)
	}
	small := []byte("[" + strings.Repeat("1e308,", 1000) + "0]")
	if _, err := Canonicalize(small); err != nil {
		t.Errorf("Canonicalize of a canonical form under 1 MiB: %v", err)
	}
}

func TestWithout(t *testing.T) {
	got, err := Without([]byte(`{"b":{"id":1},"id":"x","a":2}`), "id")
	if want := `{"a":2,"b":{"id":1}}`; err != nil || string(got) != want {
		t.Errorf("Without = %s, %v; want %s", got, err, want)
	}
	got, err = Without([]byte(`{"a":2}`), "id")
	if err != nil || string(got) != `{"a":2}` {
		t.Errorf("Without a member that is not there = %s, %v", got, err)
	}
	if got, err := Without([]byte(`[1]`), "id"); err == nil {
		t.Errorf("Without of an array = %s", got)
	}
	if got, err := Without([]byte(`{"id":1,"id":2}`), "id"); err == nil {
		t.Errorf("Without of a duplicate = %s", got)
	}
}

func TestForms(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for h, want := range map[Hash]bool{
		Hash("sha256:" + hex):                  true,
		Hash(hex):                              false,
		Hash("sha256:" + strings.ToUpper(hex)): false,
		Hash("sha256:" + hex[1:]):              false,
		"":                                     false,
	} {
		if got := h.Valid(); got != want {
			t.Errorf("Hash(%q).Valid() = %t", h, got)
		}
	}
	if h := HashOf([]byte("{}")); h.Hex() != string(Sum([]byte("{}"))) || !Sum(nil).Valid() {
		t.Errorf("HashOf and Sum disagree: %s", h)
	}
}

func TestMembers(t *testing.T) {
	got, err := Members(Raw(`{"b": [1, 2],"a\u0062":{"x":1}, "":null}`))
	if err != nil || len(got) != 3 || got[0].Name != "b" || string(got[0].Value) != "[1, 2]" || got[1].Name != "ab" || got[2].Name != "" {
		t.Errorf("Members = %q, %v", got, err)
	}
	for _, in := range []string{"[]", "null", `{"a":1,"a":2}`, `{"a":1} 2`, ""} {
		if got, err := Members(Raw(in)); err == nil {
			t.Errorf("Members(%s) = %q", in, got)
		}
	}
}

func TestTag(t *testing.T) {
	if got, err := Tag(Raw(`{"a":{"kind":"no"},"kind":"hold"}`), "kind"); got != "hold" || err != nil {
		t.Errorf("Tag = %q, %v", got, err)
	}
	for in, want := range map[string]string{
		`{"a":1}`:    "/kind: member is missing",
		`{"kind":1}`: "/kind: a number where a string is required",
		`[]`:         "an array where an object is required",
	} {
		if _, err := Tag(Raw(in), "kind"); err == nil || err.Error() != want {
			t.Errorf("Tag(%s): %v, want %s", in, err, want)
		}
	}
}

func TestLines(t *testing.T) {
	var got []string
	for line, err := range Lines(strings.NewReader("a\n\nbcd\r\nlast"), 4) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d:%s", line.N, line.Bytes))
	}
	if want := []string{"1:a", "2:", "3:bcd\r", "4:last"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Lines = %q, want %q", got, want)
	}
	var last error
	for _, err := range Lines(strings.NewReader("abcd\nabcde\n"), 4) {
		last = err
	}
	if last == nil || last.Error() != "line 2: longer than 4 bytes" {
		t.Errorf("a long line: %v", last)
	}
	// What a failing read leaves of a line is not a line.
	broken := errors.New("disk")
	n := 0
	for line, err := range Lines(io.MultiReader(strings.NewReader("a\n12"), iotest.ErrReader(broken)), 4) {
		if n++; n == 2 && (!errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "line 2: ") || line.Bytes != nil) {
			t.Errorf("a failing read gave %q, %v", line.Bytes, err)
		}
	}
	if n != 2 {
		t.Errorf("%d lines and errors, want one each", n)
	}
}

func TestStrings(t *testing.T) {
	got, err := Strings(Raw(`{"b":["x",{"name":"y"},1,""],"a":"A"}`))
	if want := []string{"A", "x", "y", ""}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Strings = %q, %v; want %q", got, err, want)
	}
	if got, err := Strings(Raw(`["x"`)); err == nil {
		t.Errorf("Strings of what is not JSON = %q", got)
	}
}
