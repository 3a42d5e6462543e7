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

func TestBehavioursThatEnd(t *testing.T) {
	for _, tt := range []struct {
		args, out string
		status    int // -1 is a signal
	}{
		{"exit 0", "", 0},
		{"exit 3", "", 3},
		{"exit", "", 1},
		{"crash", "", -1},
		{"print 100", "", 0},
		{"open /dev/null /nowhere", "/dev/null: success\n/nowhere: ENOENT\n", 0},
		{"memory-bomb anonymous 8388608", "8388608, all\n", 0},
		{"memory-bomb none 1", "", 1},
		{"outputs traps 10", "made\n", 0},
		{"socket door elephant", "", 1},
		{"fly", "", 2},
		{"", "", 2},
	} {
		t.Run(tt.args, func(t *testing.T) {
			command, out, errs := inside(t, strings.Fields(tt.args)...)
			command.Run()
			if status := command.ProcessState.ExitCode(); status != tt.status {
				t.Errorf("status %d, want %d: %s", status, tt.status, errs)
			}
			if tt.args == "print 100" {
				if out.Len() != 100 || errs.Len() != 100 {
					t.Errorf("%d and %d bytes", out.Len(), errs.Len())
				}
				return
			}
			if out.String() != tt.out {
				t.Errorf("it printed %q, want %q; and %q", out, tt.out, errs)
			}
		})
	}
}

func TestBehavioursThatWait(t *testing.T) {
	for _, tt := range []struct{ args, out string }{
		{"wait", ""},
		{"threads 20", "20, all\n"},
		{"spin 1", ""},
		{"fill-disk 20000000", "20000000, then success\n"},
		{"memory-bomb pipes 3000000", "then success\n"},
		{"memory-bomb sockets 3000000", "then success\n"},
		{"memory-bomb cache 3000000", "3000000, then success\n"},
		{"socket ready plain", ""},
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

func TestRootIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this is not root")
	}
	var out bytes.Buffer
	if status := Main([]string{"list"}, &out); status != 2 || out.Len() > 0 {
		t.Errorf("status %d, %q", status, out.String())
	}
}
