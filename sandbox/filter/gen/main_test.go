//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestEveryKnownCallMustBeDecided(t *testing.T) {
	numbers, err := known()
	if err != nil {
		t.Fatal(err)
	}
	table, err := parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(table, numbers); err != nil {
		t.Fatal(err)
	}

	refused := func(want string) {
		t.Helper()
		if err := complete(table, numbers); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("complete: %v, want %q", err, want)
		}
	}
	// A newer golang.org/x/sys brings a call.
	numbers["arm64"]["newcall"] = 500
	refused("newcall (500 on arm64) is not decided")
	delete(numbers["arm64"], "newcall")

	table["raed"] = "allow"
	refused("knows no call raed")
	delete(table, "raed")

	table["clone"] = "allow"
	refused("clone is checked in only one")
	table["clone"] = "check"

	table["read"] = "check"
	refused("read is checked in only one")
}

func TestParseRefuses(t *testing.T) {
	for policy, want := range map[string]string{
		"allow: read\nEPERM: read": "read is decided twice",
		"read":                     "in no group",
		"permit: read":             "in no group",
	} {
		if _, err := parse(policy); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q): %v, want %q", policy, err, want)
		}
	}
}

func TestAProgramTooLongForItsJumpsIsRefused(t *testing.T) {
	calls := make(map[uint32]verdict)
	for number := range uint32(limit) {
		calls[2*number] = allow // and every other is ENOSYS
	}
	if _, err := assemble(architectures[0], calls); err == nil {
		t.Error("assembled")
	}
}
