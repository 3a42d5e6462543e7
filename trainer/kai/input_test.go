package kai

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/decision"
)

func TestEncode(t *testing.T) {
	m := nano(t, 1)
	tok := m.Tokenizer()
	q := question(t, decision.Choice, "street", "card", "shop")
	e := m.Encoder()
	inputs, err := e.Encode(asking("the card", q))
	if err != nil {
		t.Fatal(err)
	}
	in := inputs[0]
	cls, _ := tok.CLS()
	sep, _ := tok.SEP()
	want := slices.Concat([]int32{cls}, tok.Encode(nil, "choice question: what is it about?"), []int32{sep}, tok.Encode(nil, "the card"), []int32{sep})
	if !slices.Equal(in.Context, want) || in.Cut != 0 {
		t.Errorf("context %v, want %v", in.Context, want)
	}
	if !slices.Equal(in.Order, []int{1, 2, 0}) || in.ID != "r" || in.Key != "q0" || in.Target != nil || in.Weight != 1 {
		t.Errorf("input %+v", in)
	}
	for i, o := range in.Options {
		label := []string{"card", "shop", "street"}[i]
		if e.Texts.text[o] != label || !slices.Equal(e.Texts.ids[o], slices.Concat([]int32{cls}, tok.Encode(nil, label), []int32{sep})) {
			t.Errorf("option %d is %q %v", i, e.Texts.text[o], e.Texts.ids[o])
		}
	}

	// The same texts again are the same entries; targets follow the text order.
	row := asking("the card", question(t, decision.Choice, "shop", "street", "card"))
	row.Asked[0].Target = []float64{.5, .2, .3}
	again, err := e.Encode(row)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again[0].Options, in.Options) || e.Texts.Len() != 3 || !slices.Equal(again[0].Target, []float64{.3, .5, .2}) {
		t.Errorf("input %+v, %d texts", again[0], e.Texts.Len())
	}
}

func TestEncodeLimits(t *testing.T) {
	m := nano(t, 1) // 64 tokens of context, 48 of an option
	q := question(t, decision.Choice, "card", strings.Repeat("a shop in a street ", 40))
	e := m.Encoder()
	for _, c := range []struct {
		state string
		cut   bool
	}{{"", false}, {"x", false}, {strings.Repeat("the card was charged ", 5000), true}, {"a\x00b\ufeff\r\n", false}} {
		inputs, err := e.Encode(asking(c.state, q))
		if err != nil {
			t.Fatal(err)
		}
		in := inputs[0]
		state := len(m.Tokenizer().Encode(nil, c.state))
		prompt := len(m.Tokenizer().Encode(nil, q.Prompt()))
		if (in.Cut > 0) != c.cut || len(in.Context)+in.Cut != prompt+state+3 || len(in.Context) > 64 || in.Context[len(in.Context)-1] != m.sep {
			t.Errorf("state of %d tokens: context of %d, %d cut", state, len(in.Context), in.Cut)
		}
		for _, o := range in.Options {
			if ids := e.Texts.ids[o]; len(ids) > 48 || ids[len(ids)-1] != m.sep {
				t.Errorf("option of %d tokens: %v", len(ids), ids)
			}
		}
	}
	q.Instructions = strings.Repeat("and what is the street and the card ", 30)
	if _, err := e.Encode(asking("x", q)); err == nil || !strings.Contains(err.Error(), `"q0"`) || !strings.Contains(err.Error(), "instructions") {
		t.Errorf("instructions beyond the limit: %v", err)
	}
}

// TestOptionOrder: answers are bit-identical in whatever order the caller lists
// the options, a thing that no public decision model promises.
func TestOptionOrder(t *testing.T) {
	m := nano(t, 1)
	m.Config.TopK = 4 // so that retrieval chooses too
	labels := []string{"card", "shop", "street", "refund", "charge", "a payment that was made twice"}
	var want map[string]float64
	for i := range 30 {
		list := slices.Clone(labels)
		for j := range list { // some permutation
			k := (j*7 + i*(j+3)) % len(list)
			list[j], list[k] = list[k], list[j]
		}
		answers, err := m.NewPredictor().Answer(asking("the card was charged twice", question(t, decision.Choice, list...)))
		if err != nil {
			t.Fatal(err)
		}
		got := answers[0].Probabilities
		if want == nil {
			want = got
		}
		if !maps.Equal(got, want) {
			t.Fatalf("order %v: %v, want %v", list, got, want)
		}
		if list[answers[0].Top] != *answers[0].Choice {
			t.Errorf("the top is %s, the choice %s", list[answers[0].Top], *answers[0].Choice)
		}
	}
	zeros := 0
	for _, p := range want {
		if p == 0 {
			zeros++
		}
	}
	if zeros != 2 {
		t.Errorf("%d options were left out, want 2: %v", zeros, want)
	}
}

func TestAnswerShapes(t *testing.T) {
	choice := question(t, decision.Choice, "b", "a", "c")
	score := question(t, decision.Score, "low", "middle", "high")
	noul := question(t, decision.Noul)
	for _, c := range []struct {
		q    decision.Question
		p    []float64
		want string
	}{
		{choice, []float64{.5, .25, .25}, `{"choice":"b","probabilities":{"a":0.25,"b":0.5,"c":0.25},"answer_confidence":0.5,"confidence":0.25}`},
		{choice, []float64{.4, .4, .2}, `{"choice":"a","probabilities":{"a":0.4,"b":0.4,"c":0.2},"answer_confidence":0.4,"confidence":0.10000000000000005}`},
		{score, []float64{.25, .25, .5}, `{"score":1.25,"legend":{"0":"low","1":"middle","2":"high"},"probabilities":{"0":0.25,"1":0.25,"2":0.5},"answer_confidence":0.5,"confidence":0.25}`},
		{noul, []float64{.25, .75}, `{"noul":0.75,"answer_confidence":0.75,"confidence":0.5}`},
		{noul, []float64{.5, .5}, `{"noul":0.5,"answer_confidence":0.5,"confidence":0}`},
	} {
		got, err := json.Marshal(NewAnswer(c.q, c.p))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.want {
			t.Errorf("%s %v: %s, want %s", c.q.Type, c.p, got, c.want)
		}
	}
}

// TestTop: of equal values the smaller option text wins, whatever order the
// options are listed in.
func TestTop(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		if got := Top(order, []float64{.4, .4, .4}); got != order[0] {
			t.Errorf("Top(%v) of equals = %d, want %d", order, got, order[0])
		}
		if got := Top(order, []float64{.1, .5, .4}); got != 1 {
			t.Errorf("Top(%v) = %d, want 1", order, got)
		}
	}
}

func TestBucket(t *testing.T) {
	for _, c := range []struct {
		t    decision.Type
		n    int
		want string
	}{
		{decision.Choice, 2, "choice:2"}, {decision.Choice, 3, "choice:3-5"}, {decision.Choice, 5, "choice:3-5"},
		{decision.Choice, 6, "choice:6-10"}, {decision.Choice, 11, "choice:11-30"}, {decision.Choice, 30, "choice:11-30"},
		{decision.Choice, 31, "choice:31+"}, {decision.Score, 7, "score:*"}, {decision.Noul, 2, "noul:2"},
	} {
		if got := Bucket(c.t, c.n); got != c.want {
			t.Errorf("Bucket(%s, %d) = %s, want %s", c.t, c.n, got, c.want)
		}
	}
}

// TestTemperature: a bucket's temperature divides the logits.
func TestTemperature(t *testing.T) {
	m := nano(t, 1)
	e := m.Encoder()
	inputs, err := e.Encode(asking("the card", question(t, decision.Choice, "card", "shop", "street")))
	if err != nil {
		t.Fatal(err)
	}
	p := m.NewPredictor()
	one := p.Predict(e.Texts, inputs)[0]
	m.Config.Temperature["choice:3-5"] = 2
	two := p.Predict(e.Texts, inputs)[0]
	if one.T != 1 || two.T != 2 || !slices.Equal(one.Logits, two.Logits) || two.Bucket != "choice:3-5" {
		t.Errorf("predictions %+v and %+v", one, two)
	}
	want, _ := softmax(two.Logits, 2)
	for i, v := range want {
		if two.P[inputs[0].Order[i]] != v {
			t.Errorf("probabilities %v, want %v in text order", two.P, want)
		}
	}
	if fmt.Sprint(one.P) == fmt.Sprint(two.P) {
		t.Error("the temperature changes nothing")
	}
}
