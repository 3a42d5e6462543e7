package canon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Unmarshal reads one JSON text into *v, strictly; see the package comment and
// [Marshal], whose output it reads back. What v held before does not matter. Raw
// fields keep their bytes as written, and are copies. Errors are *[Error]; after
// one, *v is not to be used.
func Unmarshal(src []byte, v any) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		panic(fmt.Sprintf("canon: Unmarshal into %T, which is not a pointer", v))
	}
	r := reader{decode(src), src}
	defer release(r.Decoder)
	if err := r.value(p.Elem()); err != nil {
		return err
	}
	return end(r.Decoder)
}

type reader struct {
	*jsontext.Decoder
	src []byte // what it decodes
}

// refuse places an error at the value read last.
func (r reader) refuse(format string, args ...any) error {
	return &Error{string(r.StackPointer()), fmt.Errorf(format, args...)}
}

func (r reader) value(v reflect.Value) error {
	t := v.Type()
	s := shapeOf(t)
	switch {
	case s.unmarshal:
		return r.unmarshaler(v)
	case t.Kind() == reflect.Pointer:
		if r.PeekKind() == 'n' {
			v.SetZero()
			_, err := r.ReadToken()
			return r.located(err)
		}
		p := reflect.New(t.Elem())
		v.Set(p)
		return r.value(p.Elem())
	}
	if r.PeekKind() != '[' && r.PeekKind() != '{' {
		return r.scalar(v, s)
	}
	open, err := r.ReadToken()
	switch {
	case err != nil:
		return r.located(err)
	case r.StackDepth() > MaxDepth:
		return r.refuse("%w", errDepth)
	case open.Kind() == '[' && t.Kind() == reflect.Slice:
		return r.array(v)
	case open.Kind() == '{' && t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return r.dict(v)
	case open.Kind() == '{' && t.Kind() == reflect.Struct:
		return r.object(v, s)
	}
	return r.refuse("%s where %s is required", kindName(open.Kind()), typeName(t))
}

func (r reader) located(err error) error {
	if err == nil {
		return nil
	}
	return located(r.Decoder, err)
}

func (r reader) unmarshaler(v reflect.Value) error {
	raw, err := r.raw()
	if err != nil {
		return err
	}
	v.SetZero() // a Raw would write over the bytes it held
	if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw); err != nil {
		return within(string(r.StackPointer()), err)
	}
	return nil
}

// raw reads a value of any shape, which is returned as written. It goes through it
// for what jsontext does not check: depth, and numbers that overflow.
func (r reader) raw() (Raw, error) {
	start, outside := r.InputOffset(), r.StackDepth()
	for {
		var err error
		switch kind := r.PeekKind(); kind {
		case '{', '[', '}', ']':
			if _, err = r.ReadToken(); err == nil && r.StackDepth() > MaxDepth {
				err = errDepth
			}
		default:
			var v Raw
			if v, err = r.ReadValue(); err == nil && kind == '0' && overflows(v) {
				err = fmt.Errorf("%.40s overflows a float64", v)
			}
		}
		if err != nil {
			return nil, r.located(err)
		}
		if r.StackDepth() <= outside {
			return bytes.TrimLeft(r.src[start:r.InputOffset()], " \t\r\n:,"), nil
		}
	}
}

// overflows reports whether a number is no float64: not without an exponent or 309
// digits.
func overflows(number Raw) bool {
	if len(number) < 309 && !bytes.ContainsAny(number, "eE") {
		return false
	}
	_, err := strconv.ParseFloat(string(number), 64)
	return err != nil
}

func (r reader) scalar(v reflect.Value, s *shape) error {
	tok, err := r.ReadToken()
	if err != nil {
		return r.located(err)
	}
	t, kind := v.Type(), tok.Kind()
	mismatch := func() error {
		return r.refuse("%s where %s is required", kindName(kind), typeName(t))
	}
	switch t.Kind() {
	case reflect.Bool:
		if kind != 't' && kind != 'f' {
			return mismatch()
		}
		v.SetBool(tok.Bool())
	case reflect.String:
		if kind != '"' {
			return mismatch()
		}
		v.SetString(tok.String())
		if s.valid && !v.Interface().(validator).Valid() {
			return r.refuse("%.80q is not a %v", v.String(), t)
		}
	case reflect.Float64:
		if kind != '0' {
			return mismatch()
		}
		f, err := strconv.ParseFloat(tok.String(), 64)
		if err != nil || math.IsInf(f, 0) {
			return r.refuse("%.40s overflows a float64", tok)
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if kind != '0' {
			return mismatch()
		}
		n, err := strconv.ParseInt(tok.String(), 10, t.Bits())
		if err != nil {
			return r.refuse("%.40s is not an integer within %v", tok, t.Kind())
		}
		v.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if kind != '0' {
			return mismatch()
		}
		n, err := strconv.ParseUint(tok.String(), 10, t.Bits())
		if err != nil {
			return r.refuse("%.40s is not an integer within %v", tok, t.Kind())
		}
		v.SetUint(n)
	default:
		return mismatch()
	}
	return nil
}

func (r reader) array(v reflect.Value) error {
	t := v.Type()
	v.Set(reflect.MakeSlice(t, 0, 0))
	for r.PeekKind() != ']' {
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		if err := r.value(v.Index(v.Len() - 1)); err != nil {
			return err
		}
	}
	_, err := r.ReadToken()
	return r.located(err)
}

func (r reader) dict(v reflect.Value) error {
	t := v.Type()
	v.Set(reflect.MakeMap(t))
	for r.PeekKind() != '}' {
		name, err := r.ReadToken()
		if err != nil {
			return r.located(err)
		}
		key := reflect.ValueOf(name.String()).Convert(t.Key())
		elem := reflect.New(t.Elem()).Elem()
		if err := r.value(elem); err != nil {
			return err
		}
		v.SetMapIndex(key, elem)
	}
	_, err := r.ReadToken()
	return r.located(err)
}

func (r reader) object(v reflect.Value, s *shape) error {
	v.SetZero()
	var seen uint64 // bit i: s.fields[i]
	for r.PeekKind() != '}' {
		tok, err := r.ReadToken()
		if err != nil {
			return r.located(err)
		}
		name := tok.String()
		i, ok := s.byName[name]
		if !ok {
			return r.refuse("unknown member; %s", known(s))
		}
		seen |= 1 << i
		if err := r.value(v.FieldByIndex(s.fields[i].index)); err != nil {
			return err
		}
	}
	if _, err := r.ReadToken(); err != nil {
		return r.located(err)
	}
	for i, f := range s.fields {
		if seen&(1<<i) == 0 && !f.optional {
			return within(string(r.StackPointer()), under(f.name, errMissing))
		}
	}
	return nil
}

// known lists a struct's members for the person who misspelt one.
func known(s *shape) string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.name
	}
	return fmt.Sprintf("known are %q", slices.Clip(names))
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		return "an integer"
	}
	return "a value that a Go " + t.String() + " can hold"
}
