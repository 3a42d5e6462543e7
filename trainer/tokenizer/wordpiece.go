package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// wordPiece takes from a word's start the longest token of the vocabulary, then
// from the rest the longest that continues a word. A word that cannot be taken
// apart so, or is too long, is the unknown token.
type wordPiece struct {
	first, rest map[string]int32 // tokens that start a word, and that continue it less their prefix
	longest     int              // bytes of the longest token
	maxChars    int
	unk         int32
}

func (o *object) wordPiece(v *vocabulary) model {
	m := &wordPiece{first: v.ids, rest: make(map[string]int32), maxChars: o.integer("max_input_chars_per_word", 100)}
	m.unk = v.mustID(o, "unk_token", o.textOr("unk_token", "[UNK]"))
	prefix := o.textOr("continuing_subword_prefix", "##")
	for token, id := range v.ids {
		m.longest = max(m.longest, len(token))
		if rest, ok := strings.CutPrefix(token, prefix); ok {
			m.rest[rest] = id
		}
	}
	return m
}

func (m *wordPiece) encode(dst []int32, word string, _ *scratch) []int32 {
	if len(word) > m.maxChars && utf8.RuneCountInString(word) > m.maxChars {
		return append(dst, m.unk)
	}
	n := len(dst)
	for from := 0; from < len(word); {
		vocab := m.rest
		if from == 0 {
			vocab = m.first
		}
		to := min(len(word), from+m.longest)
		for ; to > from; to-- {
			if to < len(word) && !utf8.RuneStart(word[to]) {
				continue
			}
			if id, ok := vocab[word[from:to]]; ok {
				dst = append(dst, id)
				break
			}
		}
		if to == from {
			return append(dst[:n], m.unk)
		}
		from = to
	}
	return dst
}
