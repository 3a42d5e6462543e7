package decision

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
)

const queue = `"questions":{"queue":{"type":"choice","instructions":"which queue","criteria":["billing","bug","other"]}}`

func TestState(t *testing.T) {
	big := strings.Repeat("é", 5<<20) // 10 MiB
	tests := []struct{ name, in, want, err string }{
		{"text", `"my card"`, "my card", ""},
		{"text is kept as it is", `" a\r\n\ufeffB\u0000 "`, " a\r\n\ufeffB\x00 ", ""},
		{"10 MiB", `"` + big + `"`, big, ""},
		{"an object", `{"b":1.0,"a":"x"}`, `{"a":"x","b":1}`, ""},
		{"a list", `[ 1 ]`, `[1]`, ""},
		{"a number", `404`, "", "state is a number; it must be a string, an object or a list"},
		{"true", `true`, "", "state is true or false; it must be a string, an object or a list"},
		{"null", `null`, "", "state is null; it must be a string, an object or a list"},
		{"nothing", ``, "", "state is missing"},
		{"empty", `""`, "", "state is empty"},
		{"white space", `" \n\t"`, "", "state is empty"},
		{"an empty object", `{}`, "", "state is empty"},
		{"an empty list", `[ ]`, "", "state is empty"},
		{"a lone surrogate", `"\ud800"`, "", "surrogate"},
		{"not UTF-8", "\"\xff\"", "", "UTF-8"},
		{"a duplicate member", `{"a":1,"a":2}`, "", "duplicate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := State(canon.Raw(tt.in))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("State error = %v, want %q", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("State = %.80q, want %.80q", got, tt.want)
			}
		})
	}
}

// TestParseDecision reads HIP-1333 §4's example.
func TestParseDecision(t *testing.T) {
	row, err := ParseDecision(canon.Raw(`{"state":"my card was charged twice",` + queue + `,"target":{"queue":[1,0,0]},"lang":"en"}`))
	if err != nil {
		t.Fatal(err)
	}
	q, err := New(Choice, "which queue", []Criterion{{Label: "billing"}, {Label: "bug"}, {Label: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	want := Row{State: "my card was charged twice", Lang: "en", Asked: []Asked{{Key: "queue", Question: q, Target: []float64{1, 0, 0}}}}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
}

func TestParseDecisionRefuses(t *testing.T) {
	row := func(target string) string { return `{"state":"s",` + queue + `,"target":` + target + `}` }
	tests := []struct{ name, in, want string }{
		{"no state", `{` + queue + `}`, "state is missing"},
		{"no questions", `{"state":"s"}`, "questions are missing"},
		{"nothing asked", `{"state":"s","questions":{}}`, "questions: none is asked"},
		{"an empty key", `{"state":"s","questions":{"":{"type":"noul","instructions":"q"}}}`, "questions: a question's key is empty"},
		{"a bad question", `{"state":"s","questions":{"k":{"type":"noul"}}}`, "questions: k: question: instructions are empty"},
		{"another member", `{"state":"s",` + queue + `,"gold":1}`, "gold: is not a member of a row"},
		{"lang not a string", `{"state":"s",` + queue + `,"lang":1}`, "lang: is a number, not a string"},
		{"target of another question", row(`{"x":[1,0,0]}`), `target: names "x", which is not asked`},
		{"too few values", row(`{"queue":[1,0]}`), "target: queue has 2 values for 3 options"},
		{"below 0", row(`{"queue":[1.5,-0.5,0]}`), "target: queue value 2 is -0.5; each must be 0 or more"},
		{"not summing to 1", row(`{"queue":[1,1,0]}`), "target: queue sums to 2; it must sum to 1"},
		{"just over the tolerance", row(`{"queue":[1,0.000002,0]}`), "it must sum to 1"},
		{"null for a number", row(`{"queue":[1,null,0]}`), "target: queue must be a list of numbers"},
		{"a label", row(`{"queue":"billing"}`), "target: queue is a string; it must be a list of numbers"},
		{"an infinity", row(`{"queue":[1e999,0,0]}`), "target: queue must be a list of numbers"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseDecision(canon.Raw(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParseDecision = %v, want an error with %q", err, tt.want)
			}
		})
	}
	if _, err := ParseDecision(canon.Raw(row(`{"queue":[1,0.0000009,0]}`))); err != nil {
		t.Errorf("a target within the tolerance: %v", err)
	}
}

// TestQuestionsRoundTrip checks that a target follows its options when canonical
// JSON sorts them.
func TestQuestionsRoundTrip(t *testing.T) {
	row, err := ParseDecision(canon.Raw(`{"state":{"z":1,"a":"x"},"questions":{
		"q":{"type":"choice","instructions":"q","criteria":{"z":"last","a":"first"}},
		"n":{"type":"noul","instructions":"n"}},
		"target":{"q":[0.75,0.25],"n":[0,1]}}`))
	if err != nil {
		t.Fatal(err)
	}
	questions, gold, err := Questions(row.Asked)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseRow(Input(canon.Raw(`{"a":"x","z":1}`), questions, ""), gold)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, a := range back.Asked {
		for i, o := range a.Question.Options {
			got[a.Key+"/"+o.Key] = a.Target[i]
		}
	}
	want := map[string]float64{"q/z": 0.75, "q/a": 0.25, "n/false": 0, "n/true": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if back.State != row.State {
		t.Errorf("state %q became %q", row.State, back.State)
	}
}

// TestReaderShares checks that rows that ask the same share their options, and
// not their targets.
func TestReaderShares(t *testing.T) {
	var r Reader
	input := canon.Raw(`{"state":"s",` + queue + `}`)
	a, err := r.ParseRow(input, canon.Raw(`{"queue":[1,0,0]}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.ParseRow(input, canon.Raw(`null`))
	if err != nil {
		t.Fatal(err)
	}
	if &a.Asked[0].Question.Options[0] != &b.Asked[0].Question.Options[0] {
		t.Error("two rows of one question hold its options twice")
	}
	if b.Asked[0].Target != nil || a.Asked[0].Target == nil {
		t.Errorf("targets %v and %v, want the first alone", a.Asked[0].Target, b.Asked[0].Target)
	}
}

// TestReaderBounded checks that a file in which every row asks something long and
// new does not stay in memory.
func TestReaderBounded(t *testing.T) {
	var r Reader
	long := strings.Repeat("x", MaxInstructions-8)
	for i := range 200 {
		questions := fmt.Sprintf(`{"q":{"type":"noul","instructions":"%d %s"}}`, i, long)
		for range 2 {
			if _, err := r.Asked(canon.Raw(questions), nil); err != nil {
				t.Fatal(err)
			}
		}
		held := 0
		for key := range r.sets {
			held += len(key)
		}
		if held != r.held || held > maxHeld || r.sets[questions] == nil {
			t.Fatalf("after %d rows %d bytes are held, counted as %d; at most %d, the last row's among them", i+1, held, r.held, maxHeld)
		}
	}
}

// FuzzParseDecision checks that whatever is read can be written and read again.
func FuzzParseDecision(f *testing.F) {
	f.Add(`{"state":"s",` + queue + `,"target":{"queue":[0.5,0.5,0]}}`)
	f.Add(`{"state":[1],"questions":{"k":{"type":"score","instructions":"i","criteria":["a","b"]},"n":{"type":"boolean","instructions":"x"}}}`)
	f.Add(`{"state":{"a":null},"questions":{"k":{"type":"choice","instructions":"i","criteria":{" a ":": b","c":{}}}},"lang":null}`)
	f.Fuzz(func(t *testing.T, line string) {
		row, err := ParseDecision(canon.Raw(line))
		if err != nil {
			return
		}
		questions, gold, err := Questions(row.Asked)
		if err != nil {
			t.Fatalf("writing %s: %v", line, err)
		}
		state, err := canon.Marshal(row.State)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseRow(Input(state, questions, row.Lang), gold)
		if err != nil {
			t.Fatalf("reading back %s: %v", line, err)
		}
		for i, a := range back.Asked {
			if a.Question.Hash() != row.Asked[i].Question.Hash() {
				t.Fatalf("%s: question %s changed", line, a.Key)
			}
		}
	})
}
