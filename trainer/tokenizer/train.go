package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// trainedSpecial are the special tokens of a vocabulary made here, from id 0.
var trainedSpecial = []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

// minTrained is the smallest such vocabulary: the special tokens and the bytes.
const minTrained = 5 + 256

// TrainByteLevel learns a byte-level BPE vocabulary of at most vocab tokens from
// texts and returns its tokenizer.json: normal form C, the words of GPT-2, the
// special tokens [PAD] [UNK] [CLS] [SEP] [MASK] with the ids 0 to 4, the 256
// bytes, and a token for each merge. It ends early, with a smaller vocabulary,
// when no pair of tokens is left that comes twice. vocab is at least 261.
//
// Equal texts, in whatever order, give equal bytes: of pairs that come equally
// often the one of the smaller ids is merged, left before right. All counts are
// exact; memory grows with the number of different words.
//
// The algorithm is that of Sennrich, Haddow and Birch (2016), with the pairs'
// counts updated after each merge.
func TrainByteLevel(texts iter.Seq[string], vocab int) ([]byte, error) {
	if vocab < minTrained {
		return nil, fmt.Errorf("tokenizer: a byte-level vocabulary of %d tokens is too small: the special tokens and the bytes are %d", vocab, minTrained)
	}
	if vocab > maxID {
		return nil, fmt.Errorf("tokenizer: a vocabulary of %d tokens is over the limit of %d", vocab, maxID)
	}
	t := newTrainer(countWords(texts))
	for len(t.tokens) < vocab && t.step() {
	}
	return t.file(), nil
}

// countWords counts the different words of texts, spelled in bytes' characters.
func countWords(texts iter.Seq[string]) map[string]int {
	words := &Tokenizer{splitters: []splitter{
		splitOn(func(s string) (int, int) { return whole(s, gpt2) }, "Isolated", false), spellBytes}}
	s := new(scratch)
	counts := make(map[string]int)
	for text := range texts {
		text = norm.NFC.String(strings.ToValidUTF8(text, "\ufffd"))
		if text == "" {
			continue
		}
		for _, w := range words.split(word{s: text}, s) {
			if _, ok := counts[w.s]; !ok {
				w.s = strings.Clone(w.s) // or it would keep its text
			}
			counts[w.s]++
		}
	}
	return counts
}

// trainer is a vocabulary being learned.
type trainer struct {
	tokens []string         // by id
	ids    map[string]int32 // the tokens but the special ones
	merges [][2]string

	words  []trainWord
	counts map[pair]int
	where  map[pair][]int32 // words that held the pair when it was noted, by index; some no longer do
	queue  []candidate      // a heap; the counts in it may be out of date
}

// trainWord is a word as the tokens it is cut into so far.
type trainWord struct {
	ids   []int32
	count int
}

// candidate is a pair and how often it came when it was queued.
type candidate struct {
	pair  pair
	count int
}

// before orders candidates: the most frequent, then the smallest ids.
func (a candidate) before(b candidate) bool {
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.pair.left, b.pair.left), cmp.Compare(a.pair.right, b.pair.right)) < 0
}

func newTrainer(counts map[string]int) *trainer {
	t := &trainer{
		tokens: slices.Clone(trainedSpecial),
		ids:    make(map[string]int32),
		counts: make(map[pair]int),
		where:  make(map[pair][]int32),
	}
	bytes := slices.Clone(byteRunes[:])
	slices.Sort(bytes)
	for _, r := range bytes {
		t.token(string(r))
	}
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		tw := trainWord{count: counts[w]}
		for _, r := range w {
			tw.ids = append(tw.ids, t.ids[string(r)])
		}
		t.words = append(t.words, tw)
	}
	for i := range t.words {
		t.note(int32(i), +1)
	}
	for p, n := range t.counts {
		t.queue = append(t.queue, candidate{p, n})
	}
	slices.SortFunc(t.queue, func(a, b candidate) int { // a sorted list is a heap
		if a.before(b) {
			return -1
		}
		return 1
	})
	return t
}

// token returns the id of a token, a new one if need be.
func (t *trainer) token(s string) int32 {
	id, ok := t.ids[s]
	if !ok {
		id = int32(len(t.tokens))
		t.ids[s] = id
		t.tokens = append(t.tokens, s)
	}
	return id
}

// note adds (sign +1) or takes away (-1) a word's pairs.
func (t *trainer) note(i int32, sign int) {
	w := t.words[i]
	for k := 1; k < len(w.ids); k++ {
		p := pair{w.ids[k-1], w.ids[k]}
		t.counts[p] += sign * w.count
		if at := t.where[p]; sign > 0 && (len(at) == 0 || at[len(at)-1] != i) {
			t.where[p] = append(at, i)
		}
	}
}

// step merges the best pair everywhere. It reports whether there was one.
func (t *trainer) step() bool {
	var best candidate
	for {
		if len(t.queue) == 0 {
			return false
		}
		t.queue, best = pop(t.queue)
		if now := t.counts[best.pair]; now != best.count {
			// Out of date. A pair that came more often since was queued again.
			if now < best.count && now > 0 {
				t.queue = push(t.queue, candidate{best.pair, now})
			}
			continue
		}
		break
	}
	if best.count < 2 {
		return false
	}
	left, right := t.tokens[best.pair.left], t.tokens[best.pair.right]
	id := t.token(left + right)
	t.merges = append(t.merges, [2]string{left, right})

	grown := make(map[pair]bool)
	for _, i := range t.where[best.pair] {
		w := &t.words[i]
		if !holds(w.ids, best.pair) {
			continue
		}
		t.note(i, -1)
		w.ids = mergePair(w.ids, best.pair, id)
		t.note(i, +1)
		for k := 1; k < len(w.ids); k++ {
			if p := (pair{w.ids[k-1], w.ids[k]}); p.left == id || p.right == id {
				grown[p] = true
			}
		}
	}
	delete(t.where, best.pair)
	delete(t.counts, best.pair)
	for p := range grown {
		t.queue = push(t.queue, candidate{p, t.counts[p]})
	}
	return true
}

func holds(ids []int32, p pair) bool {
	for k := 1; k < len(ids); k++ {
		if ids[k-1] == p.left && ids[k] == p.right {
			return true
		}
	}
	return false
}

// mergePair replaces a pair by a token, from the left, in place.
func mergePair(ids []int32, p pair, id int32) []int32 {
	out := ids[:0]
	for k := 0; k < len(ids); k++ {
		if k+1 < len(ids) && ids[k] == p.left && ids[k+1] == p.right {
			out = append(out, id)
			k++
			continue
		}
		out = append(out, ids[k])
	}
	return out
}

// file writes the tokenizer.json.
func (t *trainer) file() []byte {
	type special struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	var b bytes.Buffer
	put := func(s string, v any) {
		b.WriteString(s)
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			panic("tokenizer: a vocabulary did not encode: " + err.Error())
		}
		b.Truncate(b.Len() - 1) // Encode's newline
	}
	var added []special
	for id, s := range trainedSpecial {
		added = append(added, special{ID: id, Content: s, Special: true})
	}
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null,` + "\n")
	put(`"added_tokens":`, added)
	b.WriteString(`,
"normalizer":{"type":"NFC"},
"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
"post_processor":{"type":"TemplateProcessing",
"single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],
"pair":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}},{"Sequence":{"id":"B","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],
"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},
"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":"[UNK]","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
`)
	for id, s := range t.tokens {
		before := ","
		if id == 0 {
			before = `"vocab":{`
		}
		put(before, s)
		fmt.Fprintf(&b, ":%d", id)
	}
	merges := t.merges
	if merges == nil {
		merges = [][2]string{}
	}
	put("},\n\"merges\":", merges)
	b.WriteString("}}\n")
	return b.Bytes()
}
