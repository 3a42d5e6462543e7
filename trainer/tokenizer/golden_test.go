package tokenizer

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The golden files are the reference implementation's answers; golden.py in
// testdata made them and the small tokenizers beside them.

// trained are the tokenizers in testdata.
var trained = []string{"gpt2", "roberta", "modernbert", "gemma", "gemma-crossing", "llama3", "qwen2", "llama2", "metaspace", "wordpiece", "trained"}

// shared returns the path of a file in the data folder that the project's
// checkouts share. Without one it skips the test, or fails it where
// LINK_REQUIRE_SHARED is 1.
func shared(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		path := filepath.Join(dir, "shared", "data", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		up := filepath.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	if os.Getenv("LINK_REQUIRE_SHARED") == "1" {
		t.Fatalf("shared/data/%s is in no folder above this one, and LINK_REQUIRE_SHARED is 1", name)
	}
	t.Skipf("shared/data/%s is in no folder above this one", name)
	return ""
}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	path := filepath.Join("testdata", name+".json")
	if name == "bert-uncased" {
		path = shared(t, "bert-uncased-tokenizer")
	}
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// lines decodes a file of JSON values, one a line.
func lines[T any](t testing.TB, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []T
	for d := json.NewDecoder(bufio.NewReader(f)); d.More(); {
		var v T
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		list = append(list, v)
	}
	if len(list) == 0 {
		t.Fatalf("%s is empty", path)
	}
	return list
}

// reading is one text and what the reference makes of it.
type reading struct {
	Name, Text string
	IDs        []int32
	Decoded    string
}

func TestGolden(t *testing.T) {
	for _, name := range append(trained, "bert-uncased") {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			for _, want := range lines[reading](t, filepath.Join("testdata", name+".golden.jsonl")) {
				got := tok.Encode(nil, want.Text)
				if !slices.Equal(got, want.IDs) {
					t.Errorf("%s: Encode(%q) =\n%q, want\n%q", want.Name, want.Text, tok.spell(got), tok.spell(want.IDs))
				}
				if got := tok.Decode(want.IDs); got != want.Decoded {
					t.Errorf("%s: Decode(%q) = %q, want %q", want.Name, tok.spell(want.IDs), got, want.Decoded)
				}
			}
		})
	}
}

// spell returns tokens for a message.
func (t *Tokenizer) spell(ids []int32) []string {
	var s []string
	for _, id := range ids {
		token, _ := t.Token(id)
		s = append(s, token)
	}
	return s
}

// TestGoldenLanguages compares the ids of 3,785 paragraphs in 64 languages.
func TestGoldenLanguages(t *testing.T) {
	type paragraph struct{ Label, Text string }
	texts := make(map[string][]string)
	for _, p := range lines[paragraph](t, shared(t, "udhr-langid/paragraphs.jsonl")) {
		texts[p.Label] = append(texts[p.Label], p.Text)
	}
	for name, want := range lines[map[string]map[string]string](t, "testdata/udhr.golden.json")[0] {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			if len(want) != len(texts) {
				t.Fatalf("%d languages, want %d", len(texts), len(want))
			}
			for lang, sum := range want {
				h := sha256.New()
				for _, text := range texts[lang] {
					var b []byte
					for _, id := range append(tok.Encode(nil, text), -1) {
						b = binary.LittleEndian.AppendUint32(b, uint32(id))
					}
					h.Write(b)
				}
				if got := hex.EncodeToString(h.Sum(nil)); got != sum {
					t.Errorf("%s: the ids of %d paragraphs differ from the reference's", lang, len(texts[lang]))
				}
			}
		})
	}
}

// TestGoldenComponents checks normalizers and pre-tokenizers one by one.
func TestGoldenComponents(t *testing.T) {
	texts := lines[reading](t, "testdata/gpt2.golden.jsonl")
	type component struct {
		Name         string
		Normalizer   json.RawMessage
		PreTokenizer json.RawMessage `json:"pre_tokenizer"`
		Out          map[string]json.RawMessage
	}
	for _, c := range lines[component](t, "testdata/components.golden.jsonl") {
		t.Run(c.Name, func(t *testing.T) {
			o := &object{at: "it"}
			var apply func(string) any
			if c.Normalizer != nil {
				if err := json.Unmarshal(c.Normalizer, &o.members); err != nil {
					t.Fatal(err)
				}
				n := o.normalizer()
				apply = func(s string) any { return n(s) }
			} else {
				if err := json.Unmarshal(c.PreTokenizer, &o.members); err != nil {
					t.Fatal(err)
				}
				tok := &Tokenizer{splitters: o.splitters()}
				apply = func(s string) any {
					pieces := []string{}
					if s == "" { // an empty text has no words; the reference gives it one
						return []string{s}
					}
					for _, w := range tok.split(word{s, true}, tok.scratch()) {
						pieces = append(pieces, w.s)
					}
					return pieces
				}
			}
			if err := o.done(); err != nil {
				t.Fatal(err)
			}
			for _, text := range texts {
				if text.Text == "" {
					continue
				}
				got := apply(text.Text)
				var want any
				switch raw := c.Out[text.Name]; {
				case raw == nil && c.Normalizer != nil:
					want = text.Text
				case raw == nil:
					want = []string{text.Text}
				case c.Normalizer != nil:
					var s string
					if err := json.Unmarshal(raw, &s); err != nil {
						t.Fatal(err)
					}
					want = s
				default:
					list := []string{}
					if err := json.Unmarshal(raw, &list); err != nil {
						t.Fatal(err)
					}
					want = list
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s: of %q (-want +got):\n%s", text.Name, text.Text, d)
				}
			}
		})
	}
}

// TestClasses compares the character classes of BERT's components with the
// reference's over all code points.
func TestClasses(t *testing.T) {
	strip := bertNormalizer{strip: true}
	classes := map[string]func(rune) bool{
		"control":     isControl,
		"punctuation": isPunct,
		"chinese":     isChinese,
		"mark":        isMark,
		"nonspacing":  func(r rune) bool { return strip.normalize(string(r)) == "" },
	}
	type class struct {
		N      int
		SHA256 string
	}
	for name, want := range lines[map[string]class](t, "testdata/classes.golden.json")[0] {
		var b []byte
		for r := rune(1); r <= 0x10ffff; r++ {
			if (r < 0xd800 || r > 0xdfff) && classes[name](r) {
				b = binary.LittleEndian.AppendUint32(b, uint32(r))
			}
		}
		sum := sha256.Sum256(b)
		if got := (class{len(b) / 4, hex.EncodeToString(sum[:])}); got != want {
			t.Errorf("%s holds %d characters, want %d, or others", name, got.N, want.N)
		}
	}
}

// TestSpecial spells every special token of every tokenizer in text, in the
// ways that a text could, and finds none of their ids but the unknown one.
func TestSpecial(t *testing.T) {
	for _, name := range append(trained, "bert-uncased") {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			unk, hasUnk := tok.UNK()
			if len(tok.special) == 0 {
				t.Fatal("no special tokens")
			}
			for token := range tok.special {
				for _, text := range []string{token, " " + token, token + token, "a" + token + "b", "\n" + token + "\n", strings.ToUpper(token), "▁" + token} {
					for _, id := range tok.Encode(nil, text) {
						if tok.skip[id] && !(hasUnk && id == unk) {
							t.Errorf("Encode(%q) holds the special token %q", text, tok.tokens[id])
						}
					}
				}
			}
		})
	}
}
