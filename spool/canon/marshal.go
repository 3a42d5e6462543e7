package canon

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Marshal returns the canonical JSON of a Go value. Nothing is left out: a nil
// pointer is null, a nil slice [] and a nil map {}, unless tagged ",omitzero".
// A type with MarshalJSON speaks for itself and is canonicalized.
//
// It refuses what would not read back: NaN and infinities ([ErrNotFinite]), strings
// that are not UTF-8, and values that their type's Valid denies. It also refuses
// float32, whose shortest digits are not those of the same number as a float64.
// Errors are *[Error] naming the field.
func Marshal(v any) ([]byte, error) {
	return appendValue(nil, reflect.ValueOf(v), 0)
}

func appendValue(dst []byte, v reflect.Value, depth int) ([]byte, error) {
	if !v.IsValid() {
		return append(dst, "null"...), nil
	}
	t := v.Type()
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		if v.IsNil() {
			return append(dst, "null"...), nil
		}
		return appendValue(dst, v.Elem(), depth)
	}
	s := shapeOf(t)
	if s.marshal {
		b, err := v.Interface().(json.Marshaler).MarshalJSON()
		if err != nil {
			return nil, within("", err)
		}
		return appendRaw(dst, b, depth)
	}
	switch t.Kind() {
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(dst, v.Uint(), 10), nil
	case reflect.Float64:
		if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return appendFloat(dst, f), nil
		}
		return nil, &Error{Err: ErrNotFinite}
	case reflect.String:
		if s.valid && !v.Interface().(validator).Valid() {
			return nil, &Error{Err: fmt.Errorf("%.80q is not a %v", v.String(), t)}
		}
		if !utf8.ValidString(v.String()) {
			return nil, &Error{Err: errors.New("string is not valid UTF-8")}
		}
		return appendString(dst, v.String()), nil
	}
	if depth == MaxDepth {
		return nil, &Error{Err: errDepth}
	}
	switch t.Kind() {
	case reflect.Slice:
		return appendSlice(dst, v, depth)
	case reflect.Map:
		return appendMap(dst, v, depth)
	case reflect.Struct:
		return appendStruct(dst, v, s, depth)
	}
	return nil, &Error{Err: fmt.Errorf("a Go %v has no canonical form", t)}
}

func appendSlice(dst []byte, v reflect.Value, depth int) ([]byte, error) {
	dst = append(dst, '[')
	for i := range v.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendValue(dst, v.Index(i), depth+1); err != nil {
			return nil, under(strconv.Itoa(i), err)
		}
	}
	return append(dst, ']'), nil
}

func appendMap(dst []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Type().Key().Kind() != reflect.String {
		return nil, &Error{Err: fmt.Errorf("a Go %v has no canonical form: its keys are not strings", v.Type())}
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !utf8.ValidString(k.String()) {
			return nil, &Error{Err: fmt.Errorf("member name %q is not valid UTF-8", k.String())}
		}
		dst = append(appendString(dst, k.String()), ':')
		var err error
		if dst, err = appendValue(dst, v.MapIndex(k), depth+1); err != nil {
			return nil, under(k.String(), err)
		}
	}
	return append(dst, '}'), nil
}

func appendStruct(dst []byte, v reflect.Value, s *shape, depth int) ([]byte, error) {
	dst = append(dst, '{')
	first := len(dst)
	for i := range s.fields {
		f := &s.fields[i]
		fv := v.FieldByIndex(f.index)
		if f.omitzero && fv.IsZero() {
			continue
		}
		if len(dst) > first {
			dst = append(dst, ',')
		}
		dst = append(dst, f.quoted...)
		var err error
		if dst, err = appendValue(dst, fv, depth+1); err != nil {
			return nil, under(f.name, err)
		}
	}
	return append(dst, '}'), nil
}

// under places err inside the member or element called name.
func under(name string, err error) error {
	return within("/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), err)
}
