package canon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonicalize returns the canonical form of one JSON text. Its errors are
// *[Error]. Canonicalizing canonical bytes returns equal bytes.
func Canonicalize(src []byte) ([]byte, error) {
	return canonicalize(src, "", false)
}

// Without returns the canonical form of an object less one of its own members,
// which need not be there. A content-addressed record is hashed so, without its id.
func Without(src []byte, member string) ([]byte, error) {
	if Raw(src).Kind() != '{' {
		return nil, &Error{Err: fmt.Errorf("%s where an object is required", kindName(Raw(src).Kind()))}
	}
	return canonicalize(src, member, true)
}

// most is how large the canonical form of src may be.
func most(src []byte) int { return max(4*len(src), 1<<20) }

func canonicalize(src []byte, skip string, skipping bool) ([]byte, error) {
	d := decode(src)
	defer release(d)
	w := writer{
		d:        d,
		out:      make([]byte, 0, len(src)),
		limit:    most(src),
		members:  make([]member, 0, 16),
		skip:     skip,
		skipping: skipping,
	}
	if err := w.value(0); err != nil {
		return nil, err
	}
	if err := end(w.d); err != nil {
		return nil, err
	}
	return w.out, nil
}

// appendRaw appends the canonical form of a value that stands inside depth brackets.
func appendRaw(dst []byte, src Raw, depth int) ([]byte, error) {
	d := decode(src)
	defer release(d)
	w := writer{d: d, out: dst, limit: len(dst) + most(src)}
	if err := w.value(depth); err != nil {
		return nil, err
	}
	return w.out, end(w.d)
}

// Decoders are reused for the tables they keep. One that was released must not be
// used, nor what it returned and was not copied.
var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

func decode(src []byte) *jsontext.Decoder {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(src)) // which is read in place
	return d
}

func release(d *jsontext.Decoder) { decoders.Put(d) }

// end requires that d has nothing more to read.
func end(d *jsontext.Decoder) error {
	switch _, err := d.ReadToken(); err {
	case io.EOF:
		return nil
	case nil:
		return &Error{Err: errors.New("more than one JSON value")}
	default:
		return located(d, err)
	}
}

// located turns an error met while reading d into an *Error.
func located(d *jsontext.Decoder, err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax):
		if half := loneSurrogate(syntax.Err.Error()); half != "" {
			return &Error{string(syntax.JSONPointer), fmt.Errorf("lone surrogate `%s` in string (byte %d)", half, syntax.ByteOffset)}
		}
		return &Error{string(syntax.JSONPointer), fmt.Errorf("%w (byte %d)", syntax.Err, syntax.ByteOffset)}
	case err == io.EOF:
		return &Error{Err: io.ErrUnexpectedEOF}
	}
	return &Error{string(d.StackPointer()), err}
}

// loneSurrogate is the escape that jsontext's text calls an invalid surrogate
// pair. It quotes a fixed number of bytes after it, past the end of the string.
func loneSurrogate(text string) string {
	_, found, ok := strings.Cut(text, "invalid surrogate pair ")
	i := strings.Index(found, `\u`)
	if !ok || i < 0 || len(found) < i+6 {
		return ""
	}
	return found[i : i+6]
}

// A writer copies one JSON text to its canonical form.
type writer struct {
	d        *jsontext.Decoder
	out      []byte
	limit    int
	skip     string // the outermost object's member that is left out
	skipping bool

	members []member // of every open object, outermost first
	scratch []byte
}

// A member is "name":value at out[start:end].
type member struct {
	name       []byte // unescaped
	start, end int
}

// value copies the next value, which stands inside depth brackets.
func (w *writer) value(depth int) error {
	kind := w.d.PeekKind()
	switch kind {
	case '{', '[':
		if depth == MaxDepth {
			_, err := w.d.ReadToken() // so that the error names this value
			if err == nil {
				err = errDepth
			}
			return located(w.d, err)
		}
		if kind == '{' {
			return w.object(depth)
		}
		return w.array(depth)
	}
	v, err := w.d.ReadValue()
	if err != nil {
		return located(w.d, err)
	}
	switch kind {
	case '"':
		w.out, _ = appendQuoted(w.out, v)
	case '0':
		if w.out, err = appendNumber(w.out, v); err != nil {
			return located(w.d, err)
		}
	default: // null, true, false
		w.out = append(w.out, v...)
	}
	if len(w.out) > w.limit {
		return located(w.d, ErrTooLarge)
	}
	return nil
}

func (w *writer) array(depth int) error {
	if _, err := w.d.ReadToken(); err != nil {
		return located(w.d, err)
	}
	w.out = append(w.out, '[')
	for i := 0; w.d.PeekKind() != ']'; i++ {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.value(depth + 1); err != nil {
			return err
		}
	}
	if _, err := w.d.ReadToken(); err != nil {
		return located(w.d, err)
	}
	w.out = append(w.out, ']')
	return nil
}

func (w *writer) object(depth int) error {
	if _, err := w.d.ReadToken(); err != nil {
		return located(w.d, err)
	}
	first := len(w.members)
	w.out = append(w.out, '{')
	base := len(w.out)
	for w.d.PeekKind() != '}' {
		start := len(w.out)
		quoted, err := w.d.ReadValue()
		if err != nil {
			return located(w.d, err)
		}
		var name []byte
		w.out, name = appendQuoted(w.out, quoted)
		w.out = append(w.out, ':')
		if err := w.value(depth + 1); err != nil {
			return err
		}
		if w.skipping && depth == 0 && string(name) == w.skip {
			w.out = w.out[:start]
			continue
		}
		w.members = append(w.members, member{name, start, len(w.out)})
		w.out = append(w.out, ',')
	}
	if _, err := w.d.ReadToken(); err != nil {
		return located(w.d, err)
	}
	members := w.members[first:]
	byName := func(a, b member) int { return bytes.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		w.scratch = append(w.scratch[:0], w.out[base:]...)
		w.out = w.out[:base]
		for _, m := range members {
			w.out = append(w.out, w.scratch[m.start-base:m.end-base]...)
			w.out = append(w.out, ',')
		}
	}
	if len(members) > 0 {
		w.out = w.out[:len(w.out)-1] // the last comma
	}
	w.members = w.members[:first]
	w.out = append(w.out, '}')
	return nil
}

// appendQuoted appends a JSON string literal in canonical form and returns what it
// stands for. The literal is one that jsontext has accepted.
func appendQuoted(dst []byte, quoted Raw) (out, unescaped []byte) {
	if bytes.IndexByte(quoted, '\\') < 0 { // nothing that needs an escape is left
		n := len(dst)
		dst = append(dst, quoted...)
		return dst, dst[n+1 : len(dst)-1]
	}
	s, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		panic("canon: jsontext refused a string it had accepted: " + err.Error())
	}
	return appendString(dst, string(s)), s
}

// appendString appends s, which is valid UTF-8, as serde_json does: 34 code points
// are escaped, and all others stand for themselves.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	last := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[last:i]...)
		last = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\r':
			dst = append(dst, `\r`...)
		default:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[last:]...)
	return append(dst, '"')
}

// appendNumber appends a JSON number. Whether it is an integer is decided by how it
// is written: without point or exponent and within int64 or uint64.
func appendNumber(dst []byte, number Raw) ([]byte, error) {
	s := string(number)
	if s == "-0" {
		return append(dst, '0'), nil
	}
	if !strings.ContainsAny(s, ".eE") {
		if _, err := strconv.ParseUint(s, 10, 64); err == nil {
			return append(dst, s...), nil
		}
		if _, err := strconv.ParseInt(s, 10, 64); err == nil {
			return append(dst, s...), nil
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("%.40s overflows a float64", number)
	}
	n := len(dst)
	dst = appendFloat(dst, f)
	// Another spelling of the same float64 that is as short; see Ties.
	if short := dst[n:]; f != 0 && s != string(short) && positional(s) && digits(s) == digits(string(short)) {
		dst = append(dst[:n], s...)
	}
	return dst, nil
}

// appendFloat appends a finite float64.
func appendFloat(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0') // -0 too
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// positional reports whether a number is written without exponent and without
// zeros at the end of a fraction.
func positional(s string) bool {
	if strings.ContainsAny(s, "eE") {
		return false
	}
	return !strings.Contains(s, ".") || s[len(s)-1] != '0'
}

// digits counts the significant digits of a positional number.
func digits(s string) int {
	s = strings.TrimLeft(s, "-0.")
	if !strings.Contains(s, ".") {
		return len(strings.TrimRight(s, "0"))
	}
	return len(s) - 1
}

// kindName names a kind of JSON value for an error.
func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "no JSON value"
}
