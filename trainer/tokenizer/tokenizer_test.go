package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// file returns a tokenizer.json of a small WordPiece or, with BPE's members, BPE
// model. Members given by name replace the usual ones.
func file(members ...string) string {
	m := map[string]string{
		"added_tokens":   `[{"id":0,"content":"[UNK]","special":true},{"id":1,"content":"[CLS]","special":true},{"id":2,"content":"[SEP]","special":true}]`,
		"normalizer":     `null`,
		"pre_tokenizer":  `{"type":"WhitespaceSplit"}`,
		"post_processor": `null`,
		"decoder":        `null`,
		"model":          `{"type":"WordPiece","unk_token":"[UNK]","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"##b":4,"ab":5,"[CLS":6}}`,
	}
	for i := 0; i < len(members); i += 2 {
		m[members[i]] = members[i+1]
	}
	var list []string
	for name, v := range m {
		list = append(list, fmt.Sprintf("%q:%s", name, v))
	}
	return "{" + strings.Join(list, ",") + "}"
}

const smallBPE = `{"type":"BPE","unk_token":"[UNK]","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"b":4,"ab":5,"[":6},"merges":["a b"]%s}`

func bpeWith(members string) string { return fmt.Sprintf(smallBPE, members) }

// TestParseRefuses has one row a component, member or value that is not known.
// Every error says what and where.
func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name string
		src  string
		want []string
	}{
		{"nothing", "", []string{"JSON"}},
		{"null", "null", []string{"null"}},
		{"a list", "[]", nil},
		{"not UTF-8", file("normalizer", "\"\xff\""), []string{"UTF-8"}},
		{"unknown top member", file("postprocessor", `{}`), []string{`"postprocessor"`}},

		{"no model", `{}`, []string{"model is missing"}},
		{"no vocabulary", file("model", `{"type":"WordPiece"}`), []string{"model", "vocab is missing"}},
		{"Unigram", file("model", `{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0]]}`), []string{"model", `"Unigram" is not supported`}},
		{"Unigram without a vocabulary", file("model", `{"type":"Unigram"}`), []string{"model", `"Unigram" is not supported`}},
		{"WordLevel", file("model", `{"type":"WordLevel","unk_token":"[UNK]","vocab":{"[UNK]":0}}`), []string{"model", `"WordLevel" is not supported`}},
		{"model without a type", file("model", `{"vocab":{"[UNK]":0}}`), []string{"model", "no type"}},
		{"unknown member of a model", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0},"mode":1}`), []string{"model", `"mode"`}},
		{"negative id", file("model", `{"type":"WordPiece","vocab":{"[UNK]":-1}}`), []string{"vocab", `"[UNK]"`, "-1"}},
		{"huge id", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0,"x":2000000000}}`), []string{"vocab", `"x"`, "2000000000"}},
		{"fractional id", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0.5}}`), []string{"model", "vocab"}},
		{"one id for two", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0,"x":7,"y":7}}`), []string{"id 7", `"x"`, `"y"`}},
		{"empty token", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0,"":7}}`), []string{"empty token"}},
		{"unknown token absent", file("model", `{"type":"WordPiece","unk_token":"<u>","vocab":{"[UNK]":0}}`), []string{"model", "unk_token", `"<u>"`}},
		{"negative bound", file("model", `{"type":"WordPiece","vocab":{"[UNK]":0},"max_input_chars_per_word":-1}`), []string{"max_input_chars_per_word"}},
		{"dropout", file("model", bpeWith(`,"dropout":0.1`)), []string{"model", "dropout 0.1"}},
		{"continuing prefix", file("model", bpeWith(`,"continuing_subword_prefix":"##"`)), []string{"continuing_subword_prefix"}},
		{"end of word", file("model", bpeWith(`,"end_of_word_suffix":"</w>"`)), []string{"end_of_word_suffix", "</w>"}},
		{"no merges", file("model", `{"type":"BPE","vocab":{"a":3}}`), []string{"merges are missing"}},
		{"merge of a token that is not there", file("model", `{"type":"BPE","vocab":{"a":3,"b":4},"merges":[["a","b"]]}`), []string{"model: merges/0", `"a"`, `"b"`}},
		{"merge of three", file("model", `{"type":"BPE","vocab":{"a":3},"merges":["a b c"]}`), []string{"merges/0", "a b c"}},
		{"merge list of three", file("model", `{"type":"BPE","vocab":{"a":3},"merges":[["a","b","c"]]}`), []string{"merges/0", "found 3"}},
		{"merges of numbers", file("model", `{"type":"BPE","vocab":{"a":3},"merges":[1]}`), []string{"merges", "pairs"}},

		{"Precompiled", file("normalizer", `{"type":"Precompiled","precompiled_charsmap":"AA=="}`), []string{"normalizer", `"Precompiled" is not supported`}},
		{"Nmt in a sequence", file("normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}`), []string{"normalizer/normalizers/1", `"Nmt" is not supported`}},
		{"normalizer without a type", file("normalizer", `{}`), []string{"normalizer", "type is missing"}},
		{"normalizer of another kind", file("normalizer", `"NFC"`), []string{"normalizer", "want an object"}},
		{"unknown member of a normalizer", file("normalizer", `{"type":"NFC","form":"x"}`), []string{"normalizer", `"form"`}},
		{"a flag that is a number", file("normalizer", `{"type":"BertNormalizer","lowercase":1}`), []string{"normalizer", "lowercase", "true or false"}},
		{"Replace without a pattern", file("normalizer", `{"type":"Replace","content":"x"}`), []string{"normalizer", "pattern is missing"}},
		{"Replace of nothing", file("normalizer", `{"type":"Replace","pattern":{"String":""},"content":"x"}`), []string{"normalizer/pattern", "empty"}},

		{"UnicodeScripts", file("pre_tokenizer", `{"type":"UnicodeScripts"}`), []string{"pre_tokenizer", `"UnicodeScripts" is not supported`}},
		{"unknown in a sequence", file("pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Wordle"}]}`), []string{"pre_tokenizer/pretokenizers/0", `"Wordle"`}},
		{"unknown behavior", file("pre_tokenizer", `{"type":"Split","pattern":{"String":" "},"behavior":"Glued"}`), []string{"pre_tokenizer", `"Glued"`}},
		{"no behavior", file("pre_tokenizer", `{"type":"Split","pattern":{"String":" "}}`), []string{"pre_tokenizer", "behavior"}},
		{"unknown scheme", file("pre_tokenizer", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"last"}`), []string{"pre_tokenizer", `"last"`}},
		{"long replacement", file("pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`), []string{"replacement", "one character"}},
		{"look-ahead", file("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"a(?=b)"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern", "a(?=b)", "not supported"}},
		{"Unicode space", file("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern", `\s`}},
		{"line anchor", file("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"^a"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern", "^"}},
		{"expression that matches nothing", file("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"a*"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern", "a*"}},
		{"broken expression", file("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern", "(a"}},
		{"pattern of another kind", file("pre_tokenizer", `{"type":"Split","pattern":{"Glob":"*"},"behavior":"Isolated"}`), []string{"pre_tokenizer/pattern"}},

		{"unknown post-processor", file("post_processor", `{"type":"Frame"}`), []string{"post_processor", `"Frame"`}},
		{"template of another kind", file("post_processor", `{"type":"TemplateProcessing","single":[{"Token":{}}],"pair":[],"special_tokens":{}}`), []string{"post_processor/single/0"}},
		{"BertProcessing without ids", file("post_processor", `{"type":"BertProcessing","sep":"[SEP]","cls":["[CLS]",1]}`), []string{"post_processor", "sep"}},
		{"unknown decoder", file("decoder", `{"type":"CTC"}`), []string{"decoder", `"CTC" is not supported`}},
		{"unknown decoder in a sequence", file("decoder", `{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"BPEDecoder","suffix":"</w>"}]}`), []string{"decoder/decoders/1", "BPEDecoder"}},

		{"added token without an id", file("added_tokens", `[{"content":"x"}]`), []string{"added_tokens/0"}},
		{"added token without content", file("added_tokens", `[{"id":9,"content":""}]`), []string{"added_tokens/0", "empty"}},
		{"added token with another id", file("added_tokens", `[{"id":9,"content":"a"}]`), []string{"added_tokens/0", `"a"`, "9", "3"}},
		{"added token on another's id", file("added_tokens", `[{"id":3,"content":"z"}]`), []string{"added_tokens/0", `"a"`, `"z"`}},
		{"added token with an unknown member", file("added_tokens", `[{"id":9,"content":"z","trim":true}]`), []string{"added_tokens/0", `"trim"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.src))
			if err == nil {
				t.Fatal("Parse succeeded")
			}
			for _, want := range append(tt.want, "tokenizer: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Parse = %v; want it to say %q", err, want)
				}
			}
		})
	}
}

func parseFile(t *testing.T, members ...string) *Tokenizer {
	t.Helper()
	tok, err := Parse([]byte(file(members...)))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestEncode holds the rules that the golden files cannot show.
func TestEncode(t *testing.T) {
	oneWord := []string{"pre_tokenizer", "null"}
	tests := []struct {
		name    string
		members []string
		text    string
		want    []int32
	}{
		// A whole word that spells a special token: the reference gives its id.
		{"special token as a word", nil, "[CLS] ab", []int32{0, 5}},
		{"unknown token as a word", nil, "[UNK]", []int32{0}},
		{"start of a special token", nil, "[CLS", []int32{6}},
		{"special token of one character", append([]string{"model", bpeWith(""), "added_tokens", `[{"id":6,"content":"[","special":true}]`}, oneWord...), "a[b", []int32{3, 0, 4}},
		{"merge to a special token", append([]string{"model", bpeWith(""), "added_tokens", `[{"id":5,"content":"ab","special":true}]`}, oneWord...), "abab", []int32{3, 4, 3, 4}},
		{"whole word that is a special token", append([]string{"model", bpeWith(`,"ignore_merges":true`), "added_tokens", `[{"id":5,"content":"ab","special":true}]`}, oneWord...), "ab", []int32{3, 4}},
		{"special by its role alone", []string{"added_tokens", "null",
			"post_processor", `{"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]}`}, "[CLS] [SEP] a", []int32{0, 0, 3}},

		{"unknown characters apart", append([]string{"model", bpeWith("")}, oneWord...), "xya", []int32{0, 0, 3}},
		{"unknown characters fused", append([]string{"model", bpeWith(`,"fuse_unk":true`)}, oneWord...), "xyaz", []int32{0, 3, 0}},
		{"some bytes", append([]string{"model", `{"type":"BPE","unk_token":"[UNK]","byte_fallback":true,"vocab":{"[UNK]":0,"a":3,"<0xC3>":4,"<0xA9>":5},"merges":[]}`}, oneWord...), "aéaèa", []int32{3, 4, 5, 3, 0, 3}},
		{"broken UTF-8", append([]string{"model", bpeWith("")}, oneWord...), "a\xff\xfeb", []int32{3, 0, 4}},
		{"BPE without a type", append([]string{"model", strings.Replace(bpeWith(""), `"type":"BPE",`, "", 1)}, oneWord...), "ab", []int32{5}},

		{"added token", []string{"added_tokens", `[{"id":9,"content":"<x>"}]`}, "ab<x>ab", []int32{5, 9, 5}},
		{"longest added token", []string{"added_tokens", `[{"id":9,"content":"--"},{"id":10,"content":"---"}]`}, "-----", []int32{10, 9}},
		{"added token takes spaces", []string{"added_tokens", `[{"id":9,"content":"<x>","lstrip":true,"rstrip":true}]`, "pre_tokenizer", `{"type":"Split","pattern":{"String":" "},"behavior":"Isolated"}`}, "ab <x> ab", []int32{5, 9, 5}},
		{"added token inside a word", []string{"added_tokens", `[{"id":9,"content":"x","single_word":true}]`}, "x xx ax xab x", []int32{9, 0, 0, 0, 9}},
		{"added token in normalized text", []string{"added_tokens", `[{"id":9,"content":"<X>","normalized":true},{"id":10,"content":"<Y>","normalized":false}]`, "normalizer", `{"type":"Lowercase"}`}, "<x> <X> <Y> <y>", []int32{9, 9, 10, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok := parseFile(t, tt.members...)
			for range 2 { // the second time from the cache
				if got := tok.Encode(nil, tt.text); !slices.Equal(got, tt.want) {
					t.Errorf("Encode(%q) = %v, want %v", tt.text, got, tt.want)
				}
			}
		})
	}
}

func TestRoles(t *testing.T) {
	const more = `[{"id":0,"content":"[UNK]","special":true},{"id":1,"content":"[CLS]","special":true},{"id":2,"content":"[SEP]","special":true},{"id":7,"content":"<s>","special":true},{"id":8,"content":"</s>","special":true},{"id":9,"content":"<fill>","special":true}]`
	template := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],"pair":[],"special_tokens":{}}`
	tests := []struct {
		name    string
		members []string
		config  string
		want    map[role]int32
	}{
		{"by custom", nil, "", map[role]int32{clsRole: 1, sepRole: 2, unkRole: 0}},
		{"by template", []string{"added_tokens", more, "post_processor", template}, "", map[role]int32{clsRole: 7, sepRole: 8, unkRole: 0}},
		{"by template in a sequence", []string{"added_tokens", more, "post_processor", `{"type":"Sequence","processors":[{"type":"ByteLevel"},` + template + `]}`}, "", map[role]int32{clsRole: 7, sepRole: 8, unkRole: 0}},
		{"by Roberta's", []string{"added_tokens", more, "post_processor", `{"type":"RobertaProcessing","sep":["</s>",8],"cls":["<s>",7],"trim_offsets":true,"add_prefix_space":false}`}, "", map[role]int32{clsRole: 7, sepRole: 8, unkRole: 0}},
		{"template before config", []string{"added_tokens", more, "post_processor", template}, `{"cls_token":"[CLS]","pad_token":{"content":"<fill>"}}`, map[role]int32{clsRole: 7, sepRole: 8, unkRole: 0, padRole: 9}},
		{"config before custom", []string{"added_tokens", more}, `{"bos_token":"<s>","eos_token":"</s>","mask_token":"<fill>"}`, map[role]int32{clsRole: 7, sepRole: 8, unkRole: 0, maskRole: 9}},
		{"config names what is not there", nil, `{"mask_token":"<mask>"}`, map[role]int32{clsRole: 1, sepRole: 2, unkRole: 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, content string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(mainFile, file(tt.members...))
			if tt.config != "" {
				write(configFile, tt.config)
			}
			tok, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[role]int32)
			for r, f := range map[role]func() (int32, bool){clsRole: tok.CLS, sepRole: tok.SEP, padRole: tok.PAD, maskRole: tok.MASK, unkRole: tok.UNK} {
				if id, ok := f(); ok {
					got[r] = id
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("roles differ (-want +got):\n%s", d)
			}
			if len(tok.Files()) != 1+min(1, len(tt.config)) {
				t.Errorf("Files holds %d files", len(tok.Files()))
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "AutoTokenizer") || !strings.Contains(err.Error(), dir) {
		t.Errorf("Load of an empty folder: %v", err)
	}
	for name, content := range map[string]string{mainFile: file(), mapFile: `[]`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), mapFile) {
		t.Errorf("Load with a broken map of special tokens: %v", err)
	}
}

func TestTokens(t *testing.T) {
	tok := parseFile(t, "added_tokens", `[{"id":9,"content":"<x>","special":true}]`)
	if got := tok.VocabSize(); got != 10 {
		t.Errorf("VocabSize = %d, want 10", got)
	}
	for id, want := range map[int32]string{-1: "", 0: "[UNK]", 5: "ab", 7: "", 9: "<x>", 10: ""} {
		if got, ok := tok.Token(id); got != want || ok != (want != "") {
			t.Errorf("Token(%d) = %q, %v; want %q", id, got, ok, want)
		}
	}
	if id, ok := tok.Special("<x>"); id != 9 || !ok {
		t.Errorf(`Special("<x>") = %d, %v`, id, ok)
	}
	if _, ok := tok.Special("ab"); ok {
		t.Error(`Special("ab") is one`)
	}
	if got := tok.Decode([]int32{5, 9, 3, 99, -1, 7}); got != "ab a" {
		t.Errorf("Decode = %q", got)
	}
}

// TestConcurrent encodes in several goroutines and fills the cache over, and
// finds what a fresh tokenizer finds.
func TestConcurrent(t *testing.T) {
	texts := goldenTexts(t)
	fresh := func() *Tokenizer { return load(t, "modernbert") }
	var want [][]int32
	for _, text := range texts {
		want = append(want, fresh().Encode(nil, text))
	}
	tok := fresh()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range texts {
				i = (i + 16*g) % len(texts)
				if got := tok.Encode(nil, texts[i]); !slices.Equal(got, want[i]) {
					t.Errorf("Encode(%q) differs in another goroutine", texts[i])
				}
				for k := range maxCachedWords / 40 {
					tok.Encode(nil, fmt.Sprint(g, k, i))
				}
			}
		})
	}
	wg.Wait()
}

// FuzzEncode checks, for each kind of tokenizer, that no text panics, that the
// result does not depend on what was encoded before, and that it appends.
func FuzzEncode(f *testing.F) {
	names := []string{"modernbert", "gemma", "gemma-crossing", "llama3", "qwen2", "metaspace", "wordpiece", "roberta"}
	toks := make(map[string]*Tokenizer)
	for _, name := range names {
		toks[name] = load(f, name)
	}
	for _, text := range goldenTexts(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, tok := range toks {
			got := tok.Encode([]int32{-7}, text)
			clear := &Tokenizer{tokens: tok.tokens, verbatim: tok.verbatim, normalized: tok.normalized, normalize: tok.normalize, splitters: tok.splitters, model: tok.model}
			if want := clear.Encode([]int32{-7}, text); !slices.Equal(got, want) {
				t.Errorf("%s: Encode(%q) = %v, then %v", name, text, want, got)
			}
			unk, _ := tok.UNK()
			for _, id := range got[1:] {
				if tok.skip[id] && id != unk {
					t.Errorf("%s: Encode(%q) holds the special token %q", name, text, tok.tokens[id])
				}
			}
			tok.Decode(got[1:])
		}
	})
}

// FuzzMarks checks that cutting at marks changes no id.
func FuzzMarks(f *testing.F) {
	tok := load(f, "gemma")
	if len(tok.splitters) != 2 || len(load(f, "gemma-crossing").splitters) != 1 {
		f.Fatal("gemma is not cut at marks, or gemma-crossing is")
	}
	uncut := *load(f, "gemma")
	uncut.splitters = uncut.splitters[:1]
	whole := &uncut
	f.Add("a  b ▁▁c")
	for _, text := range goldenTexts(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, want := tok.Encode(nil, text), whole.Encode(nil, text)
		if !slices.Equal(got, want) {
			t.Errorf("Encode(%q) = %v, uncut %v", text, got, want)
		}
	})
}

// FuzzParse checks that no file panics, in reading or in use.
func FuzzParse(f *testing.F) {
	f.Add([]byte(file()))
	f.Add([]byte(file("model", bpeWith(""), "pre_tokenizer", `{"type":"ByteLevel"}`, "decoder", `{"type":"ByteLevel"}`)))
	f.Add([]byte(file("pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":"▁"},{"type":"Split","pattern":{"Regex":"a+"},"behavior":"Contiguous"}]}`,
		"normalizer", `{"type":"Replace","pattern":{"String":"a"},"content":""}`, "decoder", `{"type":"Strip","content":"a","start":1,"stop":2}`)))
	f.Add([]byte(file("post_processor", `{"type":"RobertaProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]}`, "decoder", `{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"WordPiece"}]}`)))
	f.Fuzz(func(t *testing.T, src []byte) {
		tok, err := Parse(src)
		if err != nil {
			return
		}
		ids := tok.Encode(nil, "ab [CLS] Ünïcode  漢字\r\n'll a▁b")
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok {
				t.Errorf("Encode gives the id %d of no token", id)
			}
		}
		tok.Decode(ids)
	})
}

func benchmarkEncode(b *testing.B, name string, texts []string) {
	tok := load(b, name)
	n := 0
	for _, text := range texts {
		n += len(text)
	}
	b.SetBytes(int64(n))
	var ids []int32
	for b.Loop() {
		for _, text := range texts {
			ids = tok.Encode(ids[:0], text)
		}
	}
}

// BenchmarkEncode encodes 13,083 English questions, and 3,785 paragraphs in 64
// languages.
func BenchmarkEncode(b *testing.B) {
	type row struct{ Text string }
	for _, set := range []string{"banking77/banking77.jsonl", "udhr-langid/paragraphs.jsonl"} {
		var texts []string
		for _, r := range lines[row](b, shared(b, set)) {
			texts = append(texts, r.Text)
		}
		b.Run(filepath.Dir(set), func(b *testing.B) {
			for _, name := range []string{"bert-uncased", "modernbert", "llama3", "gemma", "gemma-crossing"} {
				b.Run(name, func(b *testing.B) { benchmarkEncode(b, name, texts) })
			}
		})
	}
}

func BenchmarkTrainByteLevel(b *testing.B) {
	type row struct{ Text string }
	var texts []string
	for _, r := range lines[row](b, shared(b, "banking77/banking77.jsonl")) {
		texts = append(texts, r.Text)
	}
	for b.Loop() {
		if _, err := TrainByteLevel(slices.Values(texts), 4096); err != nil {
			b.Fatal(err)
		}
	}
}
