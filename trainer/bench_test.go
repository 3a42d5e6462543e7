package trainer

import (
	"fmt"
	"testing"
	"time"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// BenchmarkProjection is a step of 8,192 context tokens of a 6 x 384 encoder with
// its head, every linear layer projected off a quarter of its inputs, which is the
// cap's default. It reports what projecting costs as a share of the whole step: the
// optimizer's time with the subspace less without, alternating.
//
//	go test ./trainer -run xxx -bench Projection -benchtime 3x
func BenchmarkProjection(b *testing.B) {
	dev := cpu.New(0)
	var texts []string
	for i := range 200 {
		texts = append(texts, fmt.Sprintf("line %d of a vocabulary of some size, of which number %d is another", i, i*i))
	}
	m, _, err := kai.Init(kai.InitConfig{Size: "small", Seed: 1, Texts: texts}, dev)
	if err != nil {
		b.Fatal(err)
	}
	enc := m.Encoder()
	var inputs []kai.Input
	for tokens := 0; tokens < 8192; {
		var row decision.Row
		row.State = texts[len(inputs)%len(texts)] + texts[(7*len(inputs)+1)%len(texts)]
		q, err := decision.ParseQuestion([]byte(`{"type":"choice","instructions":"which","criteria":["one","two","three","four"]}`))
		if err != nil {
			b.Fatal(err)
		}
		row.Asked = []decision.Asked{{Key: "q", Question: q, Target: []float64{1, 0, 0, 0}}}
		in, err := enc.Encode(row)
		if err != nil {
			b.Fatal(err)
		}
		inputs = append(inputs, in...)
		tokens += len(in[0].Context)
	}
	linears := m.Linears()
	off := map[string]*project.Projector{}
	for _, l := range linears {
		rank := l.In / 4
		v := make([]float64, rank*l.In)
		for i := range rank {
			v[i*l.In+i] = 1 // orthonormal, as fast as any other
		}
		p := (&project.Basis{Name: l.Name, In: l.In, Out: l.Out, Rank: rank, V: v}).On(dev, 1)
		for _, param := range l.Params {
			off[param.Name] = p
		}
	}
	m.Train(func(name string) bool { return layerOf(linears, name) == nil })
	free := newOptimizer(dev, m.Params(), nil, .01, 1)
	projected := newOptimizer(dev, m.Params(), nil, .01, 1)
	projected.protect(off, 1, false)
	micro := m.Budget.Cut(inputs, m.Config.TopK)
	lr := rates{1e-5, 1e-5}
	var gradient, with, without time.Duration
	step := 0
	for b.Loop() {
		step++
		at := time.Now()
		m.Step(enc.Texts, micro, kai.Objective{})
		gradient += time.Since(at)
		at = time.Now()
		free.step(step, free.norm(), lr)
		without += time.Since(at)
		at = time.Now()
		projected.step(step, projected.norm(), lr)
		with += time.Since(at)
	}
	b.ReportMetric(float64(with-without)/float64(gradient+without), "projection/step")
	b.ReportMetric(gradient.Seconds()/float64(step), "s/gradient")
}
