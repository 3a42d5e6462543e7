//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// The test's binary is also the machine.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == asMachine {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestRest measures a moment: that the real agent comes to rest, and is looked at.
func TestRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("waits for the agent's second claim")
	}
	var said bytes.Buffer
	r, err := measure(t.Context(), 3*time.Second, &said)
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	if r.Rss == 0 || r.RssMax < r.Pss || r.Binary == 0 {
		t.Errorf("%+v\n%s", r, said.String())
	}
	var table, object bytes.Buffer
	if err := r.table(&table); err != nil || !strings.Contains(table.String(), "resident, MiB") {
		t.Errorf("%v: %s", err, table.String())
	}
	if err := r.json(&object); err != nil || !json.Valid(object.Bytes()) {
		t.Errorf("%v: %s", err, object.String())
	}
	t.Log("\n" + table.String())
}

func TestThisProcess(t *testing.T) {
	before := busy(os.Getpid())
	for began := time.Now(); busy(os.Getpid()) < before+time.Millisecond; {
		if time.Since(began) > time.Minute {
			t.Fatal("a process that computes takes no time")
		}
	}
	if kib(os.Getpid(), "status", "VmRSS") <= 0 || wakes(os.Getpid()) <= 0 {
		t.Error("this process holds no memory, or never waited")
	}
	if kib(1<<30, "status", "VmRSS") != 0 || busy(1<<30) != 0 {
		t.Error("a process that is not there takes something")
	}
}
