package kai

import (
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
)

// benchmarkRows is a "small" model (6 layers, 384 wide) and rows of about 60
// tokens that ask for one of 7 labels.
func benchmarkRows(b *testing.B) (*Model, *Encoder, []Input, int) {
	m, _, err := Init(InitConfig{Size: "small", Texts: sentences(), Seed: 1}, cpu.New(1))
	if err != nil {
		b.Fatal(err)
	}
	q := question(b, decision.Choice, "card", "shop", "street", "charge", "payment", "refund", "time")
	e, tokens := m.Encoder(), 0
	var inputs []Input
	for i := range 64 {
		row := asking(sentences()[i%60]+", said the shop of the street, and the card was charged again", q)
		row.Asked[0].Target = make([]float64, 7)
		row.Asked[0].Target[i%7] = 1
		in, err := e.Encode(row)
		if err != nil {
			b.Fatal(err)
		}
		inputs = append(inputs, in...)
		tokens += len(in[0].Context)
	}
	return m, e, inputs, tokens
}

func report(b *testing.B, tokens int) {
	b.ReportMetric(float64(tokens)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkFeatures(b *testing.B) {
	m, _, inputs, tokens := benchmarkRows(b)
	p := m.NewPredictor()
	for b.Loop() {
		p.Features(inputs)
	}
	report(b, tokens)
}

func BenchmarkPredict(b *testing.B) {
	m, e, inputs, tokens := benchmarkRows(b)
	p := m.NewPredictor()
	for b.Loop() {
		p.Predict(e.Texts, inputs)
	}
	report(b, tokens)
}

func BenchmarkStep(b *testing.B) {
	for _, what := range []string{"full", "embeddings too", "head"} {
		b.Run(what, func(b *testing.B) {
			m, e, inputs, tokens := benchmarkRows(b)
			m.Train(func(name string) bool {
				switch what {
				case "full":
					return name == embeddings["modernbert"]
				case "head":
					return name[:5] != "head."
				}
				return false
			})
			for b.Loop() {
				m.Step(e.Texts, [][]Input{inputs[:32], inputs[32:]}, Objective{})
			}
			report(b, tokens)
		})
	}
}

// BenchmarkSensitivity is what a subspace's rows cost before their products.
func BenchmarkSensitivity(b *testing.B) {
	m, e, inputs, tokens := benchmarkRows(b)
	for b.Loop() {
		for _, in := range inputs {
			m.Sensitivity(e.Texts, in, func(layer int, dy, x kernels.Mem, t int) {})
		}
	}
	report(b, tokens)
}
