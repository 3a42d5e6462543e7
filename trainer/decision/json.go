package decision

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hanzoai/link/spool/canon"
)

// object reads an object's members in the order in which they are written. Their
// values are checked when they are read in turn.
func object(raw canon.Raw) ([]canon.Member, error) {
	if k := kindOf(raw); k != '{' {
		return nil, fmt.Errorf("is %s, not an object", kindName(k))
	}
	return canon.Members(raw)
}

// array reads a list's elements.
func array(raw canon.Raw) ([]canon.Raw, error) {
	if k := kindOf(raw); k != '[' {
		return nil, fmt.Errorf("is %s, not a list", kindName(k))
	}
	var list []canon.Raw
	err := canon.Unmarshal(raw, &list)
	return list, err
}

// text reads a string.
func text(raw canon.Raw) (string, error) {
	if k := kindOf(raw); k != '"' {
		return "", fmt.Errorf("is %s, not a string", kindName(k))
	}
	var s string
	err := canon.Unmarshal(raw, &s)
	return s, err
}

// rendered is a string's value, and the canonical JSON of anything else.
func rendered(raw canon.Raw) (string, error) {
	if kindOf(raw) == '"' {
		return text(raw)
	}
	b, err := canon.Canonicalize(raw)
	return string(b), err
}

// quote writes a string or a list of them as canonical JSON. They are UTF-8,
// having been read from JSON.
func quote[S string | []string](s S) []byte {
	b, err := canon.Marshal(s)
	if err != nil {
		panic("decision: writing strings that were read: " + err.Error())
	}
	return b
}

// An objectWriter puts canonical members together; they are added in code-point
// order of their names.
type objectWriter struct {
	b     []byte
	empty bool
}

func newObject() *objectWriter { return &objectWriter{b: []byte{'{'}, empty: true} }

func (o *objectWriter) add(name string, value canon.Raw) {
	if !o.empty {
		o.b = append(o.b, ',')
	}
	o.empty = false
	o.b = append(o.b, quote(name)...)
	o.b = append(o.b, ':')
	o.b = append(o.b, value...)
}

func (o *objectWriter) close() canon.Raw { return append(o.b, '}') }

// kindOf is the first byte of a JSON value, '0' for any number, 't' for true
// and false; 0 for nothing.
func kindOf(raw canon.Raw) byte {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return 0
	}
	switch c := raw[0]; c {
	case 'f':
		return 't'
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return '0'
	default:
		return c
	}
}

// kindName says in words what kindOf found.
func kindName(kind byte) string {
	switch kind {
	case 0:
		return "nothing"
	case 'n':
		return "null"
	case 't':
		return "true or false"
	case '0':
		return "a number"
	case '"':
		return "a string"
	case '[':
		return "a list"
	case '{':
		return "an object"
	}
	return "not JSON"
}

var errEmptyState = errors.New("state is empty")

// State is the text of a state: a string itself, and the canonical JSON of an
// object or a list. As in a request, a number, true, false and null are
// refused, and so is a state that holds nothing: white space, {} or [].
func State(raw canon.Raw) (string, error) {
	switch kind := kindOf(raw); kind {
	case '"':
		s, err := text(raw)
		if err != nil {
			return "", fmt.Errorf("state: %w", err)
		}
		if blank(s) {
			return "", errEmptyState
		}
		return s, nil
	case '{', '[':
		b, err := canon.Canonicalize(raw)
		if err != nil {
			return "", fmt.Errorf("state: %w", err)
		}
		if len(b) == 2 {
			return "", errEmptyState
		}
		return string(b), nil
	case 0:
		return "", errors.New("state is missing")
	default:
		return "", fmt.Errorf("state is %s; it must be a string, an object or a list", kindName(kind))
	}
}
