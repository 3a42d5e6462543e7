package report

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
)

// item is a scored answer given with confidence .8.
func item(id string, correct bool) gate.Item {
	p := 0.8
	return gate.Item{Item: id, Question: "q", Correct: &correct, PGold: &p, Confidence: &p, Brier: &p}
}

// items are n of them, the first right of which are.
func items(n, right int) []gate.Item {
	var list []gate.Item
	for i := range n {
		list = append(list, item(fmt.Sprint("i", i), i < right))
	}
	return list
}

func render(t *testing.T, r Report) string {
	t.Helper()
	var page bytes.Buffer
	if err := Write(&page, r); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func suites(n int) []Suite {
	var list []Suite
	for i := range n {
		list = append(list, Suite{
			Name: fmt.Sprint("suite", i), Before: items(10, 5), After: items(10, 7),
			Answers: []Answer{{"yes", "yes"}, {"yes", "no"}},
		})
	}
	return list
}

func steps(losses ...float64) []Step {
	var list []Step
	for i, loss := range losses {
		list = append(list, Step{Step: uint64(i + 1), Loss: loss})
	}
	return list
}

// hundred are the names of a hundred layers.
func hundred() []string {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("encoder.layers.%d.attn.Wqkv", i))
	}
	return names
}

// TestPage draws runs of every size: each suite has its section, and no number
// is one that could not be computed.
func TestPage(t *testing.T) {
	constant := make([]float64, 5000)
	tests := []struct {
		name string
		r    Report
	}{
		{"nothing", Report{}},
		{"one suite", Report{Suites: suites(1), Steps: steps(2, 1)}},
		{"a hundred suites", Report{Suites: suites(100), Steps: steps(2, 1)}},
		{"no base", Report{Suites: []Suite{{Name: "x", After: items(3, 3)}}}},
		{"no answers", Report{Suites: []Suite{{Name: "x"}}}},
		{"items without a verdict", Report{Suites: []Suite{{Name: "x", After: []gate.Item{{Item: "a", Question: "q"}}}}}},
		{"one step", Report{Steps: steps(1)}},
		{"a loss that stands still at 0", Report{Steps: steps(constant...)}},
		{"a loss below 0", Report{Steps: steps(-1, -2)}},
		{"a hundred layers over a thousand steps", Report{Protection: protected(), Shares: shares(1000, .5, hundred()...)}},
		{"shares alone", Report{Shares: shares(1, 0, "x", "")}},
		{"shares out of range", Report{Shares: shares(2, math.MaxFloat64, "x.1", "x.2")}},
		{"protection without shares", Report{Protection: protected()}},
		{"rows kept and nothing projected", Report{Protection: &trainer.Protection{Rows: map[string]int{"desk": 9}}}},
		{"a loss that explodes", Report{Steps: steps(1, math.MaxFloat64)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			page := render(t, tt.r)
			for _, word := range []string{"NaN", "Inf", "%!"} {
				if at := strings.Index(page, word); at >= 0 {
					t.Errorf("the page says %q", page[max(0, at-80):min(len(page), at+80)])
				}
			}
			for _, s := range tt.r.Suites {
				if !strings.Contains(page, "<h2>"+s.Name+"</h2>") {
					t.Errorf("%s has no section", s.Name)
				}
			}
			if len(page) > 1<<20 {
				t.Errorf("the page has %d bytes", len(page))
			}
		})
	}
}

// outside matches what would make a browser ask for something.
var outside = regexp.MustCompile(`(?i)(src|href|srcset|action|data)\s*=|url\(|@import|https?:|<(script|link|iframe|img|object|embed|base)\b`)

// TestNothingOutside checks that the page needs nothing but itself.
func TestNothingOutside(t *testing.T) {
	page := render(t, Report{Run: "r", Verdict: "fail", Suites: suites(2), Steps: steps(2, 1), Notices: []string{"n"}, Facts: []Fact{{"a", "b"}}, Protection: protected(), Shares: shares(3, .5, "head.probe")})
	if found := outside.FindString(page); found != "" {
		t.Errorf("the page has %q", found)
	}
	if !strings.Contains(page, `content="default-src 'none'`) {
		t.Error("the page does not forbid a browser to load anything")
	}
}

// TestHostile puts markup wherever someone's data reach the page.
func TestHostile(t *testing.T) {
	const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.Run}}`
	many := []Answer{{hostile, "a"}}
	for i := range 40 {
		many = append(many, Answer{fmt.Sprint(i), hostile})
	}
	suite := func(answers []Answer) Suite {
		return Suite{Name: hostile, Role: hostile, Rule: hostile, Verdict: hostile, Before: items(2, 1), After: items(2, 2), Answers: answers}
	}
	page := render(t, Report{
		Run: hostile, Sentence: hostile, Status: hostile, Verdict: hostile,
		Facts: []Fact{{hostile, hostile}}, Notices: []string{hostile}, Steps: steps(2, 1),
		Shares: shares(1, .5, hostile+".x", hostile+".y"),
		Protection: &trainer.Protection{
			Subspace: hostile, Energy: map[string]float64{hostile: 1}, Rows: map[string]int{hostile: 1}, Layers: []trainer.LayerProtection{{Layer: hostile}},
		},
		Suites: []Suite{suite(many), suite([]Answer{{hostile, hostile}, {"b", "c"}})},
	})
	for _, tag := range []string{"<script", "<img", `"'>`} {
		if strings.Contains(page, tag) {
			t.Errorf("the page has %s unescaped", tag)
		}
	}
	if want := "run <code>" + html.EscapeString(hostile); !strings.Contains(page, want) && !strings.Contains(page, "&lt;script&gt;") {
		t.Errorf("the page does not say what it was given")
	}
}

func TestSentence(t *testing.T) {
	unknown := math.NaN()
	pass, fail := &gate.Verdict{Verdict: "pass"}, &gate.Verdict{Verdict: "fail"}
	learned, held := Outcome{"triage", "target", .8, .871}, Outcome{"typed", "protected", .76, .75}
	tests := []struct {
		name    string
		suites  []Outcome
		verdict *gate.Verdict
		want    string
	}{
		{"no suite", nil, nil, "s ended"},
		{"no base", []Outcome{{"triage", "", unknown, .5}}, nil, "taught triage: 50.0 % right"},
		{"no gate", []Outcome{learned, held}, nil, "taught triage: +7.1 points, 87.1 % right; typed: -1.0 points, 75.0 % right"},
		{"passed", []Outcome{learned, held}, pass, "taught triage: +7.1 points, 87.1 % right; within budget: typed: -1.0 points, 75.0 % right"},
		{"failed", []Outcome{learned, held}, fail, "taught triage: +7.1 points, 87.1 % right; held against its budget: typed: -1.0 points, 75.0 % right; the gate failed"},
		{"no budget", []Outcome{learned, {"typed", Unjudged, .76, .45}}, pass, "taught triage: +7.1 points, 87.1 % right; judged by no budget: typed: -31.0 points, 45.0 % right"},
		{"nothing answered", []Outcome{{"triage", "", unknown, unknown}}, nil, "s ended"},
	}
	for _, tt := range tests {
		if got := Sentence("s", tt.suites, tt.verdict); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestSteps marks whole steps only.
func TestSteps(t *testing.T) {
	chart := string(lossChart(steps(2, 1)))
	for label, want := range map[string]bool{">1<": true, ">2<": true, ">1.2<": false} {
		if got := strings.Contains(chart, label); got != want {
			t.Errorf("the chart of steps 1 and 2 has a mark %s: %t, want %t", label, got, want)
		}
	}
}

func TestSuiteOf(t *testing.T) {
	for dataset, want := range map[string]string{
		"desk.test.0123456789ab":     "desk",
		"a.b.c.train.0123456789ab":   "a.b.c",
		"desk":                       "desk",
		"desk.test":                  "desk.test",
		"desk.test.0123456789abcdef": "desk.test.0123456789abcdef",
	} {
		if got := suiteOf(dataset); got != want {
			t.Errorf("suiteOf(%s) = %s, want %s", dataset, got, want)
		}
	}
}

func TestChanged(t *testing.T) {
	s := Suite{Before: items(10, 4), After: items(9, 6)}
	if got, want := changed(s), "2 repaired, 0 damaged"; got != want {
		t.Errorf("changed = %q, want %q", got, want)
	}
	s.Before, s.After = items(10, 6), items(10, 4)
	if got, want := changed(s), "0 repaired, 2 damaged"; got != want {
		t.Errorf("changed = %q, want %q", got, want)
	}
}
