package term

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func program(seen *[]string) Program {
	return Program{Name: "prog", About: "does things", Commands: []Command{
		{Name: "fit", Args: "FILE", Short: "teach", Setup: func(flags *flag.FlagSet) func(context.Context, IO, []string) error {
			seed := flags.Int("seed", 1, "the `number` that decides everything")
			return func(_ context.Context, _ IO, args []string) error {
				*seen = append([]string{fmt.Sprint(*seed)}, args...)
				return nil
			}
		}},
		{Name: "data import", Short: "read rows", Setup: func(*flag.FlagSet) func(context.Context, IO, []string) error {
			return func(context.Context, IO, []string) error { return Exit(Refused, errors.New("row 3 is empty")) }
		}},
	}}
}

func TestMain_(t *testing.T) {
	tests := []struct {
		args       string
		want       Status
		seen       string
		out, error string // substrings
	}{
		{"fit a.json", OK, "1 a.json", "", ""},
		{"fit a.json --seed 7 b", OK, "7 a.json b", "", ""},
		{"fit --seed=7 -- --seed", OK, "7 --seed", "", ""},
		{"fit --sead 7", Usage, "", "", "prog: fit: flag provided but not defined: -sead (prog help fit)"},
		{"data import", Refused, "", "", "prog: row 3 is empty\n"},
		{"fti", Usage, "", "", `did you mean "fit"?`},
		{"data", Usage, "", "", "data is one of: data import (prog help)"},
		{"data export", Usage, "", "", `unknown command "data export"; did you mean "data import"? (prog help)`},
		{"data --json", Usage, "", "", "data is one of: data import (prog help)"},
		{"help fti", Usage, "", "", `did you mean "fit"?`},
		{"help data", OK, "", "  prog data import  read rows\n", ""},
		{"data --help", OK, "", "  prog data import  read rows\n\nprog help data import says more.\n", ""},
		{"data -h", OK, "", "prog data import", ""},
		{"fti --help", Usage, "", "", `did you mean "fit"?`},
		{"", Usage, "", "", "prog fit FILE"},
		{"help", OK, "", "130  interrupted", ""},
		{"help fit", OK, "", "--seed number\n      the number that decides everything (default 1)", ""},
		{"fit --help", OK, "", "Exit statuses", ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var seen []string
			var out, errs bytes.Buffer
			got := program(&seen).Main(t.Context(), strings.Fields(tt.args), IO{Out: &out, Err: &errs})
			if got != tt.want {
				t.Errorf("status %d, want %d (%s)", got, tt.want, errs.String())
			}
			if s := strings.Join(seen, " "); s != tt.seen {
				t.Errorf("ran with %q, want %q", s, tt.seen)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("stdout %q lacks %q", out.String(), tt.out)
			}
			if !strings.Contains(errs.String(), tt.error) {
				t.Errorf("stderr %q lacks %q", errs.String(), tt.error)
			}
		})
	}
}

func TestStatusOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Status
	}{
		{nil, OK},
		{errors.New("no"), Failed},
		{Usagef("no"), Usage},
		{fmt.Errorf("fit: %w", Exit(Rejected, errors.New("no"))), Rejected},
		{fmt.Errorf("fit: %w", context.Canceled), Interrupted},
	} {
		if got := StatusOf(tt.err); got != tt.want {
			t.Errorf("StatusOf(%v) = %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"batch_tokens", "budget", "epochs", "seed"}
	for word, want := range map[string]string{"batch_token": "batch_tokens", "epoch": "epochs", "sed": "seed", "budgets": "budget"} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	table := NewTable(&out)
	table.Row("suite", "before", "after")
	table.Row("größe", "1.3", "92.1")
	table.Flush()
	if got, want := out.String(), "suite  before  after\ngröße     1.3   92.1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressOffTerminal(t *testing.T) {
	var out bytes.Buffer
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := NewProgress(&out)
	p.now = func() time.Time { return clock }
	for i := range 130 {
		p.Show(fmt.Sprintf("step %d", i))
		clock = clock.Add(time.Second)
	}
	if got, want := out.String(), "step 0\nstep 60\nstep 120\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestErrorOfOthers: an error may quote a server, and commands no terminal.
func TestErrorOfOthers(t *testing.T) {
	p := Program{Name: "hanzo", Commands: []Command{{Name: "ask", Setup: func(*flag.FlagSet) func(context.Context, IO, []string) error {
		return func(context.Context, IO, []string) error {
			return errors.New("it says \x1b]0;you\x07\x1b[2Jno\nand \u009b1mmore")
		}
	}}}}
	var out bytes.Buffer
	p.Main(t.Context(), []string{"ask"}, IO{Out: io.Discard, Err: &out})
	if got, want := out.String(), "hanzo: it says ]0;you[2Jno\nand 1mmore\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
