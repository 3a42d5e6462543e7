package canon

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// A shape is what Marshal and Unmarshal know about a Go type; the package comment
// says what it means.
type shape struct {
	fields    []field // of a struct, sorted by name
	byName    map[string]int
	marshal   bool // has MarshalJSON
	unmarshal bool // its pointer has UnmarshalJSON
	valid     bool // is a string with Valid
}

type field struct {
	name     string
	quoted   string // "name":
	index    []int
	optional bool
	omitzero bool
}

type validator interface{ Valid() bool }

var (
	rawType         = reflect.TypeFor[Raw]()
	marshalerType   = reflect.TypeFor[json.Marshaler]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
	validatorType   = reflect.TypeFor[validator]()
	shapes          sync.Map // reflect.Type to *shape
)

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := &shape{
		marshal:   t.Implements(marshalerType),
		unmarshal: reflect.PointerTo(t).Implements(unmarshalerType),
		valid:     t.Kind() == reflect.String && t.Implements(validatorType),
	}
	if t.Kind() == reflect.Struct {
		s.fields = structFields(t, nil)
		slices.SortFunc(s.fields, func(a, b field) int { return cmp.Compare(a.name, b.name) })
		s.byName = make(map[string]int, len(s.fields))
		for i, f := range s.fields {
			if _, ok := s.byName[f.name]; ok {
				panic(fmt.Sprintf("canon: %v has two fields named %q", t, f.name))
			}
			s.byName[f.name] = i
		}
		if len(s.fields) > 64 {
			panic(fmt.Sprintf("canon: %v has more than 64 fields", t))
		}
	}
	actual, _ := shapes.LoadOrStore(t, s)
	return actual.(*shape)
}

func structFields(t reflect.Type, outer []int) []field {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(slices.Clone(outer), i)
		inline := f.Type.Kind() == reflect.Struct && (options == "inline" || f.Anonymous && name == "")
		switch {
		case inline:
			fields = append(fields, structFields(f.Type, index)...)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		omitzero := options == "omitzero"
		fields = append(fields, field{
			name:     name,
			quoted:   string(appendString(nil, name)) + ":",
			index:    index,
			optional: omitzero || f.Type == rawType || f.Type.Kind() == reflect.Pointer,
			omitzero: omitzero,
		})
	}
	return fields
}
