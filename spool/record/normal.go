package record

import (
	"sort"
	"strings"
	"unicode"

	"github.com/hanzoai/link/spool/canon"
)

//go:generate sh -c "rustc -O -o gen_unicode gen_unicode.rs && ./gen_unicode | gofmt >unicode.go; rm gen_unicode"

// leafSeparator stands between the leaves that are hashed: the unit separator,
// which no normal form holds.
const leafSeparator = "\x1f"

// ContaminationHash returns the hash by which two items of the same text are found
// whatever their ids: the SHA-256 of input's [Leaves] joined by U+001F.
//
// It also reports whether the item takes part in matching. One without a non-empty
// leaf does not, or all purely numeric items would match each other. Input that is
// not JSON has no hash and takes no part.
func ContaminationHash(input canon.Raw) (hash canon.Hash, matches bool) {
	leaves, err := Leaves(input)
	if err != nil {
		return "", false
	}
	for _, l := range leaves {
		matches = matches || l != ""
	}
	return canon.HashOf([]byte(strings.Join(leaves, leafSeparator))), matches
}

// Leaves returns the strings of a JSON value, members' names aside, in canonical
// order and [Normal] form. Empty ones keep their place.
func Leaves(input canon.Raw) ([]string, error) {
	leaves, err := canon.Strings(input)
	for i, s := range leaves {
		leaves[i] = Normal(s)
	}
	return leaves, err
}

// Normal returns a text's normal form (HIP-1334 §3.4): lower case, every run of
// characters that are not alphanumeric one space, none at the ends. Nothing is
// composed or decomposed, so a combining accent splits the word it stands in.
//
// The characters are those of [UnicodeVersion], whatever version Go has, because a
// hash must not depend on the toolchain.
func Normal(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	gap := false
	for _, r := range lower(s) {
		if !unicode.Is(alphanumeric, r) {
			gap = true
			continue
		}
		if gap && b.Len() > 0 {
			b.WriteByte(' ')
		}
		gap = false
		b.WriteRune(r)
	}
	return b.String()
}

type lowerRange struct {
	lo, hi, stride rune
	delta          rune
}

// lower returns s in lower case as Rust's str::to_lowercase has it: character by
// character, but U+0130 becomes i and a combining dot, and a sigma that ends a word
// its final form.
func lower(s string) []rune {
	in := []rune(s)
	out := make([]rune, 0, len(in))
	for i, r := range in {
		switch r {
		case 'İ':
			out = append(out, 'i', '\u0307')
		case 'Σ':
			if endsWord(in, i) {
				out = append(out, 'ς')
			} else {
				out = append(out, 'σ')
			}
		default:
			out = append(out, lowerRune(r))
		}
	}
	return out
}

func lowerRune(r rune) rune {
	if r < 0x80 {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	i := sort.Search(len(lowerRanges), func(i int) bool { return lowerRanges[i].hi >= r })
	if i == len(lowerRanges) {
		return r
	}
	if l := lowerRanges[i]; l.lo <= r && (r-l.lo)%l.stride == 0 {
		return r + l.delta
	}
	return r
}

// endsWord reports whether the letter at text[i] has, past characters that case
// ignores, a cased one before it and none after it (Final_Sigma of the Unicode
// Standard, table 3-17).
func endsWord(text []rune, i int) bool {
	before := i - 1
	for before >= 0 && unicode.Is(caseIgnorable, text[before]) {
		before--
	}
	after := i + 1
	for after < len(text) && unicode.Is(caseIgnorable, text[after]) {
		after++
	}
	return before >= 0 && unicode.Is(cased, text[before]) &&
		(after == len(text) || !unicode.Is(cased, text[after]))
}
