//go:build linux

// Command steps measures what the sandbox costs a training run: the same train
// binary, the same stage and the same base, started outside and in the sandbox that
// the launcher builds for kind train.fit, by turns.
//
//	go run ./test/bench/steps          # as root, some minutes
//
// A round runs both, the one that goes first by turns. A run is its whole process,
// start, evaluation and record included; its steps are read from its record. Both
// compute on every core and write their record to the same file system. The
// sandbox has its seccomp filter, Landlock, namespaces and control group; limits only
// where the host has the controllers on cgroup v2, which the result says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanzoai/link/launcher"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/spool"
)

// worker is the user of the workload outside and inside: nobody's, and not root.
const worker = 64321

func main() {
	rounds := flag.Int("n", 5, "rounds, each of which trains once outside and once inside")
	steps := flag.Int("steps", 120, "steps of a run")
	asJSON := flag.Bool("json", false, "print one JSON object instead of a table")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 || *steps < 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/bench/steps [-n ROUNDS] [-steps STEPS] [-json]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := measure(ctx, *rounds, *steps)
	if err == nil && *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(r)
	} else if err == nil {
		r.print()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(1)
	}
}

// A report is what was measured.
type report struct {
	Limits  string    `json:"limits"`
	Steps   int       `json:"steps"`
	Outside []float64 `json:"outside"` // steps a second, of each round
	Inside  []float64 `json:"inside"`
	Ratio   float64   `json:"ratio"` // the median of inside/outside, round by round
}

func (r *report) print() {
	fmt.Printf("%d steps a run, %d rounds; %s\n\n", r.Steps, len(r.Inside), r.Limits)
	fmt.Printf("steps/s   min     median  max\n")
	for _, row := range []struct {
		name string
		all  []float64
	}{{"outside", r.Outside}, {"inside", r.Inside}} {
		fmt.Printf("%-8s  %-6.2f  %-6.2f  %.2f\n", row.name, slices.Min(row.all), median(row.all), slices.Max(row.all))
	}
	fmt.Printf("\ninside/outside, the median of rounds: %.3f\n", r.Ratio)
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// A bench is what both ways of running are given.
type bench struct {
	dir     string
	threads int
	host    *sandbox.Host
	limits  sandbox.Limits
}

func measure(ctx context.Context, rounds, steps int) (_ *report, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the sandbox is root's to build: run as root")
	}
	b := bench{threads: runtime.NumCPU()}
	if b.dir, err = os.MkdirTemp("", "steps-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(b.dir)
	if err := os.Chmod(b.dir, 0o711); err != nil { // the workload's user passes through it
		return nil, err
	}
	if err := b.lesson(ctx, steps); err != nil {
		return nil, err
	}
	group, said, err := b.group()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(group)) }()
	stage, err := os.Open(filepath.Join(b.dir, "hanzo-stage"))
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	run := filepath.Join(b.dir, "run")
	if err := os.Mkdir(run, 0o711); err != nil {
		return nil, err
	}
	if b.host, err = sandbox.New(sandbox.Config{Group: group, Run: run, Stage: stage, User: worker}); err != nil {
		return nil, err
	}
	defer b.host.Close()

	r := &report{Limits: said, Steps: steps}
	var ratios []float64
	for round := range rounds {
		var outside, inside float64
		first, second := b.outside, b.inside
		into := []*float64{&outside, &inside}
		if round%2 == 1 {
			first, second = second, first
			slices.Reverse(into)
		}
		for i, way := range []func(context.Context, string) error{first, second} {
			id := fmt.Sprintf("act_%d_%d", round, i)
			began := time.Now()
			if err := way(ctx, id); err != nil {
				return nil, err
			}
			took := time.Since(began).Seconds()
			done, err := b.recorded(id)
			if err != nil {
				return nil, err
			}
			if done != steps {
				return nil, fmt.Errorf("run %s recorded %d steps, and %d were due", id, done, steps)
			}
			*into[i] = float64(done) / took
		}
		r.Outside, r.Inside = append(r.Outside, outside), append(r.Inside, inside)
		ratios = append(ratios, inside/outside)
		fmt.Fprintf(os.Stderr, "round %d: %.2f outside, %.2f inside\n", round+1, outside, inside)
	}
	r.Ratio = median(ratios)
	return r, nil
}

// lesson builds the binaries, and makes a stage and its base.
func (b *bench) lesson(ctx context.Context, steps int) error {
	for _, name := range []string{"train", "hanzo-stage"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(b.dir, name), "github.com/hanzoai/link/cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
	}
	stage := filepath.Join(b.dir, "stage")
	if err := os.Mkdir(stage, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`{
  "stage": "desk", "init": {"dir": "../base"},
  "takes": [{"suite": "desk", "file": "desk.jsonl", "state": ["text"], "label": "label"}],
  "frozen": [], "epochs": 1000, "max_steps": %d, "batch_tokens": 2048
}`, steps)
	if err := errors.Join(
		os.WriteFile(filepath.Join(stage, "desk.jsonl"), rows(2000), 0o644),
		os.WriteFile(filepath.Join(stage, "stage.json"), []byte(text), 0o644),
	); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"data", "import", "stage/desk.jsonl", "--label", "label"},
		{"init", "base", "--size", "nano", "--data", "data/desk"},
	} {
		cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "train"), args...)
		cmd.Dir, cmd.Env = b.dir, []string{"HOME=" + b.dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("train %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// rows are sentences of made-up words, the first of which decides the label.
func rows(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var out []byte
	for i := range n {
		label := r.IntN(8)
		words := []string{fmt.Sprintf("key%d", label), fmt.Sprintf("row%d", i)}
		for range 12 + r.IntN(20) {
			words = append(words, fmt.Sprintf("word%d", r.IntN(400)))
		}
		out = fmt.Appendf(out, `{"text":%q,"label":"label%d"}`+"\n", strings.Join(words, " "), label)
	}
	return out
}

// group makes the control group of the workloads, with the controllers that there
// are.
func (b *bench) group() (dir, said string, err error) {
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/unified"); err == nil {
		top += "/unified"
	}
	dir = filepath.Join(top, fmt.Sprintf("hanzo-steps-%d", os.Getpid()))
	offered, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil {
		return "", "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", "", err
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(offered)), c) {
			return dir, "without the controller " + c + " on cgroup v2: no limits", nil
		}
	}
	for _, g := range []string{top, dir} {
		if err := os.WriteFile(filepath.Join(g, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0); err != nil {
			return "", "", errors.Join(err, os.Remove(dir))
		}
	}
	b.limits = sandbox.Limits{Memory: 2 << 30, CPUs: float64(b.threads), Pids: 4096}
	return dir, "limits of memory, processors and processes", nil
}

// spool makes the folder of a run's record, the worker's.
func (b *bench) spool(id string) (string, error) {
	dir := filepath.Join(b.dir, "spool-"+id)
	return dir, errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, worker, worker))
}

func (b *bench) recorded(id string) (steps int, err error) {
	s, err := spool.Open(filepath.Join(b.dir, "spool-"+id), "", "")
	if err != nil {
		return 0, err
	}
	fold, err := s.Fold(id)
	if err != nil {
		return 0, err
	}
	return int(fold.View().Steps), nil
}

// outside runs train with the same arguments, as the same user.
func (b *bench) outside(ctx context.Context, id string) error {
	record, err := b.spool(id)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "run", id)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, worker, worker)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	spec := launcher.TrainFit{Activity: id, Dir: dir, CPUs: b.threads}.Spec()
	args := spec.Args[1:]
	for i, arg := range args {
		switch arg {
		case "/in/stage/stage.json":
			args[i] = filepath.Join(b.dir, "stage/stage.json")
		case "/spool":
			args[i] = record
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "train"), args...)
	cmd.Dir, cmd.Env = dir, spec.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: worker, Gid: worker}}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("outside: %w\n%s", err, out)
	}
	return nil
}

// inside runs it as the launcher does.
func (b *bench) inside(ctx context.Context, id string) (err error) {
	record, err := b.spool(id)
	if err != nil {
		return err
	}
	fit := launcher.TrainFit{Activity: id, Dir: filepath.Join(b.dir, "run", id), CPUs: b.threads, Limits: b.limits}
	for _, f := range []struct {
		to   **os.File
		name string
	}{
		{&fit.Program, filepath.Join(b.dir, "train")}, {&fit.Stage, filepath.Join(b.dir, "stage")},
		{&fit.Base, filepath.Join(b.dir, "base")}, {&fit.Spool, record},
	} {
		if *f.to, err = os.Open(f.name); err != nil {
			return err
		}
		defer (*f.to).Close()
	}
	w, err := b.host.Start(ctx, fit.Spec())
	if err != nil {
		return err
	}
	select {
	case <-w.Done():
	case <-ctx.Done():
		return errors.Join(ctx.Err(), w.Kill())
	}
	if exit := w.Exit(); exit.Cause != sandbox.Exited || exit.Code != 0 {
		return errors.New("inside: " + string(exit.Cause) + ", status " + strconv.Itoa(exit.Code) + ": " + string(exit.Stderr))
	}
	return nil
}
