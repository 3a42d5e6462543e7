// Package local is what the commands share of the machine they run on: the
// processor they compute with, the record they keep there, and who they run for.
package local

import (
	"errors"
	"flag"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/kai"
)

// A Machine is the device that a command computes on, as its flags say.
type Machine struct{ threads int }

// Flag declares --threads.
func (m *Machine) Flag(flags *flag.FlagSet) {
	term.Natural(flags, &m.threads, "threads", "compute on this `number` of threads; 0 is every core. No result depends on it")
}

// Device is the machine's.
func (m Machine) Device() *cpu.Device { return cpu.New(m.threads) }

// Load reads a checkpoint's folder onto the machine.
func (m Machine) Load(dir string) (*kai.Model, error) {
	if _, err := os.Stat(filepath.Join(dir, "kai.json")); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
			return nil, term.Usagef("%s is an encoder, not a Kai checkpoint: train init NEW --encoder %s makes one", dir, dir)
		}
		return nil, term.Usagef("%s is no Kai checkpoint (it has no kai.json): train init makes one", dir)
	}
	return kai.Load(dir, m.Device())
}

// A Record is where runs are recorded, as a command's flags say.
type Record struct{ root string }

// Flag declares --spool.
func (r *Record) Flag(flags *flag.FlagSet) {
	flags.StringVar(&r.root, "spool", "", "keep the record under this `folder`; default $HANZO_SPOOL, else ~/.hanzo/spool")
}

// Open opens the spool.
func (r Record) Open() (*spool.Spool, error) { return spool.Open(r.root, "", "") }

// OpenToSend opens the spool to send what is in it. One that another user writes, as
// the workload of a linked machine writes its activity's, is [spool.Attach]ed, for it
// is not trusted: only says which runs of it are sent, the activity's, so that whatever
// else was put there is not sent in the name of who sends. nil is every run.
func (r Record) OpenToSend() (s *spool.Spool, only func(run string) bool, err error) {
	root := r.root
	if root == "" {
		if root, err = spool.Root(); err != nil {
			return nil, nil, err
		}
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, nil, err
	}
	name := filepath.Base(root)
	info, err := os.Stat(root)
	if err != nil {
		s, err = r.Open()
		return s, nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() || activity.ValidID(name) {
		s, err = spool.Attach(root, "", "")
		return s, func(run string) bool { return activity.Records(name, run) }, err
	}
	s, err = r.Open()
	return s, nil, err
}

// A Run is a spool with one of its logs open: what a run is recorded in.
type Run struct {
	*spool.Spool
	*spool.Log
}

var _ trainer.Recorder = Run{}

// Close gives up the run's lock. The spool stays open: it is the caller's.
func (r Run) Close() error { return r.Log.Close() }

// OpenRun opens a run's log, a new one or one that was begun. The caller closes
// it.
func OpenRun(s *spool.Spool, run string) (Run, error) {
	log, err := s.Create(run)
	if errors.Is(err, spool.ErrExists) {
		log, err = s.Resume(run)
	}
	return Run{s, log}, err
}

// User is who runs this, as the machine knows them.
func User() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, u.Username)
	}
	return "unknown"
}

// Memory is how many bytes a program can still take on this machine, 0 where
// nobody says.
func Memory() uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 54)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
