package tokenizer

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern finds its first match in s. start is -1 when there is none; a match
// is never empty.
type pattern func(s string) (start, end int)

// literal finds a string.
func literal(want string) pattern {
	return func(s string) (int, int) {
		i := strings.Index(s, want)
		return i, i + len(want)
	}
}

// The expressions by which byte-level vocabularies cut text into words. They
// need a look-ahead, which package regexp lacks, and they run over every byte
// of text, so they are written out below.
const (
	gpt2Expr   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Expr = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Expr  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// expression returns the pattern of a regular expression: one of the above, or
// one that package regexp reads as the reference's engine (Oniguruma) does.
func expression(expr string) (pattern, error) {
	switch expr {
	case gpt2Expr:
		return func(s string) (int, int) { return whole(s, gpt2) }, nil
	case llama3Expr:
		return func(s string) (int, int) { return whole(s, func(s string) int { return llama3(s, 3) }) }, nil
	case qwen2Expr:
		return func(s string) (int, int) { return whole(s, func(s string) int { return llama3(s, 1) }) }, nil
	}
	// The two engines differ in what these mean, or only one has them.
	for _, differs := range []string{`\s`, `\S`, `\d`, `\D`, `\w`, `\W`, `\b`, `\B`, `\h`, `\A`, `\z`, `\Z`, `\G`, `\X`, `\R`, `^`, `$`, `[:`, `&&`} {
		if strings.Contains(strings.ReplaceAll(expr, `[^`, ``), differs) {
			return nil, fmt.Errorf("regular expression %q is not supported (it uses %s)", expr, differs)
		}
	}
	if strings.Contains(strings.ReplaceAll(expr, `(?:`, ``), `(?`) {
		return nil, fmt.Errorf("regular expression %q is not supported (it uses a group other than (?:)", expr)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q is not supported: %w", expr, err)
	}
	if re.MatchString("") {
		return nil, fmt.Errorf("regular expression %q is not supported (it matches nothing at all)", expr)
	}
	return func(s string) (int, int) {
		at := re.FindStringIndex(s)
		if at == nil {
			return -1, 0
		}
		return at[0], at[1]
	}, nil
}

// whole makes a pattern of a scanner that matches something at every place.
func whole(s string, scan func(string) int) (start, end int) {
	if s == "" {
		return -1, 0
	}
	return 0, scan(s)
}

// class is what the expressions ask of a character.
type class byte

const (
	other class = iota
	letter
	number
	space
)

// asciiClass is classOf below U+0080, where most text is.
var asciiClass = func() (t [utf8.RuneSelf]class) {
	for r := range t {
		t[r] = slowClass(rune(r))
	}
	return t
}()

func slowClass(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// first returns the class of the first character of s, which is not empty, and
// its length.
func first(s string) (class, int) {
	if s[0] < utf8.RuneSelf {
		return asciiClass[s[0]], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	return slowClass(r), n
}

// run returns the length of the longest prefix of s of one class.
func run(s string, c class) int {
	n := 0
	for n < len(s) {
		got, size := first(s[n:])
		if got != c {
			break
		}
		n += size
	}
	return n
}

// gpt2 returns the length of gpt2Expr's match at the start of s, not empty.
func gpt2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	from := 0
	if s[0] == ' ' && len(s) > 1 {
		from = 1
	}
	if c, _ := first(s[from:]); c != space {
		return from + run(s[from:], c)
	}
	return blank(s)
}

// llama3 returns the length of llama3Expr's match at the start of s, not empty;
// qwen2Expr differs in how many digits it takes.
func llama3(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	c, size := first(s)
	if c == letter {
		return run(s, letter)
	}
	// One character that is no number and no line break may lead a word.
	if c != number && s[0] != '\r' && s[0] != '\n' && len(s) > size {
		if n := run(s[size:], letter); n > 0 {
			return size + n
		}
	}
	if c == number {
		n := 0
		for range digits {
			if n == len(s) {
				break
			}
			c, size := first(s[n:])
			if c != number {
				break
			}
			n += size
		}
		return n
	}
	from := 0
	if s[0] == ' ' {
		from = 1
	}
	if n := run(s[from:], other); n > 0 {
		n += from
		for n < len(s) && (s[n] == '\r' || s[n] == '\n') {
			n++
		}
		return n
	}
	// White space up to its last line break.
	if i := strings.LastIndexAny(s[:run(s, space)], "\r\n"); i >= 0 {
		return i + 1
	}
	return blank(s)
}

// blank matches \s+(?!\S)|\s+ at the start of s, which is white space: all of
// it at the end of the text, else all but the last, which leads the next word;
// a single one goes alone.
func blank(s string) int {
	n := run(s, space)
	if n == len(s) {
		return n
	}
	_, last := utf8.DecodeLastRuneInString(s[:n])
	if n > last {
		return n - last
	}
	return n
}

// contraction matches 's 't 're 've 'm 'll 'd at the start of s, in any case
// when fold is true (U+017F is an s then).
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	for _, want := range [...]string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if got := s[1:]; len(got) >= len(want) {
			if got = got[:len(want)]; got == want || fold && strings.EqualFold(got, want) {
				return 1 + len(want)
			}
		}
	}
	if fold && strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	return 0
}
