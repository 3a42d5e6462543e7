package activity

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/spool/canon"
)

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"act_01JB7Q8ZK3M2N4P5R6S7T8V9W0": true, "act_a": true, "act_-_": true, "act_" + strings.Repeat("x", 60): true,
		"": false, "act_": false, "act": false, "ACT_1": false, "act_.": false, "act_..": false, "act_a/b": false, "act_a\x00": false,
		"act_é": false, "act_a ": false, "xact_a": false, "act_" + strings.Repeat("x", 61): false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v", id, got)
		}
	}
}

func TestNewID(t *testing.T) {
	const ms = 1761152645000
	a, b := NewID(time.UnixMilli(ms)), NewID(time.UnixMilli(ms+1))
	if !ValidID(a) || len(a) != len("act_01JB7Q8ZK3M2N4P5R6S7T8V9W0") {
		t.Errorf("%s is no id", a)
	}
	if a[:14] >= b[:14] || a[:14] != NewID(time.UnixMilli(ms))[:14] {
		t.Errorf("%s, and a millisecond later %s", a, b)
	}
	if a == NewID(time.UnixMilli(ms)) {
		t.Error("the same id twice")
	}
	if got := ulid([16]byte{15: 1}); got != "00000000000000000000000001" {
		t.Errorf("1 is %s", got)
	}
	all := [16]byte{}
	for i := range all {
		all[i] = 0xff
	}
	if got := ulid(all); got != "7ZZZZZZZZZZZZZZZZZZZZZZZZZ" { // the largest of the ULID specification
		t.Errorf("the largest is %s", got)
	}
}

// TestNext is A5's table: forward, ready and idle by turns, every live state may end.
func TestNext(t *testing.T) {
	all := []State{Requested, Pulling, Starting, Ready, Idle, Stopped, Failed, "", "paused"}
	legal := map[State][]State{
		Requested: {Pulling, Starting, Ready, Idle, Stopped, Failed},
		Pulling:   {Starting, Ready, Idle, Stopped, Failed},
		Starting:  {Ready, Idle, Stopped, Failed},
		Ready:     {Idle, Stopped, Failed},
		Idle:      {Ready, Stopped, Failed},
	}
	for _, from := range all {
		for _, to := range all {
			if got, want := from.Next(to), slices.Contains(legal[from], to); got != want {
				t.Errorf("%s to %s: %v", from, to, got)
			}
		}
	}
}

func TestEnvelope(t *testing.T) {
	right := Envelope{
		Activity: "act_1", Kind: "train.fit", Org: "acme", Project: "default", Requester: "acme/alice",
		Issued: "2026-10-22T17:04:05Z", Deadline: "2026-10-22T17:24:05Z", Input: canon.Raw(`{}`),
	}
	if err := right.Check(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Envelope){
		"activity":  func(e *Envelope) { e.Activity = "../etc" },
		"kind":      func(e *Envelope) { e.Kind = "" },
		"org":       func(e *Envelope) { e.Org = "a b" },
		"project":   func(e *Envelope) { e.Project = "a\x1b[2J" },
		"requester": func(e *Envelope) { e.Requester = strings.Repeat("x", 300) },
		"input":     func(e *Envelope) { e.Input = nil },
	} {
		e := right
		spoil(&e)
		if err := e.Check(); err == nil || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestRecords(t *testing.T) {
	for run, want := range map[string]bool{
		"act_1": true, "base_0123456789abcdef_act_1": true,
		"act_2": false, "act_1x": false, "": false, "base_0123456789abcdef_act_2": false, "base_0123456789abcdef_xact_1": false,
		"base_0123456789abcde_act_1": false, "base_0123456789abcdeg_act_1": false, "base__act_1": false, "base_act_1": false,
		"base_0123456789abcdef": false, "base_0123456789abcdef_act_1_x": false,
	} {
		if got := Records("act_1", run); got != want {
			t.Errorf("%s: %v", run, got)
		}
	}
}
