package trainer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer/eval"
)

// Warning is something about a run that a person should know and that is not an
// error.
type Warning struct {
	Code  string // one of the codes below
	Suite string // the suite it is about, "" for the training itself
	Text  string // one sentence
}

// The codes of warnings.
const (
	Collapsed = "collapsed"  // the loss stayed at that of knowing nothing
	OneAnswer = "one_answer" // every question of a suite got one answer
	Clipped   = "clipped"    // every step's gradient was clipped
	CutRows   = "cut"        // some rows did not fit: how many, and which
	Truncated = "truncated"  // over 5 % of the rows did not fit
	Seen      = "seen"       // a state that trains also stands in an evaluated suite
	TooSmall  = "too_small"  // a suite's budget is a handful of its rows

	BelowMostCommon = "below_most_common" // always giving one answer is right as often as the model
	WithinNoise     = "within_noise"      // a target suite's change may be 0
	OneGold         = "one_gold"          // every question of a suite has one gold answer
	OneGroup        = "one_group"         // a suite is one group of rows: its change has no interval
	FewGroups       = "few_groups"        // so few that the interval says little
	NoHeldOut       = "no_held_out"       // nothing was held out to fit temperatures on
	AtChance        = "at_chance"         // the base answers a protected suite no better than without looking
	OrderFlips      = "order_flips"       // answers changed with the order of options, which is a fault of this program
)

// noHeldOut is the warning of its code.
var noHeldOut = Warning{Code: NoHeldOut, Text: "no row was held out, so no temperature was fitted: the probabilities are as the training left them"}

func (f *fit) warn(w ...Warning) { f.res.Warnings = append(f.res.Warnings, w...) }

// watch sees a run's steps go by.
type watch struct {
	losses  []float64 // cross-entropy, by step of this process
	clipped int
}

func (w *watch) step(cross float64, clipped bool) {
	w.losses = append(w.losses, cross)
	if clipped {
		w.clipped++
	}
}

// fewSteps is how many steps it takes before their losses or clips mean much.
const fewSteps = 20

// warnings is what the steps showed.
func (w *watch) warnings(s trainSet) []Warning {
	var list []Warning
	n := len(w.losses)
	if n >= fewSteps {
		tail := w.losses[n-max(n/10, 10):]
		var mean float64
		for _, l := range tail {
			mean += l / float64(len(tail))
		}
		if mean > 0.97*s.lnK {
			list = append(list, Warning{Code: Collapsed, Text: fmt.Sprintf(
				"the loss ended at %.3f, and answering evenly costs %.3f: nothing was learned; look at the labels and the learning rate", mean, s.lnK)})
		}
		if w.clipped == n {
			list = append(list, Warning{Code: Clipped, Text: fmt.Sprintf(
				"the gradient was clipped at every one of %d steps: the learning rate does not mean what it says", n)})
		}
	}
	if s.cut.Rows > 0 {
		list = append(list, Warning{Code: CutRows, Text: cutText(s.cut, len(s.rows), "training rows")})
	}
	if s.cut.Rows*20 > len(s.rows) {
		list = append(list, Warning{Code: Truncated, Text: fmt.Sprintf(
			"%d of %d training rows are longer than the model reads and were cut from the right", s.cut.Rows, len(s.rows))})
	}
	return list
}

// suiteWarnings is what an evaluation showed.
func suiteWarnings(r SuiteResult, seen int, t *Tolerance) []Warning {
	var list []Warning
	add := func(code, format string, args ...any) {
		list = append(list, Warning{Code: code, Suite: r.Suite, Text: r.Suite + ": " + fmt.Sprintf(format, args...)})
	}
	questions := len(r.Items)
	if oneAnswer(r.Result) {
		add(OneAnswer, "all %d questions got the answer %q", questions, r.Predictions[0].Answer)
	}
	if r.Cut.Rows > 0 {
		add(CutRows, "%s", cutText(r.Cut, r.Rows, "rows"))
	}
	if r.Cut.Rows*20 > r.Rows {
		add(Truncated, "%d of %d rows are longer than the model reads and were cut from the right", r.Cut.Rows, r.Rows)
	}
	list = append(list, trustWarnings(r)...)
	if than := atChance(r); r.Protected && than != "" {
		add(AtChance, "the base is right no more often than %s: protecting it protects nothing; teach it first, or leave it out of protect.suites", than)
	}
	if f := r.Flips; f.Changed > 0 {
		add(OrderFlips, "%d of %d questions were answered differently when their options were listed in another order: that is a fault of this program, please report it", f.Changed, f.Asked)
	}
	if seen > 0 {
		add(Seen, "%d of %d states also train: its numbers say little about new ones", seen, r.Rows)
	}
	if rows := float64(questions); t != nil && r.Protected && t.Accuracy*rows < 5 {
		add(TooSmall, "a budget of %g on %d questions is %.1f of them, which chance moves: use more rows or a wider budget", t.Accuracy, questions, t.Accuracy*rows)
	}
	return list
}

// atChance says what is right as often as the base is on a suite without looking
// at a state, "" where nothing is and where the base was not evaluated.
func atChance(r SuiteResult) string {
	i := slices.IndexFunc(r.Before, func(m gate.Measure) bool { return m.Category == gate.All && m.Metric == gate.Accuracy })
	if i < 0 || r.Common.Of == 0 {
		return ""
	}
	base := r.Before[i].Value - 1e-9 // so that the last bits of a mean do not decide
	switch {
	case base <= r.Chance:
		return fmt.Sprintf("chance, %.1f %% against %.1f %%", 100*r.Before[i].Value, 100*r.Chance)
	case base <= r.Common.Accuracy():
		return fmt.Sprintf("always giving the most common answer, %.1f %% against %.1f %%", 100*r.Before[i].Value, 100*r.Common.Accuracy())
	}
	return ""
}

// fewGroups is under how many groups a bootstrap's interval is too narrow to rely
// on: its ends are among the few means that so few groups can make.
const fewGroups = 10

// trustWarnings is why a suite's numbers may say less than they seem to.
func trustWarnings(r SuiteResult) []Warning {
	var list []Warning
	add := func(code, format string, args ...any) {
		list = append(list, Warning{Code: code, Suite: r.Suite, Text: r.Suite + ": " + fmt.Sprintf(format, args...)})
	}
	common := r.Common
	if common.Of > 0 && common.Golds == common.Questions && common.Options > common.Golds {
		add(OneGold, "the judging rows hold %d of %d answers", common.Golds, common.Options)
	}
	right := 0
	for _, it := range r.Items {
		if *it.Correct {
			right++
		}
	}
	if common.Of > 0 && right <= common.Right {
		always := fmt.Sprintf("answering %q", common.Answer)
		if common.Questions > 1 {
			always = "giving each question its most common answer"
		}
		add(BelowMostCommon, "always %s is right %.1f %% of the time: the model is not better than that", always, 100*common.Accuracy())
	}
	c := r.Change
	if c == nil {
		return list
	}
	if r.Target && c.Lo <= 0 && c.Hi >= 0 {
		add(WithinNoise, "the change of %+.1f points may be chance: its 95 %% interval is %+.1f to %+.1f", 100*c.Delta, 100*c.Lo, 100*c.Hi)
	}
	switch {
	case c.Groups < 2:
		add(OneGroup, "its %d rows are one group, so the change has no interval: judge on rows of more groups", r.Rows)
	case c.Groups < fewGroups:
		add(FewGroups, "its %d rows are %d groups: the interval of the change is unreliable under %d", r.Rows, c.Groups, fewGroups)
	}
	return list
}

// cutText says how many of n rows did not fit, and names the first.
func cutText(c eval.Cut, n int, rows string) string {
	items := strings.Join(c.Items, ", ")
	if c.Rows > len(c.Items) {
		items += ", …"
	}
	return fmt.Sprintf("%d of %d %s were cut to what the model reads: %s", c.Rows, n, rows, items)
}

// oneAnswer reports that a suite of many questions got one answer, where more
// than one is right.
func oneAnswer(r eval.Result) bool {
	if len(r.Items) < fewSteps || r.Answers > 1 {
		return false
	}
	for _, it := range r.Items {
		if !*it.Correct {
			return true
		}
	}
	return false
}
