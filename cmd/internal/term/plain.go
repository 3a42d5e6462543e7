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

// harmless is the text of an error, which may quote a server or a file of another
// user's: its lines as they are, and nothing that commands a terminal.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}
