// Command protection measures what protect does on real text: how much a model that
// is taught something new loses of what it knew, by each way of protecting it.
//
//	go run ./test/bench/protection -dir FOLDER                  the whole table, some hours
//	go run ./test/bench/protection -dir FOLDER -targets snips -variants unprotected,default -seeds 1
//	go run ./test/bench/protection -dir FOLDER -steps 2 -rows 40   whether it works, some minutes
//
// # What is measured
//
// The base is the MiniLM encoder with a new head, trained two epochs on the sections
// of Debian packages, on reviews of foods and on spam. It knows these three suites.
// It was never trained on clinc150, 150 intents, and answers it from what the
// encoder brings: a suite off the base's own data.
//
// A run teaches the base one target, snips (7 intents) or banking77 (77), for -steps
// steps of -tokens context tokens. Then the four suites are asked again, and the
// target. The rows of a suite that judge are its authors' test rows, the same before
// and after, and nothing trains on them. The variants differ in protect and nothing
// else:
//
//	unprotected    no protection
//	gradient-only  the protected directions leave the gradient, not the update:
//	               what is usually done, to compare with
//	projection     they leave the whole update (λ = 1)
//	distillation   the base's answers are held on rows of the suites
//	both           projection and distillation
//	default        what protect does when only suites are named; it is one of these,
//	               and not run twice
//
// -try adds one: NAME={JSON}, fields of the stage; where it has protect, the suites
// are put in.
//
// # Which rows
//
// Of each split the first rows in order of the SHA-256 of their text, as many as
// suites says here. States are cut to 48 tokens. Of banking77 a tenth of the training
// rows, by hash, is held out for the temperatures, for its authors held out none.
//
// # The table
//
// A row of it is a variant, over the seeds that were run. A change is the mean over the seeds of
// accuracy after less before, in points; the interval is the 95 % paired bootstrap
// over the suite's rows, a row's answers of all seeds drawn together, so it is about
// other rows and not about other seeds. KL is KL(base‖model) in nats, without
// temperatures, the mean over 64 preservation rows. ‖D‖/‖W‖
// is over the linear layers. Energy kept is what share of the suites' gradients the
// subspace holds, removed what share of the steps' gradients it took, leak what the
// stored change has left in it. s/step and s are wall times of a step and of a run
// with its evaluation, and compare only where nothing else ran.
//
// # How it goes on
//
// Every run is a process of its own, so that its memory is returned. What is in -dir
// is not done again, an interrupted run goes on from its last saved state, and a run
// whose stage, rows or base would be others now is refused. All results are bits of
// the data, the encoder and the flags, on every machine; the times are not. The base
// takes a quarter of an hour on two cores and a run three to six minutes. A run leaves
// about a megabyte in -dir, or half a gigabyte with -keep. -dir then has results.json
// and table.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A bench is what was asked for.
type bench struct {
	dir, data, encoder, base string

	targets, variants []string
	seeds             int
	rows              int // of each split at most; 0: as suites says
	steps, tokens     int
	lrEncoder, lrHead float64
	keep, done        bool
}

func main() {
	var b bench
	flag.StringVar(&b.data, "data", "../shared/data", "the `folder` of data sets")
	flag.StringVar(&b.encoder, "encoder", "testdata/minilm", "the `folder` of the encoder")
	flag.StringVar(&b.dir, "dir", "", "keep everything in this `folder`, and go on with what is there")
	flag.StringVar(&b.base, "base", "", "the `folder` of the base's checkpoint; default trained in -dir")
	targets := flag.String("targets", "snips,banking77", "the suites to teach, separated by commas")
	names := flag.String("variants", "", "the variants to run, separated by commas; default all")
	flag.Func("try", "add the variant `NAME={JSON}`", func(s string) error {
		name, overlay, found := strings.Cut(s, "=")
		if !found {
			return errors.New("want NAME={JSON}")
		}
		variants = append(variants, variant{name: name, overlay: overlay})
		return nil
	})
	flag.IntVar(&b.seeds, "seeds", 3, "seeds of each variant, from 1")
	flag.IntVar(&b.rows, "rows", 0, "rows of each split at most, to try it; 0 is all of them")
	flag.IntVar(&b.steps, "steps", 60, "steps of a run")
	flag.IntVar(&b.tokens, "tokens", 768, "context tokens of a step")
	flag.Float64Var(&b.lrEncoder, "lr-encoder", 5e-5, "peak learning rate of the encoder")
	flag.Float64Var(&b.lrHead, "lr-head", 5e-4, "peak learning rate of the head")
	flag.BoolVar(&b.keep, "keep", false, "keep every run's checkpoint and record")
	flag.BoolVar(&b.done, "done", false, "run nothing: the table of what is done")
	one := flag.String("run", "", "do this one run here, TARGET/VARIANT/SEED or base, and no table")
	flag.Parse()
	b.targets, b.variants = strings.Split(*targets, ","), strings.Split(*names, ",")
	if *names == "" {
		b.variants = nil
		for _, v := range variants {
			b.variants = append(b.variants, v.name)
		}
	}
	if flag.NArg() > 0 || b.dir == "" || b.seeds < 1 || b.rows < 0 || b.steps < 1 || b.tokens < 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/bench/protection -dir FOLDER [flags]; -h lists them")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	act := b.all
	if *one != "" {
		act = func(ctx context.Context) error { return b.one(ctx, *one) }
	}
	err := b.prepare()
	if err == nil {
		err = act(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "protection:", err)
		os.Exit(1)
	}
}

// all does the runs that are not done, and writes the table of those asked for.
func (b *bench) all(ctx context.Context) error {
	if b.base == "" {
		b.base = filepath.Join(b.dir, "runs", "base", "checkpoint")
		if _, err := os.Stat(b.base); errors.Is(err, os.ErrNotExist) {
			if err := b.process(ctx, "base"); err != nil {
				return err
			}
		}
	}
	sum, err := fileSum(filepath.Join(b.base, "model.safetensors"))
	if err != nil {
		return err
	}
	var results []outcome
	for seed := 1; seed <= b.seeds; seed++ { // a whole row of variants early
		for _, target := range b.targets {
			for _, name := range b.variants {
				r, err := b.run(target, name, uint64(seed))
				if err != nil {
					return err
				}
				o, done, err := b.readOutcome(r, sum)
				if err != nil {
					return err
				}
				if !done && b.done {
					continue
				}
				if !done {
					if err := b.process(ctx, r.String()); err != nil {
						return err
					}
					if o, done, err = b.readOutcome(r, sum); err != nil || !done {
						return errors.Join(err, fmt.Errorf("%s ended without an outcome", r))
					}
				}
				fmt.Println(o)
				results = append(results, o)
				if err := b.write(results); err != nil { // what there is, should this be stopped
					return err
				}
			}
		}
	}
	table, err := os.ReadFile(filepath.Join(b.dir, "table.md"))
	fmt.Printf("\n%s", table)
	return err
}

// process does one run in a process of its own.
func (b *bench) process(ctx context.Context, run string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"-run", run}, os.Args[1:]...)
	if i := slices.Index(args, "-base"); i < 0 && run != "base" {
		args = append([]string{"-base", b.base}, args...)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it saves its state
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", run, err)
	}
	return nil
}
