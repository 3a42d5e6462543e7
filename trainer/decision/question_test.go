package decision

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
)

// texts are a question's option texts in the caller's order.
func texts(q Question) []string {
	var list []string
	for _, o := range q.Options {
		list = append(list, o.Text)
	}
	return list
}

// TestParseQuestion holds the option texts, one row a spelling.
func TestParseQuestion(t *testing.T) {
	tests := []struct {
		name, in string
		prompt   string
		keys     []string
		texts    []string
	}{
		{
			"choice of labels", `{"type":"choice","instructions":"which queue","criteria":["billing","bug"]}`,
			"choice question: which queue", []string{"billing", "bug"}, []string{"billing", "bug"},
		},
		{
			"choice with descriptions keeps the written order",
			`{"type":"choice","instructions":"q","criteria":{"b":"second","a":null,"c":""}}`,
			"choice question: q", []string{"b", "a", "c"}, []string{"b: second", "a", "c"},
		},
		{
			"a description that is not a string", `{"type":"choice","instructions":"q","criteria":{"a":{"y":1,"x":[2]},"b":7}}`,
			"choice question: q", []string{"a", "b"}, []string{`a: {"x":[2],"y":1}`, "b: 7"},
		},
		{
			"labels that are numbers", `{"type":"choice","instructions":"q","criteria":[1,"1.5",true]}`,
			"choice question: q", []string{"1", "1.5", "true"}, []string{"1", "1.5", "true"},
		},
		{
			"white space around texts is not read", `{"type":"choice","instructions":" q ","criteria":{" a ":" x "," b":null}}`,
			"choice question: q", []string{" a ", " b"}, []string{"a: x", "b"},
		},
		{
			"score of levels", `{"type":"score","instructions":"q","criteria":["low","high"]}`,
			"score question: q", []string{"0", "1"}, []string{"level 0: low", "level 1: high"},
		},
		{
			"score by index", `{"type":"score","instructions":"q","criteria":{"1":"high","0":"low"}}`,
			"score question: q", []string{"0", "1"}, []string{"level 0: low", "level 1: high"},
		},
		{
			"noul without criteria", `{"type":"noul","instructions":"q"}`,
			"noul question: q", []string{"false", "true"},
			[]string{"false: no, the statement does not hold", "true: yes, the statement holds"},
		},
		{
			"noul described in part", `{"type":"boolean","instructions":"q","criteria":{"true":"it is spam"}}`,
			"noul question: q", []string{"false", "true"},
			[]string{"false: no, the statement does not hold", "true: it is spam"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, err := ParseQuestion(canon.Raw(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if q.Prompt() != tt.prompt {
				t.Errorf("Prompt = %q, want %q", q.Prompt(), tt.prompt)
			}
			if diff := cmp.Diff(tt.keys, q.Labels()); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.texts, texts(q)); diff != "" {
				t.Errorf("texts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseQuestionRefuses checks that what cannot be answered is refused, and
// that the error says what it is.
func TestParseQuestionRefuses(t *testing.T) {
	long := strings.Repeat("x", MaxOptionText+1)
	tests := []struct{ name, in, want string }{
		{"not an object", `[]`, "question: is a list, not an object"},
		{"no type", `{"instructions":"q","criteria":["a","b"]}`, "question: type is missing"},
		{"unknown type", `{"type":"levels","instructions":"q"}`, `question: type: type is "levels"; it must be choice, score or noul`},
		{"unknown member", `{"type":"noul","instructions":"q","levels":[]}`, "question: levels: is not a member of a question; type, instructions and criteria are"},
		{"no instructions", `{"type":"noul"}`, "question: instructions are empty; say what is asked"},
		{"blank instructions", `{"type":"noul","instructions":" \n"}`, "question: instructions are empty; say what is asked"},
		{"instructions not a string", `{"type":"noul","instructions":7}`, "question: instructions: is a number, not a string"},
		{"NUL in the instructions", `{"type":"noul","instructions":"a\u0000"}`, "question: instructions contain NUL"},
		{"no criteria", `{"type":"choice","instructions":"q"}`, "question: criteria: missing; a choice needs its options"},
		{"one option", `{"type":"choice","instructions":"q","criteria":["a"]}`, "question: criteria has 1 options; a choice needs at least 2"},
		{"an empty label", `{"type":"choice","instructions":"q","criteria":["a"," "]}`, "question: option 2 is empty"},
		{"a label that is null", `{"type":"choice","instructions":"q","criteria":["a",null]}`, "question: criteria: option 2 is null; a label is a string"},
		{"equal after trimming", `{"type":"choice","instructions":"q","criteria":["a","b","a "]}`, `question: options 1 and 3 are both "a" after trimming; options must differ`},
		{"equal by description", `{"type":"choice","instructions":"q","criteria":{"a":"b","a: b":null}}`, `question: options 1 and 2 are both "a: b" after trimming; options must differ`},
		{"NUL in an option", `{"type":"choice","instructions":"q","criteria":["a","b\u0000"]}`, `question: option 2 ("b\x00") contains NUL`},
		{"an option over the limit", `{"type":"choice","instructions":"q","criteria":["a","` + long + `"]}`, "is 16385 bytes; at most 16384"},
		{"a member twice", `{"type":"choice","instructions":"q","criteria":{"a":null,"a":null}}`, "duplicate"},
		{"a lone surrogate", `{"type":"choice","instructions":"q","criteria":["a","\ud800"]}`, "surrogate"},
		{"levels by name have no order", `{"type":"score","instructions":"q","criteria":{"low":"x","high":"y"}}`, `question: criteria: level "low" is not one of 0 to 1; an object has no order, so give a list, lowest first`},
		{"levels not from 0", `{"type":"score","instructions":"q","criteria":{"1":"x","2":"y"}}`, `level "2" is not one of 0 to 1`},
		{"an empty level", `{"type":"score","instructions":"q","criteria":["low",""]}`, "question: level 1 is empty"},
		{"a noul of labels", `{"type":"noul","instructions":"q","criteria":["yes","no"]}`, "question: criteria: is a list, which a noul does not take"},
		{"a noul of other names", `{"type":"noul","instructions":"q","criteria":{"yes":"x"}}`, `question: criteria has "yes"; a noul describes only true and false`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseQuestion(canon.Raw(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParseQuestion = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestOrder checks that what is computed of a question does not depend on the
// order in which its options are listed.
func TestOrder(t *testing.T) {
	a, err := New(Choice, "q", []Criterion{{Label: "b"}, {Label: "a", Description: "x"}, {Label: "É"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Choice, "q", []Criterion{{Label: "É"}, {Label: "a", Description: "x"}, {Label: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a: x", "b", "É"} // by bytes
	for _, q := range []Question{a, b} {
		var got []string
		for _, i := range q.Sorted() {
			got = append(got, q.Options[i].Text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Sorted gives %q, want %q", got, want)
		}
	}
	if a.Hash() != b.Hash() || !a.Hash().Valid() {
		t.Errorf("hashes %s and %s of one question", a.Hash(), b.Hash())
	}
	c, _ := New(Choice, "q", []Criterion{{Label: "b"}, {Label: "a", Description: "y"}, {Label: "É"}})
	if a.Hash() == c.Hash() {
		t.Error("another description has the same hash")
	}
}

func TestWarnings(t *testing.T) {
	q, err := New(Choice, "q", []Criterion{
		{Label: "Card"}, {Label: "card"}, {Label: "é"}, {Label: "e\u0301"}, {Label: "1"}, {Label: "1.0"}, {Label: "x"},
	})
	if err != nil {
		t.Fatal(err) // they are different options
	}
	if got := q.Warnings(); len(got) != 3 {
		t.Errorf("Warnings = %q, want three pairs", got)
	}
}

// TestJSON checks that a question written and read back is the question, its
// options following the order that JSON reports.
func TestJSON(t *testing.T) {
	for _, in := range []string{
		`{"type":"choice","instructions":"q","criteria":["z","a"]}`,
		`{"type":"choice","instructions":"q","criteria":{"z":"1: 2","a":null," y ":"d"}}`,
		`{"type":"score","instructions":"q","criteria":["low","level 1: x","2"]}`,
		`{"type":"noul","instructions":"q","criteria":{"true":"t"}}`,
	} {
		q, err := ParseQuestion(canon.Raw(in))
		if err != nil {
			t.Fatal(err)
		}
		raw, order := q.JSON()
		if c, err := canon.Canonicalize(raw); err != nil || string(c) != string(raw) {
			t.Errorf("%s is not canonical: %v", raw, err)
		}
		back, err := ParseQuestion(raw)
		if err != nil {
			t.Fatal(err)
		}
		want := Question{Type: q.Type, Instructions: q.Instructions}
		for _, i := range order {
			want.Options = append(want.Options, q.Options[i])
		}
		if diff := cmp.Diff(want, back); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
		if q.Hash() != back.Hash() {
			t.Errorf("%s: another hash when read back", in)
		}
	}
}

// TestPublished reads the published requests.
func TestPublished(t *testing.T) {
	files, err := filepath.Glob("../../test/vectors/decisions/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no published requests: %v", err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Request struct{ State, Questions json.RawMessage }
		}
		if err := json.Unmarshal(doc, &d); err != nil {
			t.Fatal(err)
		}
		row, err := ParseRow(canon.Raw(`{"state":`+string(d.Request.State)+`,"questions":`+string(d.Request.Questions)+`}`), nil)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
			continue
		}
		if len(row.Asked) == 0 || row.State == "" {
			t.Errorf("%s: %d questions of state %q", filepath.Base(file), len(row.Asked), row.State)
		}
	}
}

// TestNewRefusesBytes refuses what no JSON could say: a question has a hash.
func TestNewRefusesBytes(t *testing.T) {
	for want, q := range map[string]struct{ instructions, label string }{
		"instructions are not UTF-8":         {"a\xff", "x"},
		"option 1 (\"a\\xff\") is not UTF-8": {"which", "a\xff"},
	} {
		if _, err := New(Choice, q.instructions, []Criterion{{Label: q.label}, {Label: "b"}}); err == nil || err.Error() != want {
			t.Errorf("New(%q, %q): %v, want %s", q.instructions, q.label, err, want)
		}
	}
}
