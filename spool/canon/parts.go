package canon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// A Member is one name and value of an object.
type Member struct {
	Name  string
	Value Raw
}

// Members returns an object's members in the order they are written, which a map
// would lose.
func Members(object Raw) ([]Member, error) {
	d := decode(object)
	defer release(d)
	tok, err := d.ReadToken()
	if err != nil {
		return nil, located(d, err)
	}
	if tok.Kind() != '{' {
		return nil, &Error{Err: fmt.Errorf("%s where an object is required", kindName(tok.Kind()))}
	}
	members := []Member{}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, located(d, err)
		}
		m := Member{Name: name.String()}
		value, err := d.ReadValue()
		if err != nil {
			return nil, located(d, err)
		}
		m.Value = value.Clone()
		members = append(members, m)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, located(d, err)
	}
	return members, end(d)
}

// Tag returns the string that an object holds under a name: what tells apart the
// variants of a closed union before it is known which one to read.
func Tag(object Raw, name string) (string, error) {
	d := decode(object)
	defer release(d)
	tok, err := d.ReadToken()
	if err != nil {
		return "", located(d, err)
	}
	if tok.Kind() != '{' {
		return "", &Error{Err: fmt.Errorf("%s where an object is required", kindName(tok.Kind()))}
	}
	for d.PeekKind() == '"' {
		tok, err := d.ReadToken()
		if err != nil {
			return "", located(d, err)
		}
		if tok.String() != name {
			if err := d.SkipValue(); err != nil {
				return "", located(d, err)
			}
			continue
		}
		tok, err = d.ReadToken()
		if err != nil {
			return "", located(d, err)
		}
		if tok.Kind() != '"' {
			return "", located(d, fmt.Errorf("%s where a string is required", kindName(tok.Kind())))
		}
		return tok.String(), nil
	}
	return "", under(name, errMissing)
}

// Strings returns the strings of a JSON value, members' names aside, in the order
// of its canonical form.
func Strings(src Raw) ([]string, error) {
	c, err := Canonicalize(src)
	if err != nil {
		return nil, err
	}
	d := decode(c)
	defer release(d)
	var found []string
	for {
		tok, err := d.ReadToken()
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return nil, located(d, err)
		}
		in, n := d.StackIndex(d.StackDepth())
		if name := in == '{' && n%2 == 1; tok.Kind() == '"' && !name {
			found = append(found, tok.String())
		}
	}
}

// A Line is one line of a newline-delimited text.
type Line struct {
	N     int    // from 1
	Bytes []byte // without its newline; valid until the next line is read
}

// Lines reads r line by line; the last line need not end in a newline. A line
// longer than limit bytes, or a failing read, ends the sequence with an error that
// names the line.
func Lines(r io.Reader, limit int) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		s := bufio.NewScanner(r)
		s.Buffer(nil, limit+1) // room for the newline
		// bufio.ScanLines, but that it leaves a carriage return where it is, and
		// what a failed read has torn off is no line.
		s.Split(func(data []byte, atEOF bool) (advance int, token []byte, err error) {
			if i := bytes.IndexByte(data, '\n'); i >= 0 {
				return i + 1, data[:i], nil
			}
			if atEOF && len(data) > 0 && s.Err() == nil {
				return len(data), data, nil
			}
			return 0, nil, nil
		})
		n := 0
		for s.Scan() {
			n++
			if !yield(Line{n, s.Bytes()}, nil) {
				return
			}
		}
		if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
			yield(Line{N: n + 1}, fmt.Errorf("line %d: longer than %d bytes", n+1, limit))
		} else if err != nil {
			yield(Line{N: n + 1}, fmt.Errorf("line %d: %w", n+1, err))
		}
	}
}
