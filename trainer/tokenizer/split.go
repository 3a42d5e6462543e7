package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitters builds a pre-tokenizer of a tokenizer.json, which may be several.
func (o *object) splitters() []splitter {
	switch typ := o.text("type"); typ {
	case "Sequence":
		var all []splitter
		for _, part := range o.list("pretokenizers") {
			all = append(all, part.splitters()...)
			o.adopt(part)
		}
		return all
	case "BertPreTokenizer":
		return []splitter{func(dst []word, w word) []word {
			return cut(dst, w, func(r rune) part {
				switch {
				case unicode.IsSpace(r):
					return drop
				case isPunct(r):
					return alone
				}
				return together
			})
		}}
	case "WhitespaceSplit":
		return []splitter{func(dst []word, w word) []word {
			return cut(dst, w, func(r rune) part {
				if unicode.IsSpace(r) {
					return drop
				}
				return together
			})
		}}
	case "Whitespace": // \w+|[^\w\s]+
		return []splitter{func(dst []word, w word) []word {
			return cut(dst, w, func(r rune) part {
				switch {
				case unicode.IsSpace(r):
					return drop
				case isWord(r):
					return together
				}
				return others
			})
		}}
	case "Digits":
		digit := others
		if o.flag("individual_digits", false) {
			digit = alone
		}
		return []splitter{func(dst []word, w word) []word {
			return cut(dst, w, func(r rune) part {
				if unicode.IsNumber(r) {
					return digit
				}
				return together
			})
		}}
	case "Punctuation":
		return []splitter{splitOn(runePattern(isPunct), o.behavior("Isolated"), false)}
	case "CharDelimiterSplit":
		return []splitter{splitOn(literal(o.character("delimiter")), "Removed", false)}
	case "Split":
		return []splitter{splitOn(o.pattern(), o.behavior(""), o.flag("invert", false))}
	case "ByteLevel":
		prefix, split := o.flag("add_prefix_space", true), o.flag("use_regex", true)
		o.flag("trim_offsets", true) // offsets are not kept
		var all []splitter
		if prefix {
			all = append(all, func(dst []word, w word) []word {
				if w.s[0] != ' ' {
					w.s = " " + w.s
				}
				return append(dst, w)
			})
		}
		if split {
			all = append(all, splitOn(func(s string) (int, int) { return whole(s, gpt2) }, "Isolated", false))
		}
		return append(all, spellBytes)
	case "Metaspace":
		return []splitter{o.metaspace().split}
	default:
		o.unknown("pre-tokenizer", typ)
		return nil
	}
}

// part says what a character does to the word it stands in.
type part byte

const (
	together part = iota // it continues a run of its kind
	others               // so does this, of another kind
	alone                // it is a word
	drop                 // it belongs to none
)

// cut cuts a word by the kinds of its characters.
func cut(dst []word, w word, kind func(rune) part) []word {
	from, last := 0, drop
	for i, r := range w.s {
		k := kind(r)
		if k == last && (k == together || k == others) {
			continue
		}
		if last != drop {
			dst = append(dst, word{w.s[from:i], w.start && from == 0})
		}
		from, last = i, k
	}
	if last != drop {
		dst = append(dst, word{w.s[from:], w.start && from == 0})
	}
	return dst
}

// runePattern finds a single character.
func runePattern(want func(rune) bool) pattern {
	return func(s string) (int, int) {
		i := strings.IndexFunc(s, want)
		if i < 0 {
			return -1, 0
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		return i, i + n
	}
}

// splitOn cuts a word at the matches of a pattern, or with invert at what lies
// between them. The behavior is one of the five of the format: what becomes of
// a match.
func splitOn(find pattern, behavior string, invert bool) splitter {
	return func(dst []word, w word) []word {
		base := len(dst)
		// A delimiter that was just seen waits here to lead the next piece.
		pending := -1
		wasMatch := false
		add := func(from, to int, match bool) {
			if from == to {
				return
			}
			match = match != invert
			piece := word{w.s[from:to], w.start && from == 0}
			any := len(dst) > base
			switch {
			case match && behavior == "Removed":
				return
			case behavior == "Contiguous" && any && match == wasMatch,
				behavior == "MergedWithPrevious" && any && match && !wasMatch:
				last := &dst[len(dst)-1]
				last.s = w.s[from-len(last.s) : to]
			case behavior == "MergedWithNext" && pending >= 0 && !match:
				dst[len(dst)-1].s = w.s[pending:to]
			default:
				dst = append(dst, piece)
			}
			pending = -1
			if match {
				pending = from
			}
			wasMatch = match
		}
		at := 0
		for at < len(w.s) {
			start, end := find(w.s[at:])
			if start < 0 {
				break
			}
			add(at, at+start, false)
			add(at+start, at+end, true)
			at += end
		}
		add(at, len(w.s), false)
		return dst
	}
}

// metaspace is SentencePiece's way with spaces: each becomes a mark, and a word
// begins with one.
type metaspace struct {
	mark   string
	scheme string // "always", "first" (at the start of the text only) or "never"
	cuts   bool
}

func (o *object) metaspace() metaspace {
	m := metaspace{mark: o.character("replacement"), scheme: o.textOr("prepend_scheme", "")}
	o.textOr("str_rep", "") // an older name of the mark, beside it
	prefix := o.flag("add_prefix_space", true)
	m.cuts = o.flag("split", true)
	switch {
	case m.scheme == "" && prefix:
		m.scheme = "always"
	case m.scheme == "" || !prefix: // files of version 0.13 to 0.14 may hold both
		m.scheme = "never"
	case m.scheme != "always" && m.scheme != "first" && m.scheme != "never":
		o.fail("prepend_scheme %q is not known", m.scheme)
	}
	return m
}

func (m metaspace) split(dst []word, w word) []word {
	s := strings.ReplaceAll(w.s, " ", m.mark)
	if !strings.HasPrefix(s, m.mark) && (m.scheme == "always" || m.scheme == "first" && w.start) {
		s = m.mark + s
	}
	w.s = s
	if !m.cuts {
		return append(dst, w)
	}
	return splitOn(literal(m.mark), "MergedWithNext", false)(dst, w)
}

// byteRunes is the printable character that stands for each byte in a
// byte-level vocabulary: itself where it is printable and no space, else the
// next free one from U+0100. Source: OpenAI's GPT-2, encoder.py,
// bytes_to_unicode.
var byteRunes = func() (t [256]rune) {
	next := rune(0x100)
	for b := range t {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			t[b] = rune(b)
			continue
		}
		t[b] = next
		next++
	}
	return t
}()

// runeBytes is its inverse.
var runeBytes = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range byteRunes {
		m[r] = byte(b)
	}
	return m
}()

// spellBytes writes a word's bytes as their characters.
func spellBytes(dst []word, w word) []word {
	plain := true
	for i := 0; plain && i < len(w.s); i++ {
		plain = '!' <= w.s[i] && w.s[i] <= '~'
	}
	if plain {
		return append(dst, w)
	}
	b := make([]byte, 0, 2*len(w.s))
	for i := range len(w.s) {
		b = utf8.AppendRune(b, byteRunes[w.s[i]])
	}
	w.s = string(b)
	return append(dst, w)
}

// atMarks cuts before every ▁ that follows another character. It is put last
// where no token crosses such a place, so that it changes no id and a text
// without words, as Gemma's, need not be merged whole.
func atMarks(dst []word, w word) []word {
	from := 0
	for i := 1; i < len(w.s); {
		j := strings.Index(w.s[i:], spaceMark)
		if j < 0 {
			break
		}
		i += j
		if !strings.HasSuffix(w.s[:i], spaceMark) {
			dst = append(dst, word{w.s[from:i], w.start && from == 0})
			from = i
		}
		i += len(spaceMark)
	}
	return append(dst, word{w.s[from:], w.start && from == 0})
}

const spaceMark = "▁"
