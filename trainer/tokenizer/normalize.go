package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer builds a normalizer of a tokenizer.json.
func (o *object) normalizer() normalizer {
	switch typ := o.text("type"); typ {
	case "BertNormalizer":
		n := bertNormalizer{
			clean:     o.flag("clean_text", true),
			chinese:   o.flag("handle_chinese_chars", true),
			lowercase: o.flag("lowercase", true),
		}
		n.strip = o.flag("strip_accents", n.lowercase) // null follows lowercase
		return n.normalize
	case "NFC":
		return norm.NFC.String
	case "NFD":
		return norm.NFD.String
	case "NFKC":
		return norm.NFKC.String
	case "NFKD":
		return norm.NFKD.String
	case "Lowercase":
		return lower
	case "StripAccents":
		return func(s string) string { return remove(s, isMark) }
	case "Strip":
		left, right := o.flag("strip_left", true), o.flag("strip_right", true)
		return func(s string) string {
			if left {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if right {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		}
	case "Prepend":
		prefix := o.text("prepend")
		return func(s string) string {
			if s == "" {
				return s
			}
			return prefix + s
		}
	case "Replace":
		pattern, content := o.pattern(), o.text("content")
		return func(s string) string { return replace(s, pattern, content) }
	case "Sequence":
		var all []normalizer
		for _, part := range o.list("normalizers") {
			all = append(all, part.normalizer())
			o.adopt(part)
		}
		return func(s string) string {
			for _, n := range all {
				s = n(s)
			}
			return s
		}
	default:
		o.unknown("normalizer", typ)
		return nil
	}
}

func replace(s string, find pattern, content string) string {
	start, end := find(s)
	if start < 0 {
		return s
	}
	var b strings.Builder
	for start >= 0 {
		b.WriteString(s[:start])
		b.WriteString(content)
		s = s[end:]
		start, end = find(s)
	}
	b.WriteString(s)
	return b.String()
}

func remove(s string, drop func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if drop(r) {
			return -1
		}
		return r
	}, s)
}

func lower(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	var buf [2]rune
	for _, r := range s {
		if r < utf8.RuneSelf {
			if 'A' <= r && r <= 'Z' {
				r += 'a' - 'A'
			}
			b.WriteByte(byte(r))
			continue
		}
		for _, r := range toLower(buf[:0], r) {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// bertNormalizer is BERT's, in its order: clean, set ideographs apart, strip
// accents, lower the case. ASCII needs neither of the last two passes.
type bertNormalizer struct{ clean, chinese, strip, lowercase bool }

func (n bertNormalizer) normalize(s string) string {
	b := make([]byte, 0, len(s)+len(s)/4)
	ascii := true
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c > ' ' && c < 0x7f:
				if n.lowercase && 'A' <= c && c <= 'Z' {
					c += 'a' - 'A'
				}
				b = append(b, c)
			case !n.clean:
				b = append(b, c)
			case c == ' ' || c == '\t' || c == '\n' || c == '\r':
				b = append(b, ' ')
			}
			continue
		}
		ascii = false
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch {
		case n.clean && isControl(r):
		case n.clean && unicode.IsSpace(r):
			b = append(b, ' ')
		case n.chinese && isChinese(r):
			b = append(b, ' ')
			b = utf8.AppendRune(b, r)
			b = append(b, ' ')
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	s = string(b)
	if ascii {
		return s
	}
	if n.strip {
		s = remove(norm.NFD.String(s), isNonspacing)
	}
	if n.lowercase {
		s = lower(s)
	}
	return s
}
