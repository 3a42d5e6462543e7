package trainer

import "fmt"

// The drift is looked at every driftEvery steps on driftRows preservation rows.
// Above its bound the learning rate is halved; a run that is above it after
// driftCuts of that ends.
const (
	driftEvery = 20
	driftRows  = 64
	driftCuts  = 3
)

// drift looks at how far the model has gone from the base, and reports whether
// the run ends there.
func (l *full) drift(step int) (done bool) {
	bound := l.Stage.Protect.Drift
	if bound == nil || step%driftEvery != 0 {
		return false
	}
	l.state.Drift = l.drifted()
	if l.state.Drift <= *bound {
		return false
	}
	l.state.Cuts++
	return l.state.Cuts > driftCuts
}

// drifted is the mean KL(base‖model) on the drift's rows, with the weights as they
// are.
func (l *full) drifted() (sum float64) {
	for i, t := range l.Model.NewPredictor().Teach(l.set.texts, l.kept.sample) {
		sum += l.kept.sample[i].Teacher.KL(t) / float64(len(l.kept.sample))
	}
	return sum
}

// driftWarning says what the bound on the drift did, and where the run ended: it may
// go over the bound after the last look.
func (l *full) driftWarning() {
	bound, end := l.Stage.Protect.Drift, l.res.Protection.Drift
	switch {
	case bound == nil:
	case l.state.Cuts > driftCuts:
		l.warn(Warning{Code: Drifted, Text: fmt.Sprintf(
			"training ended after step %d of %d: the answers to the protected suites went %.3f nats from the base's, over the bound of %g, and halving the learning rate %d times did not bring them back",
			l.state.Step, l.set.plan.Steps(), l.state.Drift, *bound, driftCuts)})
	case l.state.Cuts > 0:
		l.warn(Warning{Code: Drifted, Text: fmt.Sprintf(
			"the learning rate was halved %d times, because the answers to the protected suites went over the bound of %g nats from the base's; they ended at %.3f",
			l.state.Cuts, *bound, end)})
	case end > *bound:
		l.warn(Warning{Code: Drifted, Text: fmt.Sprintf(
			"the answers to the protected suites ended %.3f nats from the base's, over the bound of %g: they went over it after the last look, which is every %d steps",
			end, *bound, driftEvery)})
	}
}
