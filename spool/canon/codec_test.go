package canon

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type colour string

func (c colour) Valid() bool { return c == "red" || c == "blue" }

// A variant speaks for itself, as the unions of gate and event do.
type variant struct{ N int }

func (v variant) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{"n": v.N}) }
func (v *variant) UnmarshalJSON(b []byte) error {
	var s struct {
		N int `json:"n"`
	}
	if err := Unmarshal(b, &s); err != nil {
		return err
	}
	v.N = s.N
	return nil
}

type head struct {
	ID string `json:"id,omitzero"`
}

type tail struct {
	Z bool `json:"z"`
}

type sample struct {
	head
	Name    string            `json:"name"`
	Colour  colour            `json:"colour"`
	Count   uint64            `json:"count"`
	Small   int8              `json:"small"`
	Value   float64           `json:"value"`
	Maybe   *float64          `json:"maybe"`
	List    []string          `json:"list"`
	Map     map[string]uint32 `json:"map"`
	Raw     Raw               `json:"raw"`
	Variant *variant          `json:"variant"`
	Tail    tail              `json:",inline"`
	private int
}

func full() sample {
	half := 0.5
	return sample{
		head: head{"x"}, Name: "né\"", Colour: "red", Count: math.MaxUint64, Small: -128, Value: 1e-7, Maybe: &half,
		List: []string{"b", "a"}, Map: map[string]uint32{"😀": 1, "！": 2}, Raw: Raw(`{"b":1e2,"a":[]}`),
		Variant: &variant{3}, Tail: tail{true},
	}
}

const fullJSON = `{"colour":"red","count":18446744073709551615,"id":"x","list":["b","a"],"map":{"！":2,"😀":1},"maybe":0.5,` +
	`"name":"né\"","raw":{"a":[],"b":100},"small":-128,"value":0.0000001,"variant":{"n":3},"z":true}`

func TestMarshal(t *testing.T) {
	got, err := Marshal(full())
	if err != nil || string(got) != fullJSON {
		t.Errorf("Marshal = %s, %v\nwant %s", got, err, fullJSON)
	}
	again, err := Canonicalize(got)
	if err != nil || string(again) != string(got) {
		t.Errorf("Canonicalize of what Marshal wrote = %s, %v", again, err)
	}
	// Every optional field is written, and empty is not absent.
	got, err = Marshal(sample{Colour: "blue"})
	want := `{"colour":"blue","count":0,"list":[],"map":{},"maybe":null,"name":"","raw":null,"small":0,"value":0,"variant":null,"z":false}`
	if err != nil || string(got) != want {
		t.Errorf("Marshal of an empty value = %s, %v\nwant %s", got, err, want)
	}
}

func TestMarshalRefuses(t *testing.T) {
	bad := func(change func(*sample)) sample { s := full(); change(&s); return s }
	nan := math.NaN()
	tests := []struct {
		name string
		v    any
		want string
	}{
		{"NaN", bad(func(s *sample) { s.Value = nan }), "/value: number is not finite"},
		{"infinity behind a pointer", bad(func(s *sample) { inf := math.Inf(-1); s.Maybe = &inf }), "/maybe: number is not finite"},
		{"NaN in a list", map[string][]float64{"a/b~": {1, nan}}, "/a~1b~0/1: number is not finite"},
		{"NaN under an empty name", map[string]float64{"": nan}, "/: number is not finite"},
		{"not UTF-8", bad(func(s *sample) { s.List[1] = "\xff" }), "/list/1: string is not valid UTF-8"},
		{"not UTF-8 in a name", map[string]int{"\xff": 1}, "not valid UTF-8"},
		{"outside the enumeration", bad(func(s *sample) { s.Colour = "green" }), `/colour: "green" is not a canon.colour`},
		{"Raw that is not JSON", bad(func(s *sample) { s.Raw = Raw(`{"x":01}`) }), "/raw: "},
		{"float32", map[string]float32{"f": 0.1}, "/f: a Go float32 has no canonical form"},
		{"channel", make(chan int), "has no canonical form"},
		{"keys that are not strings", map[int]int{}, "keys are not strings"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Marshal(tt.v)
			var at *Error
			if !errors.As(err, &at) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Marshal = %s, %v; want an *Error with %q", got, err, tt.want)
			}
		})
	}
	if _, err := Marshal(nan); !errors.Is(err, ErrNotFinite) {
		t.Errorf("Marshal(NaN): %v, want ErrNotFinite", err)
	}
}

func TestUnmarshal(t *testing.T) {
	var got sample
	got.private = 7
	if err := Unmarshal([]byte(fullJSON), &got); err != nil {
		t.Fatal(err)
	}
	want := full()
	want.Raw = Raw(`{"a":[],"b":100}`)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sample{})); diff != "" {
		t.Errorf("Unmarshal (-want +got):\n%s", diff)
	}

	// Pointers, Raw and omitzero fields may be absent; Raw keeps its spelling.
	got = full()
	in := ` {"z": false, "name": "", "colour": "blue", "count": 0, "small": 0, "value": 3, "list": [], "map": {}, "raw": [1e2, "\u0041"]} `
	if err := Unmarshal([]byte(in), &got); err != nil {
		t.Fatal(err)
	}
	if got.ID != "" || got.Maybe != nil || got.Variant != nil || string(got.Raw) != `[1e2, "\u0041"]` || got.Value != 3 || len(got.List) != 0 {
		t.Errorf("Unmarshal = %+v", got)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	type pair struct{ old, new string }
	tests := []struct {
		name   string
		change pair // in fullJSON
		want   string
	}{
		{"unknown member", pair{`"z":true`, `"z":true,"zz":1`}, `/zz: unknown member; known are ["colour" "count"`},
		{"wrong case", pair{`"name"`, `"Name"`}, "/Name: unknown member"},
		{"duplicate", pair{`"z":true`, `"z":true,"z":true`}, "/z: duplicate"},
		{"missing", pair{`"count":18446744073709551615,`, ``}, "/count: member is missing"},
		{"missing from the inlined struct", pair{`,"z":true`, ``}, "/z: member is missing"},
		{"null for a string", pair{`"né\""`, `null`}, "/name: null where a string is required"},
		{"null for a number", pair{`0.0000001`, `null`}, "/value: null where a number is required"},
		{"null for a list", pair{`["b","a"]`, `null`}, "/list: null where an array is required"},
		{"null for a map", pair{`{"！":2,"😀":1}`, `null`}, "/map: null where an object is required"},
		{"null in a list", pair{`["b","a"]`, `["b",null]`}, "/list/1: null where a string is required"},
		{"1.0 for an integer", pair{`18446744073709551615`, `1.0`}, "/count: 1.0 is not an integer within uint64"},
		{"1e0 for an integer", pair{`18446744073709551615`, `1e0`}, "/count: 1e0 is not an integer"},
		{"-0 for an unsigned integer", pair{`18446744073709551615`, `-0`}, "/count: -0 is not an integer"},
		{"over uint64", pair{`18446744073709551615`, `18446744073709551616`}, "/count: 18446744073709551616 is not an integer"},
		{"under int8", pair{`-128`, `-129`}, "/small: -129 is not an integer within int8"},
		{"over uint32 in a map", pair{`"！":2`, `"！":4294967296`}, "/map/！: 4294967296 is not an integer within uint32"},
		{"overflow", pair{`0.0000001`, `1e999`}, "/value: 1e999 overflows a float64"},
		{"overflow in Raw", pair{`"b":100`, `"b":[1e999]`}, "/raw/b/0: 1e999 overflows"},
		{"string for a number", pair{`0.0000001`, `"NaN"`}, "/value: a string where a number is required"},
		{"number for a boolean", pair{`"z":true`, `"z":1`}, "/z: a number where a boolean is required"},
		{"object for a list", pair{`["b","a"]`, `{}`}, "/list: an object where an array is required"},
		{"outside the enumeration", pair{`"red"`, `"green"`}, `/colour: "green" is not a canon.colour`},
		{"inside a variant", pair{`{"n":3}`, `{"n":3.5}`}, "/variant/n: 3.5 is not an integer"},
		{"too deep in Raw", pair{`"b":100`, `"b":[1,` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `]`},
			"/raw/b/1" + strings.Repeat("/0", MaxDepth-3) + ": more than 127"},
		{"trailing", pair{`"z":true}`, `"z":true}{}`}, "more than one JSON value"},
		{"cut off", pair{`,"z":true}`, ``}, "unexpected"},
		{"not an object", pair{fullJSON, `[]`}, "an array where an object is required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := strings.Replace(fullJSON, tt.change.old, tt.change.new, 1)
			if in == fullJSON {
				t.Fatalf("%q is not in the sample", tt.change.old)
			}
			var v sample
			err := Unmarshal([]byte(in), &v)
			var at *Error
			if !errors.As(err, &at) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("Unmarshal(%s):\n%v\nwant %s", in, err, tt.want)
			}
		})
	}
}

// TestStdlibAgrees keeps the types readable by encoding/json, which the control
// plane's framework uses for answers.
func TestStdlibAgrees(t *testing.T) {
	want, err := Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Raw     Raw      `json:"raw"`
		Variant *variant `json:"variant"`
	}
	if err := json.Unmarshal(want, &v); err != nil || v.Variant.N != 3 || string(v.Raw) != `{"a":[],"b":100}` {
		t.Errorf("encoding/json read %+v, %v", v, err)
	}
}

// TestDepthOfGoTypes: the error names the bracket that is one too many.
func TestDepthOfGoTypes(t *testing.T) {
	type nest []nest
	var v nest
	in := strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	err := Unmarshal([]byte(in), &v)
	if want := strings.Repeat("/0", MaxDepth) + ": more than 127"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Unmarshal = %v, want %s", err, want)
	}
}

func TestShapeIsShared(t *testing.T) {
	if a, b := shapeOf(reflect.TypeFor[sample]()), shapeOf(reflect.TypeFor[sample]()); a != b {
		t.Error("a type's shape was made twice")
	}
}

// TestErrorIsOneLine: a name that whoever wrote the JSON chose forges no line of a
// log and moves no cursor.
func TestErrorIsOneLine(t *testing.T) {
	for _, name := range []string{"x\\nlevel=ERROR", "\\u001b[2J", strings.Repeat("long", 1000)} {
		err := Unmarshal([]byte(`{"`+name+`":1}`), new(struct {
			A int `json:"a"`
		}))
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000 {
			t.Errorf("%.20s: %q", name, err)
		}
	}
}
