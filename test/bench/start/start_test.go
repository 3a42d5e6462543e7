//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStartRuns runs one round of what needs no root and nothing installed.
func TestStartRuns(t *testing.T) {
	program := filepath.Join(t.TempDir(), "empty")
	if err := build(program, module+"/empty", false); err != nil {
		t.Fatal(err)
	}
	r := &report{Host: describe(), Rounds: 1}
	if err := r.floor(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	if floor := r.Starts[0]; floor.Why != "" || floor.P50 <= 0 || floor.Ratio != 1 {
		t.Errorf("the empty program: %+v", floor)
	}
	var table, object bytes.Buffer
	if err := r.table(&table); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hanzo, parked", "bwrap", "runc", "crun", "go tool runc"} {
		if !strings.Contains(table.String(), "\n"+name+" ") {
			t.Errorf("the table does not name %s:\n%s", name, table.String())
		}
	}
	if err := r.json(&object); err != nil || !json.Valid(object.Bytes()) {
		t.Errorf("JSON: %v: %s", err, object.String())
	}
}

func TestQuantile(t *testing.T) {
	var samples []time.Duration
	for i := range 20 {
		samples = append(samples, time.Duration(20-i)) // 20 down to 1
	}
	for q, want := range map[float64]time.Duration{0: 1, .5: 10, .95: 19, 1: 20} {
		if got := quantile(samples, q); got != want {
			t.Errorf("quantile(1…20, %v) = %d, want %d", q, got, want)
		}
	}
	if got := quantile(samples[:1], .95); got != 20 {
		t.Errorf("quantile of one sample = %d, want it", got)
	}
}

var errAbsent = errors.New("absent")

// A contender that cannot run is kept, with why, and costs no other its rounds.
func TestRaceKeepsWhoCannotRun(t *testing.T) {
	n := time.Duration(0)
	runs := contender{name: "runs", start: func() (time.Duration, error) { n++; return n, nil }}
	fails := contender{name: "fails", start: func() (time.Duration, error) { return 0, errAbsent }}
	results, err := race(t.Context(), []contender{runs, fails}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(results[0].starts); got != 3 {
		t.Errorf("%d rounds counted, want 3 and the one that warms not", got)
	}
	if why := results[1].contender.why; why != errAbsent.Error() {
		t.Errorf("why it cannot run: %q", why)
	}
}
