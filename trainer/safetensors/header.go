package safetensors

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxHeader bounds the header in bytes, as the reference implementation does.
const maxHeader = 100_000_000

// maxRank bounds a shape. No model needs more; it keeps a header from being
// mostly one shape.
const maxRank = 32

// entry is one tensor of a header. Its bytes are data[begin:end].
type entry struct {
	name       string
	dtype      DType
	shape      []int
	begin, end uint64
}

// parseHeader reads a header and checks it against the size of the data that
// follows. It returns the tensors in the order of their data.
func parseHeader(src []byte, size uint64) ([]entry, map[string]string, error) {
	if !utf8.Valid(src) {
		return nil, nil, errors.New("header is not UTF-8")
	}
	p := &parser{src: src}
	var entries []entry
	var meta map[string]string
	seen := make(map[string]bool)
	err := p.object(func(name string) error {
		if seen[name] {
			return fmt.Errorf("tensor %q: named twice in the header", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			var err error
			meta, err = p.metadata()
			return err
		}
		e, err := p.entry(name)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	// Writers pad with spaces; nothing else may follow.
	if p.space(); p.pos != len(src) {
		return nil, nil, fmt.Errorf("header: unexpected %q after the object, at byte %d", src[p.pos], p.pos)
	}
	if err := checkLayout(entries, size); err != nil {
		return nil, nil, err
	}
	return entries, meta, nil
}

// checkLayout sorts entries by their place and checks that each holds what its
// shape says and that together they cover size bytes exactly.
func checkLayout(entries []entry, size uint64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		switch {
		case a.begin != b.begin && a.begin < b.begin, a.begin == b.begin && a.end < b.end:
			return -1
		case a.begin == b.begin && a.end == b.end:
			return strings.Compare(a.name, b.name)
		}
		return 1
	})
	var at uint64
	for _, e := range entries {
		want, err := byteSize(e.dtype, e.shape)
		switch {
		case err != nil:
			return fmt.Errorf("tensor %q: %w", e.name, err)
		case e.end < e.begin:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] run backwards", e.name, e.begin, e.end)
		case e.end-e.begin != want:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] hold %d bytes, but %s %v takes %d",
				e.name, e.begin, e.end, e.end-e.begin, e.dtype, e.shape, want)
		case e.begin < at:
			return fmt.Errorf("tensor %q: starts at byte %d of the data, inside the tensor before it, which ends at %d", e.name, e.begin, at)
		case e.begin > at:
			return fmt.Errorf("tensor %q: starts at byte %d of the data, but the tensor before it ends at %d: a gap", e.name, e.begin, at)
		case e.end > size:
			return fmt.Errorf("tensor %q: ends at byte %d of the data, but the file holds %d: it is truncated, copy it again", e.name, e.end, size)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("%d bytes after the last tensor", size-at)
	}
	return nil
}

// byteSize returns how many bytes a dense tensor takes.
func byteSize(d DType, shape []int) (uint64, error) {
	n := uint64(1)
	for _, dim := range shape {
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 {
			return 0, fmt.Errorf("shape %v overflows", shape)
		}
		n = lo
	}
	hi, lo := bits.Mul64(n, dtypeBits[d])
	if hi != 0 || lo > 1<<62 {
		return 0, fmt.Errorf("shape %v overflows", shape)
	}
	if lo%8 != 0 {
		return 0, fmt.Errorf("%s %v is not a whole number of bytes", d, shape)
	}
	return lo / 8, nil
}

// parser reads the one JSON document that a header may be: an object of objects
// of known members. Its depth is bounded by that grammar, and it refuses what a
// general decoder would let pass: duplicate members, numbers that are not plain
// integers, lone surrogates.
type parser struct {
	src []byte
	pos int
}

func (p *parser) space() {
	for p.pos < len(p.src) && strings.IndexByte(" \t\r\n", p.src[p.pos]) >= 0 {
		p.pos++
	}
}

// found names what stands at the cursor, for an error.
func (p *parser) found() string {
	if p.pos >= len(p.src) {
		return "the end of the header"
	}
	return fmt.Sprintf("%q at byte %d of the header", p.src[p.pos], p.pos)
}

// take consumes c if it comes next.
func (p *parser) take(c byte) bool {
	if p.space(); p.pos < len(p.src) && p.src[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) want(c byte) error {
	if !p.take(c) {
		return fmt.Errorf("want %q, found %s", c, p.found())
	}
	return nil
}

// object calls member with the cursor at each member's value.
func (p *parser) object(member func(name string) error) error {
	if err := p.want('{'); err != nil {
		return err
	}
	if p.take('}') {
		return nil
	}
	for {
		name, err := p.string()
		if err != nil {
			return err
		}
		if err := p.want(':'); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
		if p.take('}') {
			return nil
		}
		if err := p.want(','); err != nil {
			return err
		}
	}
}

func (p *parser) metadata() (map[string]string, error) {
	meta := make(map[string]string)
	err := p.object(func(name string) error {
		if _, dup := meta[name]; dup {
			return fmt.Errorf("__metadata__: %q is named twice", name)
		}
		v, err := p.string()
		if err != nil {
			return fmt.Errorf("__metadata__: %q: %w", name, err)
		}
		meta[name] = v
		return nil
	})
	return meta, err
}

func (p *parser) entry(name string) (entry, error) {
	e := entry{name: name}
	var dtype, shape, offsets bool
	err := p.object(func(member string) error {
		switch member {
		case "dtype":
			if dtype {
				return errors.New("dtype is given twice")
			}
			dtype = true
			s, err := p.string()
			if err != nil {
				return fmt.Errorf("dtype: %w", err)
			}
			if e.dtype = DType(s); dtypeBits[e.dtype] == 0 {
				return fmt.Errorf("unknown dtype %q", s)
			}
		case "shape":
			if shape {
				return errors.New("shape is given twice")
			}
			shape = true
			dims, err := p.integers(maxRank)
			if err != nil {
				return fmt.Errorf("shape: %w", err)
			}
			e.shape = make([]int, len(dims))
			for i, d := range dims {
				if d > 1<<62 {
					return fmt.Errorf("shape: %d overflows", d)
				}
				e.shape[i] = int(d)
			}
		case "data_offsets":
			if offsets {
				return errors.New("data_offsets is given twice")
			}
			offsets = true
			o, err := p.integers(2)
			if err != nil {
				return fmt.Errorf("data_offsets: %w", err)
			}
			if len(o) != 2 {
				return fmt.Errorf("data_offsets: want 2 numbers, found %d", len(o))
			}
			e.begin, e.end = o[0], o[1]
		default:
			return fmt.Errorf("unknown member %q", member)
		}
		return nil
	})
	if err != nil {
		return entry{}, err
	}
	for _, m := range []struct {
		name string
		has  bool
	}{{"dtype", dtype}, {"shape", shape}, {"data_offsets", offsets}} {
		if !m.has {
			return entry{}, fmt.Errorf("no %s", m.name)
		}
	}
	return e, nil
}

// integers reads an array of at most max non-negative integers.
func (p *parser) integers(max int) ([]uint64, error) {
	if err := p.want('['); err != nil {
		return nil, err
	}
	list := []uint64{}
	if p.take(']') {
		return list, nil
	}
	for {
		if len(list) == max {
			return nil, fmt.Errorf("more than %d numbers", max)
		}
		n, err := p.integer()
		if err != nil {
			return nil, err
		}
		list = append(list, n)
		if p.take(']') {
			return list, nil
		}
		if err := p.want(','); err != nil {
			return nil, err
		}
	}
}

func (p *parser) integer() (uint64, error) {
	p.space()
	start := p.pos
	var n uint64
	for ; p.pos < len(p.src) && '0' <= p.src[p.pos] && p.src[p.pos] <= '9'; p.pos++ {
		hi, lo := bits.Mul64(n, 10)
		sum, carry := bits.Add64(lo, uint64(p.src[p.pos]-'0'), 0)
		if hi|carry != 0 {
			return 0, fmt.Errorf("a number at byte %d of the header overflows", start)
		}
		n = sum
	}
	if p.pos == start || p.src[start] == '0' && p.pos > start+1 {
		p.pos = start
		return 0, fmt.Errorf("want a non-negative integer, found %s", p.found())
	}
	return n, nil
}

func (p *parser) string() (string, error) {
	if err := p.want('"'); err != nil {
		return "", err
	}
	var b []byte
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		p.pos++
		switch {
		case c == '"':
			return string(b), nil
		case c < ' ':
			p.pos--
			return "", fmt.Errorf("a string holds %s", p.found())
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		default:
			b = append(b, c)
		}
	}
	return "", errors.New("a string runs to the end of the header")
}

// escape reads what follows a backslash.
func (p *parser) escape() (rune, error) {
	at := p.pos - 1
	if p.pos < len(p.src) {
		c := p.src[p.pos]
		p.pos++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
		if c == 'u' {
			r, ok := p.hex4()
			if ok && utf16.IsSurrogate(r) {
				// Only a pair of escapes is a character.
				ok = p.pos+1 < len(p.src) && p.src[p.pos] == '\\' && p.src[p.pos+1] == 'u'
				if ok {
					p.pos += 2
					var low rune
					low, ok = p.hex4()
					r = utf16.DecodeRune(r, low)
					ok = ok && r != utf8.RuneError
				}
			}
			if ok {
				return r, nil
			}
		}
	}
	return 0, fmt.Errorf("a bad escape at byte %d of the header", at)
}

func (p *parser) hex4() (rune, bool) {
	if p.pos+4 > len(p.src) {
		return 0, false
	}
	var r rune
	for _, c := range p.src[p.pos : p.pos+4] {
		i := strings.IndexByte("0123456789abcdefABCDEF", c)
		if i < 0 {
			return 0, false
		}
		if i > 15 {
			i -= 6
		}
		r = r<<4 | rune(i)
	}
	p.pos += 4
	return r, true
}
