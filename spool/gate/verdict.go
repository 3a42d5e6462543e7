package gate

import (
	"maps"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// An Evaluation is what a gate reads of one evaluation of a run.
type Evaluation struct {
	Dataset       string
	DatasetSHA256 canon.SHA256
	Complete      bool // completion is complete (HIP-1334 §8.1)
	Items         []Item
	Measures      []Measure
}

// An Outcome is pass or fail.
type Outcome string

const (
	Pass Outcome = "pass"
	Fail Outcome = "fail"
)

// Valid reports whether o is pass or fail.
func (o Outcome) Valid() bool { return o == Pass || o == Fail }

// A Reason is why a rule failed before its test was made.
type Reason string

const (
	Missing    Reason = "missing"    // no evaluation on the dataset, or no finite number comes of it
	Incomplete Reason = "incomplete" // the evaluation is not complete
	Unpaired   Reason = "unpaired"   // a row is in only one of the two evaluations
)

// Valid reports whether r is one of the three.
func (r Reason) Valid() bool { return r == Missing || r == Incomplete || r == Unpaired }

// A Verdict is a gate's judgement: pass when every rule passes.
type Verdict struct {
	GateSpecHash canon.Hash   `json:"gate_spec_hash"`
	Verdict      Outcome      `json:"verdict"`
	Rules        []RuleResult `json:"rules"`
}

// A RuleResult is one rule's part in a verdict.
type RuleResult struct {
	Rule     uint32   `json:"rule"` // its place in the gate, from 0
	Pass     bool     `json:"pass"`
	Value    *float64 `json:"value"`    // the subject's metric
	Baseline *float64 `json:"baseline"` // the baseline's
	Delta    *float64 `json:"delta"`    // the improvement: positive is better
	Lo       *float64 `json:"lo"`       // of the improvement
	Hi       *float64 `json:"hi"`
	P        *float64 `json:"p"`
	N        uint64   `json:"n"` // rows
	Reason   *Reason  `json:"reason"`
}

// epsilon is what a comparison forgives, so that the last bits of a sum do not decide.
const epsilon = 1e-9

// Evaluate judges a subject run's evaluations against the baseline run's. A rule
// reads the last evaluation given for its dataset_sha256. The gate must be one that
// [Gate.Validate] accepts.
func (g Gate) Evaluate(subject, baseline []Evaluation) Verdict {
	hash, err := g.Hash()
	if err != nil {
		panic("gate: Evaluate of an invalid gate: " + err.Error())
	}
	v := Verdict{GateSpecHash: hash, Verdict: Pass, Rules: make([]RuleResult, len(g.Rules))}
	for i, r := range g.Rules {
		v.Rules[i] = r.evaluate(find(subject, r), find(baseline, r))
		v.Rules[i].Rule = uint32(i)
		if !v.Rules[i].Pass {
			v.Verdict = Fail
		}
	}
	return v
}

func find(evaluations []Evaluation, r Rule) *Evaluation {
	for i := len(evaluations) - 1; i >= 0; i-- {
		if evaluations[i].DatasetSHA256 == r.DatasetSHA256 {
			return &evaluations[i]
		}
	}
	return nil
}

func (r Rule) evaluate(subject, baseline *Evaluation) RuleResult {
	paired := r.Test.Kind == Hold || r.Test.Kind == Improve
	if subject == nil || paired && baseline == nil {
		return refused(Missing)
	}
	if !subject.Complete || paired && !baseline.Complete {
		return refused(Incomplete)
	}
	if !paired {
		return r.bound(subject)
	}
	return r.compare(subject, baseline)
}

func refused(reason Reason) RuleResult { return RuleResult{Reason: &reason} }

// bound tests a floor or a ceiling.
func (r Rule) bound(subject *Evaluation) RuleResult {
	v, n, ok := r.read(subject)
	if !ok {
		return refused(Missing)
	}
	over := v - r.Test.Value
	if r.Test.Kind == Ceiling {
		over = -over
	}
	pass := over >= -epsilon
	if r.Test.Strict {
		pass = over > epsilon
	}
	return RuleResult{Pass: pass, Value: &v, N: n}
}

// read returns the rule's metric of one evaluation and the rows it stands for.
func (r Rule) read(e *Evaluation) (v float64, n uint64, ok bool) {
	if computed(r.Metric) {
		v, err := Metric(r.Metric, e.Items)
		return v, uint64(len(e.Items)), err == nil
	}
	for _, m := range e.Measures {
		if m.Metric == r.Metric && m.Category == r.Category {
			if m.N != nil {
				n = *m.N
			}
			return m.Value, n, finite(m.Value)
		}
	}
	return 0, 0, false
}

// compare tests a hold or an improve.
func (r Rule) compare(subject, baseline *Evaluation) RuleResult {
	var p pairs
	if computed(r.Metric) {
		if len(subject.Items) == 0 || len(baseline.Items) == 0 {
			return refused(Missing)
		}
		var ok bool
		if p, ok = pair(subject.Items, baseline.Items); !ok {
			return refused(Unpaired)
		}
	}
	v, n, ok := r.read(subject)
	b, _, okBaseline := r.read(baseline)
	d := r.improvement(v, b)
	if !ok || !okBaseline || !finite(d) {
		return refused(Missing)
	}
	res := RuleResult{Value: &v, Baseline: &b, Delta: &d, N: n}
	needed := -r.Test.Tolerance - epsilon // hold: d must reach this
	if r.Test.Kind == Improve {
		needed = r.Test.Margin + epsilon // improve: d must exceed it
	}
	interval := r.Test.Interval
	switch {
	case interval == nil:
		res.Pass = r.reaches(d, needed)
	case interval.Kind == ByBootstrap:
		lo, hi := r.bootstrap(p)
		if !finite(lo) || !finite(hi) {
			return refused(Missing)
		}
		res.Lo, res.Hi = &lo, &hi
		if r.Test.Kind == Hold {
			res.Pass = r.reaches(hi, needed) // not worse beyond noise
		} else {
			res.Pass = r.reaches(lo, needed)
		}
	default:
		pValue := McNemar(p.discordant())
		res.P = &pValue
		significant := pValue < interval.Alpha
		if r.Test.Kind == Hold {
			res.Pass = r.reaches(d, needed) || !significant
		} else {
			res.Pass = r.reaches(d, needed) && significant
		}
	}
	return res
}

func (r Rule) reaches(d, needed float64) bool {
	if r.Test.Kind == Hold {
		return d >= needed
	}
	return d > needed
}

func (r Rule) improvement(subject, baseline float64) float64 {
	if r.Higher {
		return subject - baseline
	}
	return baseline - subject
}

// pairs holds two evaluations' rows in one order.
type pairs struct{ subject, baseline []Item }

// pair matches rows on (item, question) and reports whether each has exactly one
// partner.
func pair(subject, baseline []Item) (pairs, bool) {
	byKey := func(a, b Item) int { return a.key().compare(b.key()) }
	p := pairs{slices.Clone(subject), slices.Clone(baseline)}
	slices.SortStableFunc(p.subject, byKey)
	slices.SortStableFunc(p.baseline, byKey)
	if len(p.subject) != len(p.baseline) {
		return pairs{}, false
	}
	for i := range p.subject {
		k := p.subject[i].key()
		if k != p.baseline[i].key() || i > 0 && k == p.subject[i-1].key() {
			return pairs{}, false
		}
	}
	return p, true
}

// discordant counts the rows only the subject has right and only the baseline.
func (p pairs) discordant() (b, c uint64) {
	for i := range p.subject {
		switch s, o := *p.subject[i].Correct, *p.baseline[i].Correct; {
		case s && !o:
			b++
		case o && !s:
			c++
		}
	}
	return b, c
}

// bootstrap returns the interval of the improvement over resampled units.
func (r Rule) bootstrap(p pairs) (lo, hi float64) {
	rows := make(map[string][]int)
	for i, it := range p.subject {
		id := it.unit(r.Test.Interval.Unit)
		rows[id] = append(rows[id], i)
	}
	var units [][]int // by id
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		units = append(units, rows[id])
	}
	subject, _ := sampleOf(r.Metric, p.subject) // read has computed both before
	baseline, _ := sampleOf(r.Metric, p.baseline)
	in := r.Test.Interval
	return Bootstrap(len(units), in.Draws, in.Level, in.Seed, func(drawn []int) float64 {
		var s, b tally
		for _, u := range drawn {
			for _, row := range units[u] {
				s.add(subject, row)
				b.add(baseline, row)
			}
		}
		return r.improvement(s.metric(r.Metric), b.metric(r.Metric))
	})
}
