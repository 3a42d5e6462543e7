package spool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable/durabletest"
	"github.com/hanzoai/link/spool/event"
)

// TestAppendFault breaks one call of the third step, in each of the ways a disk
// can break it, and checks what a restarted process finds.
func TestAppendFault(t *testing.T) {
	for _, tt := range []struct {
		name     string
		op       durabletest.Op
		fault    durabletest.Fault
		wantLast uint64 // after reopening
		wantCut  bool
	}{
		{"disk full, nothing lands", durabletest.Write, durabletest.Fault{Err: syscall.ENOSPC}, 5, false},
		{"disk full, part lands", durabletest.Write, durabletest.Fault{Err: syscall.ENOSPC, Lands: 40}, 5, true},
		{"disk full, all but the newline lands", durabletest.Write, durabletest.Fault{Err: syscall.ENOSPC, Lands: -1}, 5, true},
		{"write fails, applied", durabletest.Write, durabletest.Fault{Err: syscall.EIO, Applied: true}, 6, false},
		{"short write", durabletest.Write, durabletest.Fault{Lands: 100}, 5, true},
		{"sync fails, nothing on the disk", durabletest.Sync, durabletest.Fault{Err: syscall.EIO}, 6, false}, // the line is whole in the page cache: replay it
		{"sync fails, applied", durabletest.Sync, durabletest.Fault{Err: syscall.EIO, Applied: true}, 6, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			var armed bool
			plan := func(c durabletest.Call) durabletest.Fault {
				if !armed || c.Op != tt.op {
					return durabletest.Fault{}
				}
				armed = false
				f := tt.fault
				if f.Lands < 0 {
					f.Lands += c.Size
				}
				return f
			}
			s, err := open((&durabletest.FS{Plan: plan}).Over, root, "", "")
			if err != nil {
				t.Fatal(err)
			}
			if err := furnish(s); err != nil {
				t.Fatal(err)
			}
			l := training(t, s, "run")
			for n := uint64(1); n <= 2; n++ {
				if _, err := l.Append(step(n)); err != nil {
					t.Fatal(err)
				}
			}
			armed = true
			_, first := l.Append(step(3))
			if first == nil || !strings.Contains(first.Error(), "run.log") || !strings.Contains(first.Error(), "seq 6") {
				t.Fatalf("Append = %v, want an error naming the file and seq 6", first)
			}
			if tt.fault.Err != nil && !errors.Is(first, tt.fault.Err) {
				t.Errorf("Append = %v, want %v", first, tt.fault.Err)
			}
			// A log that failed once stays failed: the file's state is unknown.
			if _, err := l.Append(step(3)); err != first {
				t.Errorf("the next Append = %v, want the first error", err)
			}
			if l.Last() != 5 {
				t.Errorf("Last = %d, want 5: the sixth was not acknowledged", l.Last())
			}
			l.Close()

			l, err = s.Resume("run")
			if err != nil {
				t.Fatalf("reopening: %v", err)
			}
			defer l.Close()
			if l.Last() != tt.wantLast || (l.Cut() > 0) != tt.wantCut {
				t.Errorf("after reopening, Last = %d and Cut = %d, want %d and cut %t", l.Last(), l.Cut(), tt.wantLast, tt.wantCut)
			}
			// A resumed trainer repeats the step that failed.
			recorded, err := l.Check(step(3))
			if err != nil || recorded != (tt.wantLast == 6) {
				t.Errorf("Check = %t, %v", recorded, err)
			}
			if !recorded {
				if _, err := l.Append(step(3)); err != nil {
					t.Errorf("Append after reopening: %v", err)
				}
			}
			if v, err := s.View("run"); err != nil || v.Seq != 6 || v.Steps != 3 {
				t.Errorf("view has seq %d, steps %d, %v, want each event once", v.Seq, v.Steps, err)
			}
		})
	}
}

// recordAll does everything that writes, and calls acknowledged with each thing that
// is on the disk for good. It can be repeated on what an earlier try left.
func recordAll(disk over, root string, acknowledged func(string)) error {
	s, err := open(disk, root, "", "")
	if err != nil {
		return err
	}
	if err := furnish(s); err != nil {
		return err
	}
	acknowledged("furnished")
	if _, err := s.PutGate(testGate("tiny")); err != nil {
		return err
	}
	acknowledged("gate")
	if _, err := s.PutDeterminism(testReport()); err != nil {
		return err
	}
	acknowledged("determinism")
	l, err := s.Resume("run")
	if errors.Is(err, os.ErrNotExist) {
		l, err = s.Create("run")
	}
	if err != nil {
		return err
	}
	defer l.Close()
	for l.Last() < uint64(len(script())) {
		e, err := l.Append(script()[l.Last()])
		if err != nil {
			return err
		}
		acknowledged(fmt.Sprintf("seq %d", e.Seq))
	}
	if err := s.FileUnder("acme", "", ""); err != nil {
		return err
	}
	if err := s.AckArtifact(canon.Sum(configBytes)); err != nil {
		return err
	}
	acknowledged("artifact ack")
	if err := s.Ack("run", 4); err != nil {
		return err
	}
	acknowledged("ack")
	return nil
}

func script() []event.Body {
	return []event.Body{
		created(), attached(), started(), step(1), step(2),
		event.RunCompleted{Status: event.Completed, Steps: 2, Tokens: 20, Batches: 2},
	}
}

// verify checks that everything acknowledged is there and whole, and that what
// was broken off can be finished.
func verify(t *testing.T, root string, acknowledged []string) {
	t.Helper()
	disk := new(durabletest.FS).Over
	s, err := open(disk, root, "", "")
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	var last uint64
	for _, what := range acknowledged {
		switch {
		case what == "furnished":
			for _, sha := range []canon.SHA256{canon.Sum(environmentBytes), canon.Sum(configBytes), canon.Sum(itemsBytes)} {
				if r, err := s.OpenArtifact(sha); err != nil {
					t.Errorf("acknowledged artifact: %v", err)
				} else if _, err := readAll(t, r, nil); err != nil {
					t.Errorf("acknowledged artifact: %v", err)
				}
			}
			if _, ok := s.Dataset("rows"); !ok {
				t.Errorf("the acknowledged dataset is gone")
			}
		case what == "gate":
			if hash, _ := canon.Of(testGate("tiny")); !s.Gate(hash) {
				t.Errorf("the acknowledged gate is gone")
			}
		case what == "determinism":
			hash, _ := canon.Of(testReport())
			if _, err := s.LoadDeterminism(hash); err != nil {
				t.Errorf("the acknowledged determinism report: %v", err)
			}
		case what == "artifact ack":
			if acked, err := s.ArtifactAcked(canon.Sum(configBytes)); !acked || err != nil {
				t.Errorf("the artifact's ack is gone: %v", err)
			}
		case what == "ack":
			if seq, err := s.Acked("run"); seq != 4 || err != nil {
				t.Errorf("Acked = %d, %v, want 4", seq, err)
			}
		default:
			fmt.Sscanf(what, "seq %d", &last)
		}
	}
	if last > 0 {
		if v, err := s.View("run"); err != nil || v.Seq < last {
			t.Errorf("acknowledged seq %d, and the log has %d: %v", last, v.Seq, err)
		}
	}
	if err := recordAll(disk, root, func(string) {}); err != nil {
		t.Errorf("going on: %v", err)
		return
	}
	v, err := s.View("run")
	if err != nil || v.Seq != uint64(len(script())) || v.Steps != 2 || v.Status != event.Completed {
		t.Errorf("after going on, the view is %+v, %v", v, err)
	}
}

// tempDir is t.TempDir in memory, where there is such a place: these tests make
// thousands of files, and none of them cuts the power.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "spool-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// calls lists the calls of a whole recording.
func calls(t *testing.T) (list []durabletest.Call) {
	t.Helper()
	disk := (&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
		list = append(list, c)
		return durabletest.Fault{}
	}}).Over
	if err := recordAll(disk, tempDir(t), func(string) {}); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestEveryFault breaks every call of a whole recording once, in every way.
func TestEveryFault(t *testing.T) {
	faults := map[string]durabletest.Fault{
		"not applied": {Err: syscall.ENOSPC},
		"applied":     {Err: syscall.EIO, Applied: true},
		"in part":     {Err: syscall.ENOSPC, Lands: 30}, // of a write
		"short write": {Lands: 5},                       // of a write
	}
	for _, c := range calls(t) {
		for name, fault := range faults {
			if fault.Lands > 0 && (c.Op != durabletest.Write || c.Size <= fault.Lands) {
				continue
			}
			root := tempDir(t)
			disk := (&durabletest.FS{Plan: func(now durabletest.Call) durabletest.Fault {
				if now.N != c.N {
					return durabletest.Fault{}
				}
				return fault
			}}).Over
			var acknowledged []string
			err := recordAll(disk, root, func(s string) { acknowledged = append(acknowledged, s) })
			// Removing what is left over is the one thing that may fail unseen.
			if err == nil && c.Op != durabletest.Remove {
				t.Errorf("it went unnoticed")
			}
			if err != nil && fault.Err != nil && !errors.Is(err, fault.Err) {
				t.Errorf("it was reported as %v", err)
			}
			verify(t, root, acknowledged)
			if t.Failed() {
				t.Fatalf("call %d, %s of %s, %s, after %q", c.N, c.Op, c.Path, name, acknowledged)
			}
		}
	}
}

// The kill test runs this test binary again, as a child that records and kills
// itself around one call.
const (
	killRoot = "SPOOL_TEST_ROOT"
	killPlan = "SPOOL_TEST_KILL" // "<n> <before|within>"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(killPlan) != "":
		child(os.Getenv(killRoot), os.Getenv(killPlan))
	case os.Getenv(killRoot) != "":
		holder(os.Getenv(killRoot))
	}
	os.Exit(m.Run())
}

// child records under root and prints what is acknowledged, until it dies.
func child(root, plan string) {
	var n int
	var when string
	fmt.Sscanf(plan, "%d %s", &n, &when)
	die := func() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	disk := (&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
		switch {
		case c.N != n:
			return durabletest.Fault{}
		case when == "within":
			return durabletest.Fault{Lands: c.Size / 2, Then: die}
		}
		return durabletest.Fault{Then: die}
	}}).Over
	if err := recordAll(disk, root, func(s string) { fmt.Println(s) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestKill kills a recording process with SIGKILL at each of its calls, and finds
// everything that it acknowledged. After a call is before the next one.
func TestKill(t *testing.T) {
	for _, c := range calls(t) {
		kill(t, c.N, "before")
		if c.Op == durabletest.Write && c.Size > 1 {
			kill(t, c.N, "within")
		}
	}
}

func kill(t *testing.T, n int, when string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := tempDir(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), killRoot+"="+root, fmt.Sprintf("%s=%d %s", killPlan, n, when))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("killed %s call %d, it ended with %v: %s", when, n, err, stderr.Bytes())
	}
	verify(t, root, strings.Split(strings.TrimSpace(string(out)), "\n"))
	if t.Failed() {
		t.Fatalf("killed %s call %d after %q", when, n, out)
	}
}

// holder resumes a run, says so, and holds it until its input ends.
func holder(root string) {
	s, err := Open(root, "", "")
	if err == nil {
		_, err = s.Resume("run")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startHolder runs holder in another process.
func startHolder(t *testing.T, root string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), killRoot+"="+root)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if line != "held\n" {
		t.Fatalf("the other process says %q", line)
	}
	return cmd
}

// TestTwoProcesses: the second process on a run is told who has it, and gets it
// when the first is gone, however it went.
func TestTwoProcesses(t *testing.T) {
	s := newSpool(t)
	training(t, s, "run").Close()
	other := startHolder(t, filepath.Dir(filepath.Dir(s.Dir())))
	pid := fmt.Sprint(other.Process.Pid)
	for name, open := range map[string]func(string) (*Log, error){"Resume": s.Resume, "Create": s.Create} {
		if _, err := open("run"); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), pid) {
			t.Errorf("%s = %v, want ErrLocked naming %s", name, err, pid)
		}
	}
	if v, err := s.View("run"); err != nil || v.Seq != 3 {
		t.Errorf("reading beside the writer: %v", err)
	}
	other.Process.Kill()
	other.Wait()
	l, err := s.Resume("run")
	if err != nil {
		t.Fatalf("after the writer was killed: %v", err)
	}
	l.Close()
}

// TestChildKeepsNoLock: a program that the writer starts does not inherit the
// run's lock.
func TestChildKeepsNoLock(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")
	other := newSpool(t)
	training(t, other, "run").Close()
	startHolder(t, filepath.Dir(filepath.Dir(other.Dir()))) // any child will do
	l.Close()
	l, err := s.Resume("run")
	if err != nil {
		t.Fatalf("with a child alive: %v", err)
	}
	l.Close()
}

// FuzzOpen opens arbitrary bytes as a log. It must not panic, and may cut only
// what follows the last whole event.
func FuzzOpen(f *testing.F) {
	s := newSpoolIn(f, tempDir(f))
	training(f, s, "seed").Close()
	seed := readFile(f, s.path(runs, "seed.log"))
	training(f, s, "run").Close()
	whole := readFile(f, s.path(runs, "run.log"))
	for _, b := range []string{"", whole, whole[:len(whole)-1], whole[:500], whole + "{", whole + "\x00\x00", whole + "\x00\n", seed, "\n", "{\"\n", "text"} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := s.path(runs, "run.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := s.Resume("run")
		left := []byte(readFile(t, path))
		if err != nil {
			if !bytes.Equal(left, b) {
				t.Fatalf("refused with %v, and changed", err)
			}
			return
		}
		defer l.Close()
		if !bytes.HasPrefix(b, left) || int64(len(b)-len(left)) != l.Cut() {
			t.Fatalf("%q became %q, cut %d", b, left, l.Cut())
		}
		cut := b[len(left):]
		if i := bytes.IndexByte(cut, '\n'); i >= 0 && bytes.IndexByte(cut[:i], 0) < 0 {
			t.Fatalf("cut a whole line: %q", cut)
		}
		if v, err := s.Fold("run"); err != nil || v.Next() != l.Last()+1 {
			t.Fatalf("opened at %d, and reads as %v", l.Last(), err)
		}
	})
}

// BenchmarkAppend measures one step's event on the machine's own disk, beside
// the write and sync alone.
func BenchmarkAppend(b *testing.B) {
	for _, bb := range []struct {
		name string
		disk over
	}{
		{"disk", bare},
		{"without sync", new(durabletest.FS).Over},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s, err := open(bb.disk, b.TempDir(), "", "")
			if err != nil {
				b.Fatal(err)
			}
			if err := furnish(s); err != nil {
				b.Fatal(err)
			}
			l := training(b, s, "run")
			n := uint64(0)
			for b.Loop() {
				n++
				if _, err := l.Append(step(n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkResume measures reopening a run of 10,000 steps.
func BenchmarkResume(b *testing.B) {
	s := newSpool(b)
	l := training(b, s, "run")
	for n := uint64(1); n <= 10_000; n++ {
		if _, err := l.Append(step(n)); err != nil {
			b.Fatal(err)
		}
	}
	l.Close()
	for b.Loop() {
		l, err := s.Resume("run")
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}
