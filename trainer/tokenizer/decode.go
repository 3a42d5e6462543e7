package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decoder rewrites a list of tokens; what the last one leaves is joined.
type decoder func(tokens []string) []string

// Decode returns the text of ids as the file's decoder makes it. Special tokens
// and ids outside the vocabulary are left out. Bytes that do not make a
// character are U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if token, ok := t.Token(id); ok && !t.skip[id] {
			tokens = append(tokens, token)
		}
	}
	if t.decoders == nil {
		return strings.Join(tokens, " ")
	}
	for _, d := range t.decoders {
		tokens = d(tokens)
	}
	return strings.Join(tokens, "")
}

// decoders builds a decoder of a tokenizer.json, which may be several.
func (o *object) decoders() []decoder {
	switch typ := o.text("type"); typ {
	case "Sequence":
		var all []decoder
		for _, part := range o.list("decoders") {
			all = append(all, part.decoders()...)
			o.adopt(part)
		}
		return all
	case "WordPiece":
		prefix, tidy := o.textOr("prefix", "##"), o.flag("cleanup", true)
		return []decoder{func(tokens []string) []string {
			for i, token := range tokens {
				if rest, ok := strings.CutPrefix(token, prefix); ok && i > 0 {
					token = rest
				} else if i > 0 {
					token = " " + token
				}
				if tidy {
					token = tidyEnglish.Replace(token)
				}
				tokens[i] = token
			}
			return tokens
		}}
	case "ByteLevel":
		o.flag("add_prefix_space", true)
		o.flag("trim_offsets", true)
		o.flag("use_regex", true)
		return []decoder{func(tokens []string) []string {
			var b []byte
			for _, token := range tokens {
				b = append(b, spelled(token)...)
			}
			return []string{strings.ToValidUTF8(string(b), "\ufffd")}
		}}
	case "Metaspace":
		m := o.metaspace()
		return []decoder{func(tokens []string) []string {
			for i, token := range tokens {
				space := " "
				if i == 0 && m.scheme != "never" {
					space = ""
				}
				tokens[i] = strings.ReplaceAll(token, m.mark, space)
			}
			return tokens
		}}
	case "ByteFallback":
		return []decoder{joinBytes}
	case "Fuse":
		return []decoder{func(tokens []string) []string { return []string{strings.Join(tokens, "")} }}
	case "Replace":
		pattern, content := o.pattern(), o.text("content")
		return []decoder{func(tokens []string) []string {
			for i, token := range tokens {
				tokens[i] = replace(token, pattern, content)
			}
			return tokens
		}}
	case "Strip":
		char, start, stop := o.character("content"), o.integer("start", 0), o.integer("stop", 0)
		return []decoder{func(tokens []string) []string {
			for i, token := range tokens {
				for n := 0; n < start && strings.HasPrefix(token, char); n++ {
					token = token[len(char):]
				}
				for n := 0; n < stop && strings.HasSuffix(token, char); n++ {
					token = token[:len(token)-len(char)]
				}
				tokens[i] = token
			}
			return tokens
		}}
	default:
		o.unknown("decoder", typ)
		return nil
	}
}

// tidyEnglish takes out the spaces that a list of English tokens has too many.
// It is applied token by token, so most of its rules never match; it is so in
// the reference.
var tidyEnglish = strings.NewReplacer(
	" .", ".", " ?", "?", " !", "!", " ,", ",", " ' ", "'", " n't", "n't",
	" 'm", "'m", " do not", " don't", " 's", "'s", " 've", "'ve", " 're", "'re")

// spelled returns the bytes that a token of a byte-level vocabulary stands for.
// An added token is written as it is.
func spelled(token string) []byte {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := runeBytes[r]
		if !ok {
			return []byte(token)
		}
		b = append(b, c)
	}
	return b
}

// joinBytes makes text of runs of <0x00> to <0xFF>: U+FFFD for each byte of a
// run that is not UTF-8.
func joinBytes(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		switch {
		case len(run) == 0:
		case utf8.Valid(run):
			out = append(out, string(run))
		default:
			out = append(out, strings.Repeat("\ufffd", len(run)))
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}
