package facts

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanzoai/link/control/api"
)

// What hangs is absent, costs its time once, and no second reader follows it.
func TestAPartThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released, readers := make(chan struct{}), 0
		all := []part{
			{"hangs", func(context.Context) func(*api.WorkerFacts) {
				readers++
				<-released
				return func(w *api.WorkerFacts) { w.Driver = "late" }
			}},
			{"answers", func(context.Context) func(*api.WorkerFacts) { return func(w *api.WorkerFacts) { w.Hostname = "evo" } }},
		}
		for range 3 {
			start := time.Now()
			w, err := read(t.Context(), time.Minute, all)
			if err != nil || w.Hostname != "evo" || w.Driver != "" {
				t.Errorf("%+v, %v", w, err)
			}
			if took := time.Since(start); took != time.Minute+time.Second {
				t.Errorf("took %v", took)
			}
		}
		close(released)
		synctest.Wait()
		if readers != 1 {
			t.Errorf("%d readers of what hangs", readers)
		}
		if w, _ := read(t.Context(), time.Minute, all); w.Driver != "late" {
			t.Errorf("once it answers: %+v", w)
		}
	})
}

func TestTheCallersEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, t.TempDir(), "", t.TempDir()); err != context.Canceled {
		t.Errorf("%v", err)
	}
}

func TestThisHost(t *testing.T) {
	dir := t.TempDir()
	w, err := Read(t.Context(), "/", "", dir+"/not/there/yet")
	if err != nil || w.OS == "" || w.Arch == "" || w.CPUs < 1 || w.Hostname == "" || w.Version == "" {
		t.Errorf("%+v, %v", w, err)
	}
	t.Logf("%+v", w)
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		" AMD EPYC\n":             "AMD EPYC",
		"a\tb  c":                 "a b c",
		"\x1b[2Jx\x00y\xff\u202e": "[2Jxy",
		strings.Repeat("é", 200):  strings.Repeat("é", 128),
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}
