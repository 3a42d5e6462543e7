package tokenizer

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is an entry of a tokenizer.json's added_tokens.
type addedToken struct {
	content        string
	id             int32
	singleWord     bool // matched only when no word character stands beside it
	lstrip, rstrip bool // takes the white space before, after it along
	normalized     bool // matched in the normalized text
	special        bool // never matched in text
}

// added is a set of added tokens to find in text, by their first byte, the
// longest first.
type added struct {
	tokens [256][]addedToken
	any    bool
}

// add puts a token in the set, to be found as form.
func (a *added) add(t addedToken, form string) {
	if form == "" {
		return
	}
	t.content = form
	list := &a.tokens[form[0]]
	*list = append(*list, t)
	sort.SliceStable(*list, func(i, j int) bool { return len((*list)[i].content) > len((*list)[j].content) })
	a.any = true
}

// cut cuts text around the first added token in it, and of those that start at
// one place the longest. Without one, before is all of text.
func (a *added) cut(text string) (before string, id int32, after string, found bool) {
	if !a.any {
		return text, 0, "", false
	}
	for i := range len(text) {
		for _, t := range a.tokens[text[i]] {
			if !strings.HasPrefix(text[i:], t.content) {
				continue
			}
			before, after := text[:i], text[i+len(t.content):]
			if t.singleWord && (endsWithWord(before) || startsWithWord(after)) {
				continue
			}
			if t.lstrip {
				before = strings.TrimRightFunc(before, unicode.IsSpace)
			}
			if t.rstrip {
				after = strings.TrimLeftFunc(after, unicode.IsSpace)
			}
			return before, t.id, after, true
		}
	}
	return text, 0, "", false
}

func endsWithWord(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return s != "" && isWord(r)
}

func startsWithWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s != "" && isWord(r)
}
