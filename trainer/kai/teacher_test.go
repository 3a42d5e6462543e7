package kai

import (
	"math"
	"slices"
	"testing"
)

// TestTeacherOfItself: at the teacher's weights the distillation is 0 and so is
// every gradient, to the last bit, options left out included.
func TestTeacherOfItself(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.rows(3)
		m := g.model(t, 1)
		m.Budget = Budget{Context: 40, Options: 9, Head: 60, Rows: 2}
		left := 0
		for i, teacher := range m.NewPredictor().Teach(texts, inputs) {
			inputs[i].Teacher = &teacher
			for _, p := range teacher.P {
				if p == 0 {
					left++
				}
			}
			if slices.Min(teacher.Ranking) <= 0 {
				t.Errorf("ranking %v", teacher.Ranking)
			}
		}
		if left == 0 {
			t.Fatal("no option was left out")
		}
		loss := m.Step(texts, [][]Input{inputs}, Objective{Distillation: 1})
		if loss.Total != 0 || loss.Distillation != 0 || loss.Ranking != 0 || loss.CrossEntropy != 0 || loss.Weight != 0 {
			t.Errorf("%s: loss %+v", family, loss)
		}
		for name, grad := range gradients(m) {
			for _, v := range grad {
				if v != 0 {
					t.Errorf("%s: %s has gradient %v", family, name, v)
					break
				}
			}
		}
	}
}

// TestTeachIsPredict: a teacher gives the probabilities of a prediction without
// its temperature.
func TestTeachIsPredict(t *testing.T) {
	g := readGolden(t, "modernbert")
	texts, inputs := g.rows(2)
	m := g.model(t, 1)
	predicted := m.NewPredictor().Predict(texts, inputs)
	for i, teacher := range m.NewPredictor().Teach(texts, inputs) {
		for j, p := range teacher.P {
			if want := predicted[i].P[inputs[i].Order[j]]; p != want {
				t.Errorf("input %d, option %d: %v, want %v", i, j, p, want)
			}
		}
	}
}

// TestTeacherIsAlone: the rows' own losses do not know of questions to keep, and
// the target of those is not read.
func TestTeacherIsAlone(t *testing.T) {
	g := readGolden(t, "bert")
	texts, inputs := g.grouped(t)
	m := g.model(t, 1)
	var targets []Input
	for i := range inputs {
		if inputs[i].Teacher == nil {
			targets = append(targets, inputs[i])
		} else {
			inputs[i].Target = []float64{math.NaN()}
		}
	}
	want, got := m.Step(texts, [][]Input{targets}, Objective{}), m.Step(texts, [][]Input{inputs}, every)
	if got.CrossEntropy != want.CrossEntropy || got.Ranked != want.Ranked || got.Retrieval != want.Retrieval || got.Weight != want.Weight {
		t.Errorf("with questions to keep %+v, without %+v", got, want)
	}
}

func TestTeacherKL(t *testing.T) {
	of := func(p ...float64) Teacher { return Teacher{P: p} }
	for _, c := range []struct {
		name string
		t, q Teacher
		want float64
	}{
		{"itself", of(.3, .7), of(.3, .7), 0},
		{"two coins", of(.5, .5), of(.25, .75), .5*math.Log(2) + .5*math.Log(2./3)},
		{"what it left out costs nothing", of(0, 1), of(.5, .5), math.Log(2)},
		{"what the other left out", of(.5, .5), of(0, 1), .5*math.Log(.5) + .5*1022*math.Ln2 + .5*math.Log(.5)},
	} {
		near(t, c.name, c.t.KL(c.q), c.want, 1, 1e-12)
	}
	if got := of(.1, .9).KL(of(.1, math.Nextafter(.9, 1))); got != 0 {
		t.Errorf("of equals but for rounding: %v, want 0", got)
	}
}
