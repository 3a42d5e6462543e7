package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// object is a JSON object of a tokenizer.json being read. It knows where it
// stands, keeps the first error, and in the end refuses members that nobody
// read: a setting that this package does not know may change every id.
type object struct {
	at      string // a JSON pointer without its leading slash
	members map[string]json.RawMessage
	read    []string
	err     error
}

// fail records an error about this object, unless there is one.
func (o *object) fail(format string, args ...any) {
	if o.err != nil {
		return
	}
	o.err = fmt.Errorf(format, args...)
	if o.at != "" {
		o.err = fmt.Errorf("%s: %w", o.at, o.err)
	}
}

// unknown refuses a component by its name.
func (o *object) unknown(kind, typ string) {
	if typ == "" {
		o.fail("the %s has no type", kind)
		return
	}
	o.fail("the %s %q is not supported", kind, typ)
}

// done returns the first error, or one about the first member nobody read. A
// null asks for nothing.
func (o *object) done() error {
	if o.err == nil {
		for _, name := range slices.Sorted(maps.Keys(o.members)) {
			if o.has(name) && !slices.Contains(o.read, name) {
				o.fail("unknown member %q", name)
				break
			}
		}
	}
	return o.err
}

// adopt takes over what a member, read whole, found wrong.
func (o *object) adopt(part *object) {
	part.done()
	o.adoptErr(part)
}

// adoptErr takes over the error of a member of which more is to be read, or of
// which not all matters.
func (o *object) adoptErr(part *object) {
	if o.err == nil {
		o.err = part.err
	}
}

// raw returns a member. null counts as absent.
func (o *object) raw(name string) (json.RawMessage, bool) {
	o.read = append(o.read, name)
	return o.members[name], o.has(name)
}

func (o *object) has(name string) bool {
	m, ok := o.members[name]
	return ok && string(m) != "null"
}

// value reads a member into v and reports whether it is there.
func (o *object) value(name, want string, v any) bool {
	raw, ok := o.raw(name)
	if ok && json.Unmarshal(raw, v) != nil {
		o.fail("%s: want %s", name, want)
		return false
	}
	return ok
}

func (o *object) text(name string) string {
	var s string
	if !o.value(name, "a string", &s) {
		o.fail("%s is missing", name)
	}
	return s
}

func (o *object) textOr(name, absent string) string {
	s := absent
	o.value(name, "a string", &s)
	return s
}

// character reads a string of one character.
func (o *object) character(name string) string {
	s := o.text(name)
	if utf8.RuneCountInString(s) != 1 {
		o.fail("%s: want one character, found %q", name, s)
	}
	return s
}

func (o *object) flag(name string, absent bool) bool {
	b := absent
	o.value(name, "true or false", &b)
	return b
}

func (o *object) number(name string, absent float64) float64 {
	f := absent
	o.value(name, "a number", &f)
	return f
}

// integer reads a whole number from 0 to 2^31-1.
func (o *object) integer(name string, absent int) int {
	f := o.number(name, float64(absent))
	if o.has(name) && (f != math.Trunc(f) || f < 0 || f > math.MaxInt32) {
		o.fail("%s: %v is not a whole number that makes sense", name, f)
		return absent
	}
	return int(f)
}

func (o *object) object(name string) *object {
	part := &object{at: o.place(name)}
	if !o.value(name, "an object", &part.members) {
		o.fail("%s is missing", name)
	}
	return part
}

func (o *object) list(name string) []*object {
	var raw []map[string]json.RawMessage
	if !o.value(name, "a list of objects", &raw) {
		o.fail("%s is missing", name)
	}
	var list []*object
	for i, members := range raw {
		list = append(list, &object{at: fmt.Sprintf("%s/%d", o.place(name), i), members: members})
	}
	return list
}

func (o *object) place(name string) string {
	if o.at == "" {
		return name
	}
	return o.at + "/" + name
}

// pattern reads {"String": …} or {"Regex": …}.
func (o *object) pattern() pattern {
	p := o.object("pattern")
	var find pattern
	switch {
	case p.has("String"):
		s := p.text("String")
		if s == "" {
			p.fail("String is empty")
		}
		find = literal(s)
	case p.has("Regex"):
		var err error
		if find, err = expression(p.text("Regex")); err != nil {
			p.fail("%w", err)
		}
	default:
		p.fail("want a String or a Regex")
	}
	o.adopt(p)
	return find
}

// behavior reads what becomes of a match.
func (o *object) behavior(absent string) string {
	b := o.textOr("behavior", absent)
	switch b {
	case "Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext":
	default:
		o.fail("behavior %q is not known", b)
	}
	return b
}
