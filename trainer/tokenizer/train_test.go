package tokenizer

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

// goldenTexts are the texts of the golden files: what the trained vocabulary in
// testdata was learned from.
func goldenTexts(t testing.TB) []string {
	var texts []string
	for _, r := range lines[reading](t, "testdata/gpt2.golden.jsonl") {
		texts = append(texts, r.Text)
	}
	return texts
}

// TestTrainByteLevel pins a vocabulary to its bytes, whatever the order of the
// texts. The reference reads the same file: its ids are in TestGolden.
func TestTrainByteLevel(t *testing.T) {
	want, err := os.ReadFile("testdata/trained.json")
	if err != nil {
		t.Fatal(err)
	}
	texts := goldenTexts(t)
	for range 2 {
		got, err := TrainByteLevel(slices.Values(texts), 400)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the trained vocabulary is not testdata/trained.json")
		}
		slices.Reverse(texts)
	}
}

func TestTrainByteLevelSizes(t *testing.T) {
	tests := []struct {
		name   string
		texts  []string
		vocab  int
		want   int // tokens
		tokens int // of the first text
	}{
		{"no text", nil, 300, 261, 0},
		{"nothing comes twice", []string{"abc"}, 300, 261, 3},
		{"no room", []string{"aa aa aa"}, 261, 261, 8},
		{"one merge", []string{"ab ab"}, 262, 262, 3},
		{"all merges", []string{"abab abab"}, 300, 263, 3},
		{"a run merges from the left", []string{"aaaaa", "aaaaa"}, 262, 262, 3},
		{"words that share parts", []string{"abc abc bc bc bc abx abx abx abc"}, 400, 267, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src, err := TrainByteLevel(slices.Values(tt.texts), tt.vocab)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Parse(src)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.VocabSize(); got != tt.want {
				t.Errorf("VocabSize = %d, want %d: %q", got, tt.want, tok.tokens[261:])
			}
			if tt.texts == nil {
				return
			}
			if got := tok.Encode(nil, tt.texts[0]); len(got) != tt.tokens {
				t.Errorf("Encode(%q) = %q, want %d tokens", tt.texts[0], tok.spell(got), tt.tokens)
			}
		})
	}
	for _, vocab := range []int{-1, 0, 260, maxID + 1} {
		if _, err := TrainByteLevel(slices.Values([]string{"a"}), vocab); err == nil || !strings.Contains(err.Error(), "vocabulary") {
			t.Errorf("a vocabulary of %d: %v", vocab, err)
		}
	}
}

// FuzzTrained checks that a trained vocabulary loses nothing: what comes back is
// the text's normal form, of any text at all.
func FuzzTrained(f *testing.F) {
	src, err := os.ReadFile("testdata/trained.json")
	if err != nil {
		f.Fatal(err)
	}
	tok, err := Parse(src)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range goldenTexts(f) {
		f.Add(text)
	}
	f.Add("\xff\xfe broken \xc3")
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(nil, text)
		want := norm.NFC.String(strings.ToValidUTF8(text, "\ufffd"))
		if got := tok.Decode(ids); got != want {
			t.Errorf("Decode(Encode(%q)) = %q, want %q", text, got, want)
		}
		for _, id := range ids {
			if tok.skip[id] {
				t.Errorf("Encode(%q) holds the special token %q", text, tok.tokens[id])
			}
		}
	})
}
