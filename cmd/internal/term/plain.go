package term

import (
	"strings"
	"unicode"
)

// Plain is text of others, such as a server's message, made fit for one line of a
// terminal: without control characters, and not endless.
func Plain(s string) string {
	const most = 1000
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return s
}
