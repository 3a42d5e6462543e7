package policycmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// span is where a value stands in a text, and under what name.
type span struct {
	name       string
	start, end int
}

// members finds the values of the object or array at s in src, in their order. The
// text is JSON, as [policy.Parse] has found.
func members(src []byte, s span) ([]span, error) {
	dec := json.NewDecoder(bytes.NewReader(src[s.start:s.end]))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	var all []span
	for dec.More() {
		var m span
		if open == json.Delim('{') {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			m.name, _ = key.(string)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		m.end = s.start + int(dec.InputOffset())
		m.start = m.end - len(value)
		all = append(all, m)
	}
	return all, nil
}

// whole is the object that a policy is.
func whole(src []byte) span {
	return span{start: bytes.IndexByte(src, '{'), end: bytes.LastIndexByte(src, '}') + 1}
}

func splice(src []byte, start, end int, with string) []byte {
	return slices.Concat(src[:start], []byte(with), src[end:])
}

// put gives a member of the object at s a value, and leaves every other byte: where the
// member stands already, its value alone is replaced, else it is added at the end, set
// out as the member before it is.
func put(src []byte, s span, name, value string) ([]byte, error) {
	all, err := members(src, s)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(m span) bool { return m.name == name }); i >= 0 {
		return splice(src, all[i].start, all[i].end, value), nil
	}
	if len(all) == 0 {
		return splice(src, s.start, s.end, fmt.Sprintf("{%q: %s}", name, value)), nil
	}
	last := all[len(all)-1].end
	return splice(src, last, last, fmt.Sprintf(",%s%q: %s", lead(src, s.start+1, " "), name, value)), nil
}

// lead is the white space at a place: between a bracket and what it begins with. On one
// line it is what stands after a comma.
func lead(src []byte, at int, line string) string {
	n := 0
	for n < len(src)-at && strings.IndexByte(" \t\r\n", src[at+n]) >= 0 {
		n++
	}
	if space := string(src[at : at+n]); strings.Contains(space, "\n") {
		return space
	}
	return line
}

// member is where a member of the policy stands; false: it is absent.
func member(src []byte, name string) (span, bool, error) {
	all, err := members(src, whole(src))
	if err != nil {
		return span{}, false, err
	}
	for _, m := range all {
		if m.name == name {
			return m, true, nil
		}
	}
	return span{}, false, nil
}

// allow adds a kind to the kinds of a policy's text.
func allow(src []byte, kind string) ([]byte, error) {
	quoted := strconv.Quote(kind)
	list, there, err := member(src, "kinds")
	if err != nil {
		return nil, err
	}
	if !there {
		return put(src, whole(src), "kinds", "["+quoted+"]")
	}
	all, err := members(src, list)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return splice(src, list.start, list.end, "["+quoted+"]"), nil
	}
	last := all[len(all)-1].end
	return splice(src, last, last, ","+lead(src, list.start+1, " ")+quoted), nil
}

// deny takes a kind out of them.
func deny(src []byte, kind string) ([]byte, error) {
	list, there, err := member(src, "kinds")
	if err != nil || !there {
		return src, err
	}
	all, err := members(src, list)
	if err != nil {
		return nil, err
	}
	for i, m := range all {
		var name string
		if err := json.Unmarshal(src[m.start:m.end], &name); err != nil {
			return nil, err
		}
		switch {
		case name != kind:
		case len(all) == 1:
			return splice(src, list.start, list.end, "[]"), nil
		case i == 0:
			return splice(src, m.start, all[1].start, ""), nil
		default:
			return splice(src, all[i-1].end, m.end, ""), nil
		}
	}
	return src, nil
}

// putCap gives one of the caps a value.
func putCap(src []byte, name string, value int64) ([]byte, error) {
	caps, there, err := member(src, "caps")
	if err != nil {
		return nil, err
	}
	number := strconv.FormatInt(value, 10)
	if !there {
		return put(src, whole(src), "caps", fmt.Sprintf("{%q: %s}", name, number))
	}
	return put(src, caps, name, number)
}
