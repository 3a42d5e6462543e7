package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hanzoai/link/cmd/internal/benchcmd"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/cmd/internal/traincmd"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/spool/durable"
)

var demoCommand = term.Command{
	Name:  "demo",
	Short: "show the main job, start to end, on an embedded control plane",
	Long: `
Makes messages to a help desk, teaches a small model from nothing which queue each
belongs in, then teaches that model whether the writer is about to leave, under a
gate that holds what it learned first: once alone, which forgets, and once
protected. Every run is recorded in a spool and sent to a control plane that
lives as long as the demo. Every command is shown as one would type it.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		dir := flags.String("dir", "", "the new `folder` to work in; default hanzo-demo in the system's folder for temporary files, anew each time")
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("demo takes no arguments")
			}
			d := demo{streams: streams, began: time.Now()}
			return d.run(ctx, *dir)
		}
	},
}

// The demo's sizes: enough rows that a model from nothing learns, few enough
// that two cores are done in under two minutes.
const (
	queueRows = 1200
	leaveRows = 900
)

// The demo's stage files. The second and the third hold what the first taught to
// a budget; the second turns off what would protect it.
const (
	queueStage = `{
  "stage": "queue",
  "init": {"dir": "new"},
  "takes": [{"suite": "queue", "file": "queue.jsonl", "state": ["text"], "label": "queue",
             "instructions": "which queue does this message belong in"}],
  "adaptation": {"mode": "full"},
  "evaluation": {"suites": ["queue"]},
  "frozen": [], "lr_encoder": 0.002, "lr_head": 0.002, "epochs": 6, "batch_tokens": 1024
}
`
	leaveStage = `{
  "stage": "leave",
  "init": {"dir": "runs/queue/checkpoint", "stage": "queue"},
  "takes": [{"suite": "leave", "file": "leave.jsonl", "state": ["text"], "label": "leave", "type": "noul", "positive": "true",
             "instructions": "is the writer about to leave"},
            {"suite": "queue", "rows": 0}],
  "adaptation": {"mode": "full"},
  "protect": {"suites": ["queue"], %s"budget": {"accuracy": 0.05, "ece": 0.1}},
  "evaluation": {"suites": ["leave"]},
  "frozen": [], "lr_encoder": 0.001, "lr_head": 0.002, "epochs": 6, "batch_tokens": 512
}
`
	unprotected = `"projection": {"strength": 0}, "distillation": false, `
)

type demo struct {
	streams term.IO
	began   time.Time
}

func (d *demo) run(ctx context.Context, dir string) error {
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "hanzo-demo")
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return term.Usagef("%s exists: name a new folder", dir)
		}
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil { // so that the commands are as a person would type them
		return err
	}
	for name, content := range map[string][]byte{
		"queue.jsonl": messages(1, queueRows, "queue"), "leave.jsonl": messages(2, leaveRows, "leave"),
		"queue.json": []byte(queueStage), "leave.json": fmt.Appendf(nil, leaveStage, unprotected), "both.json": fmt.Appendf(nil, leaveStage, ""),
	} {
		if err := durable.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	stop, err := d.plane(ctx)
	if err != nil {
		return err
	}
	defer stop()
	d.say("In %s: %d messages with their queue, %d with whether the writer leaves.", dir, queueRows, leaveRows)
	for _, step := range []step{
		{"Read the first file into a suite.", traincmd.Program(), []string{"data", "import", "queue.jsonl", "--label", "queue", "--state", "text", "--instructions", "which queue does this message belong in"}, term.OK},
		{"Make a small model from nothing: its vocabulary is learned on the rows.", traincmd.Program(), []string{"init", "new", "--size", "nano", "--data", "data/queue"}, term.OK},
		{"Teach it the queue. It is evaluated before and after.", traincmd.Program(), []string{"fit", "queue.json", "--run", "queue"}, term.OK},
		{"Teach it a second question, with protection turned off. A gate, frozen before the run, holds the first to a budget. It fails: the first is forgotten.", traincmd.Program(), []string{"fit", "leave.json", "--run", "leave"}, term.Rejected},
		{"Again from the same start, protected, which is the default: nothing of the change lies in the directions that the first question needs, and its answers are held. Both hold.", traincmd.Program(), []string{"fit", "both.json", "--run", "both"}, term.OK},
		{"Send what is recorded here to the control plane.", traincmd.Program(), []string{"sync"}, term.OK},
		{"Compare: the control plane folds the same events to the same runs.", traincmd.Program(), []string{"sync", "--check"}, term.OK},
		{"Ask what was taught.", traincmd.Program(), []string{"ask", "runs/both/checkpoint", "my parcel has not arrived and I am done with this shop"}, term.OK},
		{"Draw the run.", benchcmd.Program(), []string{"report", "both", "report.html"}, term.OK},
	} {
		if err := d.step(ctx, step); err != nil {
			return err
		}
	}
	d.say("\nDone in %s. Everything is in %s; report.html shows the last run.", time.Since(d.began).Round(time.Second), dir)
	d.say("On a file of your own, with an encoder you have (a BERT or ModernBERT folder):")
	d.say("  go run ./cmd/train fit rows.csv --state text --label answer --encoder FOLDER")
	return nil
}

// step is one command of the demo and how it ends. A model's bits are the same
// on every machine, and so is a gate's verdict.
type step struct {
	why  string
	prog term.Program
	args []string
	want term.Status
}

// step shows a command and runs it.
func (d *demo) step(ctx context.Context, s step) error {
	d.say("\n# %s\n$ %s", s.why, commandLine(s.prog.Name, s.args))
	switch status := s.prog.Main(ctx, s.args, d.streams); status {
	case s.want:
		return nil
	case term.Interrupted:
		return context.Canceled
	default:
		return term.Exit(max(status, term.Failed), fmt.Errorf("the demo stops: %s %s ended with status %d, and %d was due", s.prog.Name, s.args[0], status, s.want))
	}
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.streams.Out, format+"\n", args...) }

// plane serves a control plane in ./cloud on a free port and points this
// process's commands at it. stop ends it and waits.
func (d *demo) plane(ctx context.Context) (stop func(), err error) {
	p, err := openPlane(ctx, "cloud", "127.0.0.1:0", "local", false)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"HANZO_API": p.url(), "HANZO_TOKEN_FILE": p.tokenFile, "HANZO_SPOOL": "spool"} {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		done <- p.serve(serving, control.Config{Log: slog.New(slog.NewTextHandler(d.streams.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	}()
	d.say("A control plane serves %s for as long as this runs.", p.url())
	return func() {
		cancel()
		if err := errors.Join(<-done, p.close()); err != nil {
			fmt.Fprintf(d.streams.Err, "stopping the control plane: %v\n", err)
		}
	}, nil
}

// commandLine is a command as a person would type it.
func commandLine(name string, args []string) string {
	line := name
	for _, a := range args {
		if !plainWord(a) {
			a = `"` + a + `"`
		}
		line += " " + a
	}
	return line
}

func plainWord(s string) bool {
	for _, r := range s {
		if r == ' ' || r == '"' {
			return false
		}
	}
	return s != ""
}
