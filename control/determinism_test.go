package control_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// environment stores one, clean or dirty, that differs from others by its driver.
func (c *client) environment(dirty bool, driver string) canon.SHA256 {
	c.t.Helper()
	b, err := canon.Marshal(record.Environment{
		GitSHA: strings.Repeat("0a", 20), Dirty: dirty, LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil),
		Accelerator: record.Accelerator{API: record.CPU, Driver: driver},
		Precision:   record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
	})
	c.must(err)
	return c.put(record.KindEnvironment, record.Train, string(b))
}

// probed is a report of a probe in an environment; seed makes it another one.
func probed(environment canon.SHA256, seed int, exact bool) record.DeterminismReport {
	h := canon.HashOf(fmt.Append(nil, seed))
	r := record.DeterminismReport{
		EnvironmentArtifactSHA256: environment, ConfigSHA256: canon.Sum(nil),
		Probe: record.Probe{WeightsHash: h, OptimizerHash: h, RNGHash: h, BatchIDsHash: h},
		Exact: true, PredictionAgreement: 1, KnownNondeterministicOps: []string{},
	}
	for _, step := range record.ProbeSteps {
		r.Probe.Steps = append(r.Probe.Steps, record.ProbedStep{Step: step, A: h, B: h})
	}
	if !exact {
		last := &r.Probe.Steps[len(r.Probe.Steps)-1]
		last.B = canon.HashOf([]byte("other"))
		r.Exact, r.FirstDivergentStep = false, &last.Step
		r.MaxAbsWeightDelta, r.MaxRelWeightDelta = 1e-9, 1e-3
	}
	return r
}

func (c *client) putReport(r record.DeterminismReport) api.DeterminismStored {
	c.t.Helper()
	out, err := c.PutDeterminism(c.t.Context(), r)
	c.must(err)
	return out
}

func TestDeterminism(t *testing.T) {
	c := start(t).client("acme")
	env, other := c.environment(false, "one"), c.environment(false, "two")
	report := probed(env, 1, true)
	first := c.putReport(report)
	want, _ := canon.Of(report)
	if first != (api.DeterminismStored{ReportHash: want, Created: true}) {
		t.Errorf("stored %+v, want %s", first, want)
	}
	if again := c.putReport(report); again != (api.DeterminismStored{ReportHash: want}) {
		t.Errorf("stored again: %+v", again)
	}
	second := c.putReport(probed(env, 2, false))
	c.putReport(probed(other, 3, true))

	list := func(q api.DeterminismQuery) string {
		t.Helper()
		found, err := c.Determinism(t.Context(), q)
		c.must(err)
		var out []string
		for _, d := range found {
			if hash, _ := canon.Of(d.Report); hash != d.ReportHash || d.Received == "" {
				t.Errorf("listed %+v", d)
			}
			out = append(out, fmt.Sprint(d.Report.Exact, d.Reference))
		}
		return strings.Join(out, "; ")
	}
	for _, tt := range []struct {
		q    api.DeterminismQuery
		want string
	}{
		{api.DeterminismQuery{}, "true true; false false; true true"},
		{api.DeterminismQuery{Environment: env}, "true true; false false"},
		{api.DeterminismQuery{Environment: env, Limit: 1}, "true true"},
		{api.DeterminismQuery{Environment: env, After: string(first.ReportHash)}, "false false"},
		{api.DeterminismQuery{Environment: env, After: string(second.ReportHash)}, ""},
		{api.DeterminismQuery{Environment: canon.Sum(nil)}, ""},
	} {
		if got := list(tt.q); got != tt.want {
			t.Errorf("Determinism(%+v) is %q, want %q", tt.q, got, tt.want)
		}
	}
}

func TestRefusedDeterminism(t *testing.T) {
	c := start(t).client("acme")
	put := func(environment canon.SHA256) error {
		_, err := c.PutDeterminism(t.Context(), probed(environment, 1, true))
		return err
	}
	refused(t, "an environment that is not there", put(canon.Sum([]byte("none"))), api.NotStored)

	pending := artifact(record.KindEnvironment, record.Train)
	pending.SHA256, pending.Size = canon.Sum([]byte("later")), 5
	_, err := c.RegisterArtifact(t.Context(), pending, nil)
	c.must(err)
	refused(t, "an environment whose bytes have not come", put(pending.SHA256), api.NotStored)

	refused(t, "an artifact of another kind", put(c.put(record.KindConfig, record.Train, `{}`)), api.BadEnvironment)
	refused(t, "JSON that is no environment", put(c.put(record.KindEnvironment, record.Train, `{"dirty":false}`)), api.BadEnvironment)
	refused(t, "an environment without a precision", put(c.put(record.KindEnvironment, record.Train,
		`{"accelerator":{"api":"cpu","driver":"","version":""},"compiler_flags":[],"determinism_flags":[],"dirty":false,"git_sha":"","gpus":[],"image":null,"kernel_plan_hash":"`+
			string(canon.HashOf(nil))+`","kernels":"","lockfile_hash":"`+string(canon.HashOf(nil))+`","ml":"","precision":{"accumulate":"","compute":"","master":""}}`)), api.BadEnvironment)
	refused(t, "an endless environment", put(c.put(record.KindEnvironment, record.Train, `"`+strings.Repeat("x", 1<<20)+`"`)), api.BadEnvironment)

	lie := probed(c.environment(false, ""), 1, false)
	lie.Exact = true
	_, err = c.PutDeterminism(t.Context(), lie)
	refused(t, "a report that contradicts itself", err, api.Invalid)
	status, _, body := c.raw("POST", "/v1/research/determinism", strings.NewReader(`{"exact":true}`), "Content-Type", "application/json")
	if status != 400 || !strings.Contains(string(body), `"code":"invalid"`) {
		t.Errorf("a report without its members: %d %s", status, body)
	}
	found, err := c.Determinism(t.Context(), api.DeterminismQuery{})
	if err != nil || len(found) != 0 {
		t.Errorf("after refusals there are %+v, %v", found, err)
	}
}

// TestReference: a run is reference-eligible when its environment is not dirty and
// has a passing report, whenever that comes (HIP-1334 §6.3).
func TestReference(t *testing.T) {
	s := start(t)
	c, stranger := s.client("acme"), s.client("globex")
	clean, dirty, other := c.environment(false, "clean"), c.environment(true, "dirty"), c.environment(false, "other")
	created := func(c *client, run string, environment canon.SHA256) {
		e := event.RunCreated{
			Kind: "train", EnvironmentArtifactSHA256: environment,
			ConfigSHA256: c.put(record.KindConfig, record.Train, `{"stage":"test"}`), By: "test",
		}
		l := log{c: c, run: run}
		c.appends(run, l.next(e))
	}
	created(c, "before", clean)
	created(c, "on-dirty", dirty)
	created(c, "elsewhere", other)
	stranger.environment(false, "clean")
	created(stranger, "theirs", clean)

	check := func(when string, c *client, want ...string) {
		t.Helper()
		reference := map[string]bool{}
		for _, run := range want {
			reference[run] = true
		}
		views, err := c.Runs(t.Context(), api.RunQuery{})
		c.must(err)
		for _, listed := range views {
			one, err := c.Run(t.Context(), listed.ID)
			c.must(err)
			if want := reference[one.ID]; one.Reference != want || listed.Reference != want {
				t.Errorf("%s: run %s has reference %t, and %t in the list; want %t", when, one.ID, one.Reference, listed.Reference, want)
			}
			listed.Reference, one.Reference = false, false
			a, _ := canon.Of(listed)
			b, _ := canon.Of(one)
			if a != b {
				t.Errorf("%s: run %s is listed as %+v and is %+v", when, one.ID, listed, one)
			}
		}
	}
	check("without a report", c)
	c.putReport(probed(clean, 1, false))
	c.putReport(probed(dirty, 1, true))
	check("with a failing report, and a passing one of a dirty tree", c)
	c.putReport(probed(clean, 2, true))
	check("with a passing report", c, "before")
	created(c, "after", clean)
	check("a run after the report", c, "before", "after")
	c.putReport(probed(clean, 3, false))
	check("a failing report after a passing one", c, "before", "after")
	check("in another org with the same environment", stranger)
}
