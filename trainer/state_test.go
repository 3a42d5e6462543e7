package trainer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
	"github.com/hanzoai/link/trainer/kai"
)

// stateful is an optimizer of one parameter whose tensors hold v, and the state
// of a step.
func stateful(step int, v float32) (*optimizer, state) {
	dev := cpu.New(1)
	p := param(dev, "encoder.a", "encoder", true, []float32{1, 2}, []float32{0, 0})
	o := newOptimizer(dev, []*kai.Param{p}, nil, 0, 0)
	for _, x := range o.values() {
		dev.Write(x.mem, []float32{v, -v})
	}
	sum := func(s string) canon.SHA256 { return canon.Sum([]byte(s)) }
	return o, state{Step: step, Tokens: uint64(step) * 7, Config: sum("config"), Plan: sum("plan"), Base: sum("base"), Best: &best{1, .5, 0}}
}

// load reads dir and reports the step and the first value found.
func load(t *testing.T, dir string) (step int, value float32) {
	t.Helper()
	o, want := stateful(0, 0)
	s, found, err := loadState(o.dev, dir, want, o.values())
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return 0, 0
	}
	for _, x := range o.values() {
		if x.mem.Host[0] != o.masters[0].d.Host[0] || x.mem.Host[1] != -x.mem.Host[0] {
			t.Fatalf("%s = %v, beside d = %v", x.name, x.mem.Host, o.masters[0].d.Host)
		}
	}
	return s.Step, o.masters[0].d.Host[0]
}

// TestState: what is saved is loaded, the newest counts, older ones go.
func TestState(t *testing.T) {
	dir := filepath.Join(tempDir(t), "state")
	if step, _ := load(t, dir); step != 0 {
		t.Errorf("a folder that is not there has step %d", step)
	}
	for _, n := range []int{3, 9, 10} {
		o, s := stateful(n, float32(n))
		if err := saveState(durable.On(durable.OS), o.dev, dir, s, o.values()); err != nil {
			t.Fatal(err)
		}
		if step, value := load(t, dir); step != n || value != float32(n) {
			t.Errorf("after saving step %d, step %d with %v is loaded", n, step, value)
		}
	}
	if names := entries(t, dir); !slices.Equal(names, []string{"10"}) {
		t.Errorf("%v are kept, want the newest alone", names)
	}
	o, want := stateful(0, 0)
	s, _, err := loadState(o.dev, dir, want, o.values())
	if err != nil {
		t.Fatal(err)
	}
	_, saved := stateful(10, 10)
	saved.Format, saved.Tensors = stateFormat, s.Tensors
	if d := cmp.Diff(saved, s); d != "" {
		t.Errorf("the state changed on the way:\n%s", d)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestStateFault breaks every call of saving a state, failed and not applied and
// failed but applied, and kills the process there: what a restarted process
// finds is the state before or the one being saved, whole, and saving again
// works.
func TestStateFault(t *testing.T) {
	save := func(fs *durabletest.FS, dir string, step int) error {
		o, s := stateful(step, float32(step))
		return saveState(durable.On(fs), o.dev, dir, s, o.values())
	}
	clean, whole := filepath.Join(tempDir(t), "state"), &durabletest.FS{}
	for step, fs := range []*durabletest.FS{1: {}, 2: whole} {
		if fs == nil {
			continue
		}
		if err := save(fs, clean, step); err != nil {
			t.Fatal(err)
		}
	}
	type killed struct{}
	faults := map[string]durabletest.Fault{
		"full":         {Err: syscall.ENOSPC},
		"full, part":   {Err: syscall.ENOSPC, Lands: 3},
		"error, done":  {Err: syscall.EIO, Applied: true},
		"killed":       {Then: func() { panic(killed{}) }},
		"killed after": {Applied: true, Then: func() { panic(killed{}) }},
	}
	for name, fault := range faults {
		for n := 1; n <= whole.Calls(); n++ {
			dir := filepath.Join(tempDir(t), "state")
			if err := save(&durabletest.FS{}, dir, 1); err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() {
					if r := recover(); r != nil && r != any(killed{}) {
						panic(r)
					}
				}()
				broken := &durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
					if c.N == n {
						return fault
					}
					return durabletest.Fault{}
				}}
				if err := save(broken, dir, 2); fault.Err != nil && !errors.Is(err, fault.Err) {
					t.Errorf("%s at call %d: saveState = %v, want %v", name, n, err, fault.Err)
				}
			}()
			if step, value := load(t, dir); step != 1 && step != 2 || value != float32(step) {
				t.Errorf("%s at call %d: step %d with %v is loaded, want 1 or 2, whole", name, n, step, value)
			}
			if err := save(&durabletest.FS{}, dir, 2); err != nil {
				t.Errorf("%s at call %d: saving again: %v", name, n, err)
			}
			if step, value := load(t, dir); step != 2 || value != 2 {
				t.Errorf("%s at call %d: after saving again step %d with %v is loaded", name, n, step, value)
			}
		}
	}
}

// TestStateRefuses: a state of another run, or one that was damaged, is refused
// and not worked around.
func TestStateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(dir string, s *state)
		want  string
	}{
		{"another stage", func(_ string, s *state) { s.Config = canon.Sum(nil) }, "the stage is another one"},
		{"another plan", func(_ string, s *state) { s.Plan = canon.Sum(nil) }, "the data or plan is another one"},
		{"another subspace", func(_ string, s *state) { s.Subspace = "other" }, "projection_mismatch"},
		{"another base", func(_ string, s *state) { s.Base = canon.Sum(nil) }, "the base is another one"},
		{"a flipped bit", func(dir string, _ *state) {
			name := filepath.Join(dir, "4", "tensors.safetensors")
			b, _ := os.ReadFile(name)
			b[len(b)-1] ^= 1
			os.WriteFile(name, b, 0o666)
		}, "is damaged"},
		{"a missing file", func(dir string, _ *state) { os.Remove(filepath.Join(dir, "4", "state.json")) }, "state.json"},
		{"a later format", func(dir string, _ *state) {
			name := filepath.Join(dir, "4", "state.json")
			b, _ := os.ReadFile(name)
			os.WriteFile(name, []byte(strings.Replace(string(b), `"format":2`, `"format":3`, 1)), 0o666)
		}, "format 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tempDir(t)
			o, s := stateful(4, 4)
			if err := saveState(durable.On(durable.OS), o.dev, dir, s, o.values()); err != nil {
				t.Fatal(err)
			}
			tt.spoil(dir, &s)
			if _, _, err := loadState(o.dev, dir, s, o.values()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("loadState = %v, want an error with %q", err, tt.want)
			}
		})
	}
}
