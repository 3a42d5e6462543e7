package policy

import (
	"errors"
	"strings"
	"testing"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// owner is a policy in which every rule has something to allow.
var owner = Policy{
	Kinds:       []string{EngineServe, TrainFit},
	Orgs:        []string{"acme", "zen"},
	Sources:     []Source{{Prefix: "huggingface.co/zenlm/", Hosts: []string{"*.hf.co"}}, {Prefix: "example.com/", Hosts: []string{}}},
	Models:      []string{"huggingface.co/zenlm/zen6-flash", "huggingface.co/zenlm/zen6@" + commit},
	Caps:        Caps{VRAM: 100, Memory: 1000, CPUs: 8, Disk: 5000},
	Concurrency: 2,
	IdleSec:     600,
	MaxSec:      3600,
}

// serve and fit are at the limit of all that owner allows.
var (
	serve = Ask{Activity: "act_1", Kind: EngineServe, Org: "acme", Model: "huggingface.co/zenlm/zen6@" + commit,
		VRAM: 100, Memory: 1000, CPUs: 8, Disk: 5000, IdleSec: 600, MaxSec: 3600}
	fit = Ask{Activity: "act_2", Kind: TrainFit, Org: "zen", Memory: 1, CPUs: 1, Disk: 1, MaxSec: 1}
)

func TestAdmit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ask    Ask
		change func(p *Policy, a *Ask, h *Held)
		want   error // nil: admitted
	}{
		{"all that is allowed", serve, nil, nil},
		{"the least", fit, nil, nil},
		{"beside one other", fit, func(p *Policy, a *Ask, h *Held) { h.Count = 1 }, nil},
		{"what others hold is Capacity's question", serve, func(p *Policy, a *Ask, h *Held) { h.Memory = 1000 }, nil},
		{"any commit of a model without one", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6-flash@" + commit }, nil},
		{"any model when none is named", serve, func(p *Policy, a *Ask, h *Held) { p.Models = nil; a.Model = "example.com/x/y" }, nil},

		{"kind", fit, func(p *Policy, a *Ask, h *Held) { a.Kind = FnRun },
			Denied{"kind", `asked for "fn.run", allowed are engine.serve, train.fit`}},
		{"kind, none", fit, func(p *Policy, a *Ask, h *Held) { p.Kinds = nil },
			Denied{"kind", `asked for "train.fit", allowed are none`}},
		{"kind, empty", fit, func(p *Policy, a *Ask, h *Held) { a.Kind = "" },
			Denied{"kind", `asked for "", allowed are engine.serve, train.fit`}},
		{"org", fit, func(p *Policy, a *Ask, h *Held) { a.Org = "Acme" },
			Denied{"org", `asked by "Acme", allowed are acme, zen`}},
		{"org, none", fit, func(p *Policy, a *Ask, h *Held) { p.Orgs = nil },
			Denied{"org", `asked by "zen", allowed are none`}},
		{"org, of many", fit, func(p *Policy, a *Ask, h *Held) { p.Orgs = strings.Split("abcdefghij", "") },
			Denied{"org", `asked by "zen", allowed are a, b, c, d, e, f, g, h and 2 more`}},
		{"source", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm-evil/zen6" },
			Denied{"source", `asked for "huggingface.co/zenlm-evil/zen6", allowed are models under huggingface.co/zenlm/, example.com/`}},
		{"source, climbing out", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/../evil/zen6" },
			Denied{"source", `asked for "huggingface.co/zenlm/../evil/zen6", allowed are models under huggingface.co/zenlm/, example.com/`}},
		{"source, at a branch", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6-flash@main" },
			Denied{"source", `asked for "huggingface.co/zenlm/zen6-flash@main", allowed are models under huggingface.co/zenlm/, example.com/`}},
		{"source, none named", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "" },
			Denied{"source", `engine.serve asked for no model`}},
		{"source, where none belongs", fit, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6-flash" },
			Denied{"source", `train.fit asked for the model "huggingface.co/zenlm/zen6-flash", and takes its base by hash`}},
		{"model", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6-flash-2" },
			Denied{"model", `asked for "huggingface.co/zenlm/zen6-flash-2", allowed are huggingface.co/zenlm/zen6-flash, huggingface.co/zenlm/zen6@` + commit}},
		{"model, another commit", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6@" + commit[1:] + "0" },
			Denied{"model", `asked for "huggingface.co/zenlm/zen6@` + commit[1:] + `0", allowed are huggingface.co/zenlm/zen6-flash, huggingface.co/zenlm/zen6@` + commit}},
		{"model, no commit where one is pinned", serve, func(p *Policy, a *Ask, h *Held) { a.Model = "huggingface.co/zenlm/zen6" },
			Denied{"model", `asked for "huggingface.co/zenlm/zen6", allowed are huggingface.co/zenlm/zen6-flash, huggingface.co/zenlm/zen6@` + commit}},
		{"caps.vram", serve, func(p *Policy, a *Ask, h *Held) { a.VRAM++ },
			Denied{"caps.vram", `asked for 101, allowed are 100`}},
		{"caps.vram, negative", serve, func(p *Policy, a *Ask, h *Held) { a.VRAM = -1 },
			Denied{"caps.vram", `asked for -1, which is less than 0`}},
		{"caps.memory", serve, func(p *Policy, a *Ask, h *Held) { a.Memory++ },
			Denied{"caps.memory", `asked for 1001, allowed are 1000`}},
		{"caps.memory, no limit", serve, func(p *Policy, a *Ask, h *Held) { a.Memory = 0 },
			Denied{"caps.memory", `asked for 0, which is less than 1`}},
		{"caps.memory, a cap of 0", fit, func(p *Policy, a *Ask, h *Held) { p.Caps.Memory = 0 },
			Denied{"caps.memory", `asked for 1, allowed are 0`}},
		{"caps.cpus", serve, func(p *Policy, a *Ask, h *Held) { a.CPUs++ },
			Denied{"caps.cpus", `asked for 9, allowed are 8`}},
		{"caps.disk", serve, func(p *Policy, a *Ask, h *Held) { a.Disk++ },
			Denied{"caps.disk", `asked for 5001, allowed are 5000`}},
		{"concurrency", fit, func(p *Policy, a *Ask, h *Held) { h.Count = 2 },
			Denied{"concurrency", `2 workloads are running, allowed are 2 at once`}},
		{"concurrency of 0", fit, func(p *Policy, a *Ask, h *Held) { p.Concurrency = 0 },
			Denied{"concurrency", `0 workloads are running, allowed are 0 at once`}},
		{"idleSec", serve, func(p *Policy, a *Ask, h *Held) { a.IdleSec++ },
			Denied{"idleSec", `asked for 601, allowed are 600`}},
		{"maxSec", serve, func(p *Policy, a *Ask, h *Held) { a.MaxSec++ },
			Denied{"maxSec", `asked for 3601, allowed are 3600`}},
		{"maxSec, no limit", serve, func(p *Policy, a *Ask, h *Held) { a.MaxSec = 0 },
			Denied{"maxSec", `asked for 0, which is less than 1`}},
		{"nothing said", fit, func(p *Policy, a *Ask, h *Held) { *p = Policy{} },
			Denied{"kind", `asked for "train.fit", allowed are none`}},
	} {
		p, a, h := owner, tt.ask, Held{}
		if tt.change != nil {
			tt.change(&p, &a, &h)
		}
		if got := p.Admit(a, h); got != tt.want {
			t.Errorf("%s:\n got %v\nwant %v", tt.name, got, tt.want)
		}
	}
}

// TestAdmitOrder: of two rules that refuse, the earlier is named.
func TestAdmitOrder(t *testing.T) {
	p := owner
	a := Ask{Kind: FnRun, Org: "other", Model: "elsewhere.net/x/y", VRAM: 101, Memory: 1001, CPUs: 9, Disk: 5001, IdleSec: 601, MaxSec: 3601}
	h := Held{Count: 2}
	for _, step := range []struct {
		rule string
		mend func()
	}{
		{"kind", func() { a.Kind = EngineServe }},
		{"org", func() { a.Org = "acme" }},
		{"source", func() { a.Model = "example.com/x/y" }},
		{"model", func() { a.Model = p.Models[0] }},
		{"caps.vram", func() { a.VRAM-- }},
		{"caps.memory", func() { a.Memory-- }},
		{"caps.cpus", func() { a.CPUs-- }},
		{"caps.disk", func() { a.Disk-- }},
		{"concurrency", func() { h.Count-- }},
		{"idleSec", func() { a.IdleSec-- }},
		{"maxSec", func() { a.MaxSec-- }},
	} {
		d, ok := errors.AsType[Denied](p.Admit(a, h))
		if !ok || d.Rule != step.rule || d.Code() != "denied" {
			t.Fatalf("refused by %q with code %q, want rule %q and code denied", d.Rule, d.Code(), step.rule)
		}
		step.mend()
	}
	if err := p.Admit(a, h); err != nil {
		t.Errorf("with every rule met: %v", err)
	}
}

func TestCapacity(t *testing.T) {
	// A tenth of the memory is 200, of the file system 1001 (rounded up).
	host := Free{Memory: 1500, MemoryTotal: 2000, Disk: 9000, DiskTotal: 10001}
	for _, tt := range []struct {
		name   string
		change func(a *Ask, h *Held, f *Free)
		want   error
	}{
		{"all that is allowed, on a free host", func(a *Ask, h *Held, f *Free) {}, nil},
		{"just what is left", func(a *Ask, h *Held, f *Free) {
			*h = Held{Count: 1, VRAM: 60, Memory: 400, CPUs: 3, Disk: 1000}
			a.VRAM, a.Memory, a.CPUs, a.Disk = 40, 600, 5, 4000
		}, nil},
		{"vram", func(a *Ask, h *Held, f *Free) { h.VRAM = 1 },
			Denied{"capacity.vram", "asked for 100, left are 99 of the cap of 100"}},
		{"memory", func(a *Ask, h *Held, f *Free) { h.Memory = 1 },
			Denied{"capacity.memory", "asked for 1000, left are 999 of the cap of 1000"}},
		{"memory, more held than a changed policy allows", func(a *Ask, h *Held, f *Free) { h.Memory = 2000 },
			Denied{"capacity.memory", "asked for 1000, left are 0 of the cap of 1000"}},
		{"cpus", func(a *Ask, h *Held, f *Free) { h.CPUs = 1 },
			Denied{"capacity.cpus", "asked for 8, left are 7 of the cap of 8"}},
		{"disk", func(a *Ask, h *Held, f *Free) { h.Disk = 1 },
			Denied{"capacity.disk", "asked for 5000, left are 4999 of the cap of 5000"}},
		{"memory, a tenth stays free", func(a *Ask, h *Held, f *Free) { f.Memory = 1199 },
			Denied{"capacity.memory", "asked for 1000 of 1199 that are free, and a tenth of 2000 must stay free"}},
		{"memory, exactly a tenth", func(a *Ask, h *Held, f *Free) { f.Memory = 1200 }, nil},
		{"memory that is free and promised", func(a *Ask, h *Held, f *Free) { a.Memory, h.Memory, f.MemoryTotal, f.Memory = 500, 500, 1100, 1090 },
			Denied{"capacity.memory", "asked for 500 beside 500 that running work holds, and a tenth of 1100 must stay free"}},
		{"disk, a tenth stays free", func(a *Ask, h *Held, f *Free) { f.Disk = 6000 },
			Denied{"capacity.disk", "asked for 5000 of 6000 that are free, and a tenth of 10001 must stay free"}},
		{"disk, exactly a tenth", func(a *Ask, h *Held, f *Free) { f.Disk = 6001 }, nil},
		{"disk that is free and promised", func(a *Ask, h *Held, f *Free) { a.Disk, h.Disk, f.DiskTotal, f.Disk = 2500, 2500, 5500, 5500 },
			Denied{"capacity.disk", "asked for 2500 beside 2500 that running work holds, and a tenth of 5500 must stay free"}},
		{"a host that says nothing of itself", func(a *Ask, h *Held, f *Free) { *f = Free{} },
			Denied{"capacity.memory", "asked for 1000 of 0 that are free, and a tenth of 0 must stay free"}},
	} {
		a, h, f := serve, Held{}, host
		tt.change(&a, &h, &f)
		err := owner.Capacity(a, h, f)
		if err != tt.want {
			t.Errorf("%s:\n got %v\nwant %v", tt.name, err, tt.want)
		}
		if d, ok := errors.AsType[Denied](err); ok && d.Code() != "capacity" {
			t.Errorf("%s: code %q", tt.name, d.Code())
		}
	}
}

// TestCapacityAtTheHighest: the highest numbers that can be asked and held do not
// overflow into a yes.
func TestCapacityAtTheHighest(t *testing.T) {
	p := Policy{Caps: Caps{maxBytes, maxBytes, maxCPUs, maxBytes}}
	a := Ask{VRAM: maxBytes, Memory: maxBytes, CPUs: maxCPUs, Disk: maxBytes}
	h := Held{VRAM: maxBytes, Memory: maxBytes, CPUs: maxCPUs, Disk: maxBytes}
	if err := p.Capacity(a, h, Free{maxBytes, maxBytes, maxBytes, maxBytes}); err == nil {
		t.Error("everything twice fits")
	}
}
