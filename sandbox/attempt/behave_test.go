//go:build linux

package attempt

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inside is this program in a mode, as an ordinary user in a folder of its own.
func inside(t *testing.T, args ...string) (command *exec.Cmd, out, errs *bytes.Buffer) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("takes root to become another user")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	command = exec.CommandContext(t.Context(), "/proc/self/fd/3", append([]string{Argument}, args...)...)
	command.ExtraFiles = []*os.File{program}
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: user, Gid: user},
		Cloneflags: unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	command.Stdout, command.Stderr = out, errs
	return command, out, errs
}

// The rest need a sandbox, and the check of hanzo has one.
func TestBehavioursWhereTheyAreHarmless(t *testing.T) {
	for _, tt := range []struct{ args, out string }{
		{"forkbomb 20", "20, then success\n"},
		{"threads 20", "20, then success\n"},
		{"spin 1", ""},
		{"fill-disk . 20000000", "20000000, then success\n"},
		{"memory-bomb anonymous 8388608", "8388608, then success\n"},
		{"memory-bomb pipes 3000000", ", then success\n"},
		{"memory-bomb sockets 3000000", ", then success\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			command, out, errs := inside(t, strings.Fields(tt.args)...)
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- command.Wait() }()
			for { // until it says that it is ready, or has ended
				c, err := net.Dial("unix", filepath.Join(command.Dir, Ready))
				if err == nil {
					c.Close()
					break
				}
				select {
				case err := <-ended:
					t.Fatalf("it ended before it was ready: %v: %s", err, errs)
				case <-time.After(time.Millisecond):
				}
			}
			if err := command.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-ended
			if !strings.HasSuffix(out.String(), tt.out) {
				t.Errorf("it printed %q, want %q", out, tt.out)
			}
		})
	}
}

func TestCalledWronglyItEnds(t *testing.T) {
	for args, want := range map[string]int{"": 2, "fly": 2, "list": 2, "list {": 2, "socket elephant": 1, "memory-bomb none 1": 1} {
		command, out, errs := inside(t, strings.Fields(args)...)
		command.Run()
		if status := command.ProcessState.ExitCode(); status != want || out.Len() > 0 || errs.Len() == 0 {
			t.Errorf("%q: status %d, want %d: %s%s", args, status, want, out, errs)
		}
	}
}

func TestRootIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this is not root")
	}
	var out bytes.Buffer
	if status := Main([]string{"list"}, &out); status != 2 || out.Len() > 0 {
		t.Errorf("status %d, %q", status, out.String())
	}
}
