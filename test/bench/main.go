// Command bench makes the figures that the README quotes. It builds train and
// runs it as a person would, in a folder of its own that it removes.
//
//	go run ./test/bench banking77   a readout, against a logistic regression
//	go run ./test/bench snips       full, three seeds
//
// The data stands beside the repository or where -data says; .ci/minilm puts the
// encoder where -encoder looks for it.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

func main() {
	data := flag.String("data", "../shared/data", "the folder of data sets")
	encoder := flag.String("encoder", "testdata/minilm", "the folder of an encoder")
	flag.Parse()
	benches := map[string]func(bench) error{"banking77": banking77, "snips": snips}
	act, known := benches[flag.Arg(0)]
	if !known || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/bench [-data FOLDER] [-encoder FOLDER] banking77|snips")
		os.Exit(2)
	}
	if err := run(act, *data, *encoder); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

// bench is where one benchmark works and what it works with.
type bench struct {
	dir, data, encoder, binary string
}

func run(act func(bench) error, data, encoder string) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := bench{dir: dir, binary: filepath.Join(dir, "train")}
	if b.data, err = filepath.Abs(data); err != nil {
		return err
	}
	if b.encoder, err = filepath.Abs(encoder); err != nil {
		return err
	}
	if out, err := exec.Command("go", "build", "-o", b.binary, "./cmd/train").CombinedOutput(); err != nil {
		return fmt.Errorf("building train: %w\n%s", err, out)
	}
	return act(b)
}

// cost is what a command took.
type cost struct {
	wall, processors time.Duration
	memory           int64 // bytes at most; 0 where unknown
}

func (c cost) String() string {
	return fmt.Sprintf("%.1f s, %.1f s of processors, %d MiB at most", c.wall.Seconds(), c.processors.Seconds(), c.memory>>20)
}

// train runs the train command in the benchmark's folder, with its spool there.
func (b bench) train(args ...string) (cost, error) {
	command := exec.Command(b.binary, args...)
	command.Dir, command.Stdout, command.Stderr = b.dir, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), "HANZO_SPOOL="+filepath.Join(b.dir, "spool"), "HANZO_API=")
	began := time.Now()
	if err := command.Run(); err != nil {
		return cost{}, fmt.Errorf("train %s: %w", args[0], err)
	}
	state := command.ProcessState
	return cost{time.Since(began), state.UserTime() + state.SystemTime(), peak(command)}, nil
}
