package offer

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hanzoai/link/policy"
)

// ready is a host that offers train.fit.
func ready() found {
	return found{
		policy: policy.Policy{
			Kinds: []string{policy.TrainFit}, Orgs: []string{"acme"}, Concurrency: 1, MaxSec: 86400,
			Caps: policy.Caps{Memory: 4 << 30, CPUs: 8, Disk: 10 << 30},
		},
	}
}

func TestWhyNot(t *testing.T) {
	for _, c := range []struct {
		what  string
		alter func(*found)
		says  string
	}{
		{"ready", func(*found) {}, "4 GiB of memory, 8 cores, 10 GiB of disk and no accelerator; 1 workload at once"},
		{"an accelerator too", func(f *found) { f.policy.Caps.VRAM = 1 << 30 }, "1 GiB of accelerator memory"},
		{"no policy", func(f *found) { f.policy, f.unread = policy.Policy{}, errors.New("it is broken") }, "the policy cannot be used: it is broken"},
		{"not admitted", func(f *found) { f.policy.Kinds = nil }, "sudo hanzo policy allow train.fit"},
		{"of nobody", func(f *found) { f.policy.Orgs = nil }, "work of no org"},
		{"no memory", func(f *found) { f.policy.Caps.Memory = 0 }, "caps.memory is 0"},
		{"little memory", func(f *found) { f.policy.Caps.Memory = 32 << 20 }, "caps.memory is 33554432"},
		{"no cores", func(f *found) { f.policy.Caps.CPUs = 0 }, "caps.cpus is 0"},
		{"no disk, none at once", func(f *found) { f.policy.Caps.Disk, f.policy.Concurrency = 0, 0 }, "caps.disk is 0, concurrency is 0"},
		{"no time", func(f *found) { f.policy.MaxSec = 59 }, "maxSec is 59"},
		{"no binary", func(f *found) { f.binaries = map[string]error{"train": errors.New("train is gone")} }, "train is gone"},
		{"no sandbox", func(f *found) { f.unable, f.policy.Kinds = "cgroup v2: hybrid", nil }, "cgroup v2: hybrid"},
		{"not root", func(f *found) { f.untried = "root's to try" }, "root's to try"},
		{"not root and not admitted", func(f *found) { f.untried, f.policy.Kinds = "root's to try", nil }, "does not admit"},
	} {
		f := ready()
		c.alter(&f)
		all := f.judge()
		if len(all) != len(Kinds) {
			t.Fatalf("%d kinds", len(all))
		}
		if v := all[0]; v.Kind != policy.TrainFit || v.Offered != (c.what == "ready" || f.policy.Caps.VRAM > 0) || !strings.Contains(v.Why, c.says) {
			t.Errorf("%s: %+v", c.what, v)
		}
		for _, v := range all[1:] {
			if v.Offered || v.Why == "" {
				t.Errorf("%s: %+v", c.what, v)
			}
		}
	}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	f := ready()
	f.policy.Kinds = nil
	Print(&out, f.judge())
	const want = `  not offered  train.fit: the policy does not admit it: sudo hanzo policy allow train.fit
  not offered  engine.serve, studio.render, fn.run: this version of hanzo link does not run it
  so this host would offer nothing now
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
