package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	stageHash = strings.Repeat("5", 64)
	baseHash  = strings.Repeat("b", 64)
)

func TestParseTrainFit(t *testing.T) {
	plain := `{"stage": "` + stageHash + `", "base": "` + baseHash + `", "memory": 67108864, "cpus": 1, "disk": 1048576, "vram": 0, "gpus": [], "maxSec": 60}`
	got, err := ParseTrainFit([]byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	want := TrainFitInput{Stage: stageHash, Base: baseHash, Memory: 64 << 20, CPUs: 1, Disk: 1 << 20, GPUs: []int{}, MaxSec: 60}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	ask := Ask{Activity: "act_1", Kind: TrainFit, Org: "acme", Memory: 64 << 20, CPUs: 1, Disk: 1 << 20, MaxSec: 60}
	if d := cmp.Diff(ask, got.Ask("act_1", "acme")); d != "" {
		t.Error(d)
	}

	// Each row writes one thing otherwise.
	for _, tt := range []struct{ from, to, want string }{
		{`"vram": 0, "gpus": []`, `"vram": 1, "gpus": [0, 255]`, ""},
		{`"cpus": 1`, `"cpus": 1024`, ""},
		{`"maxSec": 60`, `"maxSec": 86400`, ""},
		{`{"stage"`, `{"argv": ["sh"], "stage"`, `/argv: unknown member; known are ["base" "cpus" "disk" "gpus" "maxSec" "memory" "stage" "vram"]`},
		{`{"stage"`, `{"env": {}, "stage"`, `/env: unknown member; known are ["base" "cpus" "disk" "gpus" "maxSec" "memory" "stage" "vram"]`},
		{`{"stage"`, `{"cpus": 1, "stage"`, `/cpus: duplicate object member name (byte 185)`},
		{`, "maxSec": 60`, ``, `/maxSec: member is missing`},
		{stageHash, strings.Repeat("A", 64), `/stage: "` + strings.Repeat("A", 64) + `" is not 64 lower-case hex digits`},
		{stageHash, "../" + stageHash[3:], `/stage: "../` + stageHash[3:] + `" is not 64 lower-case hex digits`},
		{stageHash, stageHash + `\n`, `/stage: "` + stageHash + `\n" is not 64 lower-case hex digits`},
		{baseHash, "", `/base: "" is not 64 lower-case hex digits`},
		{`"base": "` + baseHash + `"`, `"base": 7`, `/base: a number where a string is required`},
		{`"memory": 67108864`, `"memory": 67108863`, `/memory: 67108863 is not within 67108864 to 9007199254740992`},
		{`"memory": 67108864`, `"memory": "67108864"`, `/memory: a string where an integer is required`},
		{`"memory": 67108864`, `"memory": 67108864.5`, `/memory: 67108864.5 is not an integer within int64`},
		{`"memory": 67108864`, `"memory": 1e300`, `/memory: 1e300 is not an integer within int64`},
		{`"memory": 67108864`, `"memory": -67108864`, `/memory: -67108864 is not within 67108864 to 9007199254740992`},
		{`"cpus": 1`, `"cpus": 0`, `/cpus: 0 is not within 1 to 1024`},
		{`"cpus": 1`, `"cpus": 1025`, `/cpus: 1025 is not within 1 to 1024`},
		{`"disk": 1048576`, `"disk": 1048575`, `/disk: 1048575 is not within 1048576 to 9007199254740992`},
		{`"maxSec": 60`, `"maxSec": 59`, `/maxSec: 59 is not within 60 to 86400`},
		{`"maxSec": 60`, `"maxSec": 86401`, `/maxSec: 86401 is not within 60 to 86400`},
		{`"vram": 0`, `"vram": -1`, `/vram: -1 is not within 0 to 9007199254740992`},
		{`"vram": 0`, `"vram": 1`, `/gpus: names no accelerator while vram is 1; name one or write vram 0`},
		{`"gpus": []`, `"gpus": [0]`, `/gpus: names accelerators while vram is 0; write [] or the vram`},
		{`"gpus": []`, `"gpus": null`, `/gpus: null where an array is required`},
		{`"vram": 0, "gpus": []`, `"vram": 1, "gpus": [1, 0, 1]`, `/gpus/2: 1 stands twice`},
		{`"vram": 0, "gpus": []`, `"vram": 1, "gpus": [-1]`, `/gpus/0: -1 is not within 0 to 255`},
		{`"vram": 0, "gpus": []`, `"vram": 1, "gpus": [256]`, `/gpus/0: 256 is not within 0 to 255`},
	} {
		src := strings.Replace(plain, tt.from, tt.to, 1)
		if src == plain {
			t.Fatalf("%s is not in the input", tt.from)
		}
		_, err := ParseTrainFit([]byte(src))
		if got := message(err); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.to, got, tt.want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzParseTrainFit: no text panics, and what is accepted is an ask that a policy
// without limits admits.
func FuzzParseTrainFit(f *testing.F) {
	f.Add([]byte(`{"stage": "` + stageHash + `", "base": "` + baseHash + `", "memory": 67108864, "cpus": 1, "disk": 1048576, "vram": 1, "gpus": [0, 3], "maxSec": 60}`))
	f.Add([]byte(`{}`))
	all := Policy{Kinds: kinds, Orgs: []string{"acme"}, Caps: Caps{maxBytes, maxBytes, maxCPUs, maxBytes}, Concurrency: 1, MaxSec: maxSeconds}
	f.Fuzz(func(t *testing.T, src []byte) {
		in, err := ParseTrainFit(src)
		if err != nil {
			return
		}
		if err := all.Admit(in.Ask("act_1", "acme"), Held{}); err != nil {
			t.Errorf("%s: %v", src, err)
		}
	})
}

// The least workload is admitted by the least policy, and by nothing smaller.
func TestTrainFitLeastIsAdmitted(t *testing.T) {
	least := TrainFitInput{
		Stage: strings.Repeat("a", 64), Base: strings.Repeat("b", 64), Memory: TrainFitLeast.Memory, CPUs: TrainFitLeast.CPUs, Disk: TrainFitLeast.Disk, GPUs: []int{}, MaxSec: 60,
	}
	p := Policy{Kinds: []string{TrainFit}, Orgs: []string{"acme"}, Concurrency: 1, MaxSec: 60, Caps: TrainFitLeast}
	if err := p.Admit(least.Ask("act_1", "acme"), Held{}); err != nil || len(p.TrainFitLacks()) > 0 {
		t.Errorf("%v, lacking %v", err, p.TrainFitLacks())
	}
	for _, smaller := range []Caps{
		{Memory: TrainFitLeast.Memory - 1, CPUs: 1, Disk: TrainFitLeast.Disk}, {Memory: TrainFitLeast.Memory, Disk: TrainFitLeast.Disk}, {Memory: TrainFitLeast.Memory, CPUs: 1, Disk: TrainFitLeast.Disk - 1},
	} {
		p.Caps = smaller
		if err := p.Admit(least.Ask("act_1", "acme"), Held{}); err == nil || len(p.TrainFitLacks()) != 1 {
			t.Errorf("%+v: %v, lacking %v", smaller, err, p.TrainFitLacks())
		}
	}
}
