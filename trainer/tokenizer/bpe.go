package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// bpe starts from a word's characters and merges the pair that was learned
// first, the leftmost of equals, until no learned pair is left.
//
// A character outside the vocabulary is the tokens of its bytes where there are
// such, or the unknown token, one for a run of such characters when fuse is true.
// Where a vocabulary has neither, it is dropped, as the reference does; a
// byte-level vocabulary holds every byte.
type bpe struct {
	ids    map[string]int32
	merges map[pair]rule
	whole  bool // a word that is a token is that token, whatever the merges say

	bytes  *[256]int32 // <0x00> to <0xFF>, -1 for one that is absent; nil without byte fallback
	unk    int32
	hasUnk bool
	fuse   bool
}

// pair is two neighbouring tokens.
type pair struct{ left, right int32 }

// rule is what a pair becomes, and when: a lower rank goes first.
type rule struct{ rank, id int32 }

func (o *object) bpe(v *vocabulary) model {
	m := &bpe{ids: v.ids, fuse: o.flag("fuse_unk", false), whole: o.flag("ignore_merges", false)}
	if unk := o.textOr("unk_token", ""); unk != "" {
		m.unk, m.hasUnk = v.mustID(o, "unk_token", unk), true
	}
	for _, name := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if s := o.textOr(name, ""); s != "" {
			o.fail("%s %q is not supported", name, s)
		}
	}
	if p := o.number("dropout", 0); p != 0 {
		o.fail("dropout %v is not supported: a text would have other ids each time", p)
	}
	if o.flag("byte_fallback", false) {
		m.bytes = new([256]int32)
		for b := range m.bytes {
			// Gemma's lacks <0x09>, because a tab is a token.
			id, ok := v.ids[fmt.Sprintf("<0x%02X>", b)]
			if !ok {
				id = -1
			}
			m.bytes[b] = id
		}
	}
	merges := o.merges()
	m.merges = make(map[pair]rule, len(merges))
	for i, p := range merges {
		if o.err != nil {
			break
		}
		// The vocabulary's own ids: a special token must not come of a merge.
		left, lok := v.ids[p[0]]
		right, rok := v.ids[p[1]]
		id, ok := v.ids[p[0]+p[1]]
		if !lok || !rok || !ok {
			if v.has(p[0]) && v.has(p[1]) && v.has(p[0]+p[1]) {
				continue
			}
			o.fail("merges/%d: %q and %q, or what they become, are not in the vocabulary", i, p[0], p[1])
			break
		}
		if _, dup := m.merges[pair{left, right}]; !dup {
			m.merges[pair{left, right}] = rule{int32(i), id}
		}
	}
	return m
}

// merges reads the pairs in either of the two forms: ["a b", …] as files had
// until 2024, and [["a", "b"], …].
func (o *object) merges() [][2]string {
	raw, ok := o.raw("merges")
	if !ok {
		o.fail("merges are missing")
		return nil
	}
	var pairs [][2]string
	var lists [][]string
	if json.Unmarshal(raw, &lists) == nil {
		for i, l := range lists {
			if len(l) != 2 {
				o.fail("merges/%d: want two tokens, found %d", i, len(l))
				return nil
			}
			pairs = append(pairs, [2]string{l[0], l[1]})
		}
		return pairs
	}
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		o.fail("merges: want pairs of tokens: %v", err)
		return nil
	}
	for i, line := range lines {
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			o.fail("merges/%d: want two tokens and a space, found %q", i, line)
			return nil
		}
		pairs = append(pairs, [2]string{left, right})
	}
	return pairs
}

// symbol is a token of a word being merged. Symbols are a linked list in one
// slice, in which a symbol keeps its index; a symbol merged away is dead.
type symbol struct {
	id         int32
	prev, next int32 // -1 at the ends
	dead       bool
}

// merge is a possible merge of the symbol at an index with its next.
type merge struct{ rank, at, id int32 }

func (a merge) before(b merge) bool {
	return a.rank < b.rank || a.rank == b.rank && a.at < b.at
}

func (m *bpe) encode(dst []int32, word string, s *scratch) []int32 {
	if m.whole {
		if id, ok := m.ids[word]; ok {
			return append(dst, id)
		}
	}
	symbols := m.symbols(s.symbols[:0], word)
	queue := s.queue[:0]
	try := func(at int32) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if r, ok := m.merges[pair{symbols[at].id, symbols[symbols[at].next].id}]; ok {
			queue = push(queue, merge{r.rank, at, r.id})
		}
	}
	for i := range symbols {
		try(int32(i))
	}
	for len(queue) > 0 {
		var top merge
		queue, top = pop(queue)
		left := &symbols[top.at]
		if left.dead || left.next < 0 {
			continue
		}
		right := &symbols[left.next]
		// The pair may have changed since; one that makes the same token still
		// goes, as in the reference.
		if r, ok := m.merges[pair{left.id, right.id}]; !ok || r.id != top.id {
			continue
		}
		left.id, left.next, right.dead = top.id, right.next, true
		if right.next >= 0 {
			symbols[right.next].prev = top.at
		}
		try(left.prev)
		try(top.at)
	}
	for _, sym := range symbols {
		if !sym.dead {
			dst = append(dst, sym.id)
		}
	}
	s.symbols, s.queue = symbols, queue
	return dst
}

// symbols appends the tokens of a word's characters.
func (m *bpe) symbols(list []symbol, word string) []symbol {
	add := func(id int32) {
		n := int32(len(list))
		list = append(list, symbol{id: id, prev: n - 1, next: n + 1})
	}
	afterUnk := false
	for i := 0; i < len(word); {
		_, size := utf8.DecodeRuneInString(word[i:])
		char := word[i : i+size]
		i += size
		id, ok := m.ids[char]
		switch {
		case ok:
			add(id)
		case m.hasBytes(char):
			ok = true
			for _, b := range []byte(char) {
				add(m.bytes[b])
			}
		case m.hasUnk && !(m.fuse && afterUnk):
			add(m.unk)
		}
		afterUnk = !ok
	}
	if n := len(list); n > 0 {
		list[n-1].next = -1
	}
	return list
}

// hasBytes reports whether every byte of a character is a token.
func (m *bpe) hasBytes(char string) bool {
	for i := range len(char) {
		if m.bytes == nil || m.bytes[char[i]] < 0 {
			return false
		}
	}
	return true
}
