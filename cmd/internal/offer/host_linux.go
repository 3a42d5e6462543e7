package offer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/launcher"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
)

// Host judges every kind, in the order of [Kinds]. It takes tens of milliseconds, for
// it builds a sandbox. Who is not root is told what can be known without.
func Host(ctx context.Context) ([]Verdict, error) {
	var f found
	f.policy, _, f.unread = policy.Load(policy.Path)
	if errors.Is(f.unread, fs.ErrNotExist) {
		f.unread = fmt.Errorf("there is no %s; sudo hanzo link writes one, which admits nothing", policy.Path)
	}
	var both sync.WaitGroup // one reads, the other waits for the kernel
	both.Go(func() { f.binaries = Binaries(launcher.Lib) })
	both.Go(func() {
		if os.Geteuid() != 0 {
			f.untried = "nothing that is known stands in its way, and that a sandbox can be built is root's to try: sudo hanzo policy show"
			return
		}
		f.unable, f.untried = able(Probe(ctx))
	})
	both.Wait()
	return f.judge(), ctx.Err()
}

// Unfit says why this host can be linked for presence only; "" when nothing is known
// that stands against more.
func Unfit() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return "its control groups are not of version 2 alone, and work is held by those"
	}
	return ""
}

// able says why no sandbox can be built, or why that has not been tried.
func able(checks []sandbox.Check) (unable, untried string) {
	for i, c := range checks {
		if c.OK || !c.Need {
			continue
		}
		// The last check is a start, in the control group of a running agent.
		if _, err := os.Stat(launcher.Group); i == len(checks)-1 && errors.Is(err, fs.ErrNotExist) {
			return "", "the agent, in whose control group work runs, is not running: sudo systemctl start hanzo-link"
		}
		return c.Name + ": " + c.Detail, ""
	}
	return "", ""
}

// Free is what this host has, and the folder of whose file system it says so: where
// work keeps its files or, before that is made, the nearest one above it.
func Free() (free policy.Free, at string, err error) {
	for at = launcher.State; ; at = filepath.Dir(at) {
		if free, err = policy.HostFree(at); at == "/" || !errors.Is(err, fs.ErrNotExist) {
			return free, at, err
		}
	}
}

// Probe is what package sandbox finds out where real work runs.
func Probe(ctx context.Context) []sandbox.Check {
	cfg := sandbox.Config{Group: launcher.Group, Run: launcher.State + "/run", User: worker()}
	if f, err := os.Open(filepath.Join(launcher.Lib, "hanzo-stage")); err == nil {
		defer f.Close()
		cfg.Stage = f
	}
	return sandbox.Probe(ctx, cfg)
}

// worker is the uid of hanzo-work or, before there is one, of nobody.
func worker() uint32 {
	u, err := user.Lookup(launcher.Work)
	if err == nil {
		if id, err := strconv.ParseUint(u.Uid, 10, 32); err == nil {
			return uint32(id)
		}
	}
	return 65534
}

// Binaries says what is wrong with each binary that a kind needs, in a folder: nil
// when it is the one that the folder's manifest names.
func Binaries(dir string) map[string]error {
	all := make(map[string]error)
	manifest, err := launcher.ReadManifest(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("nothing is installed in %s: run sudo hanzo link", dir)
	}
	for _, names := range binaries {
		for _, name := range names {
			all[name] = err
			if err == nil {
				all[name] = compare(dir, name, manifest.Binaries[name])
			}
		}
	}
	return all
}

// compare is nil when a binary is root's alone and has the sum.
func compare(dir, name, sum string) error {
	path := filepath.Join(dir, name)
	if sum == "" {
		return fmt.Errorf("%s names no %s: run sudo hanzo link again", filepath.Join(dir, launcher.ManifestName), name)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: run sudo hanzo link again", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a file of root's alone: run sudo hanzo link again", path)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != sum {
		return fmt.Errorf("%s is not the binary that was installed: run sudo hanzo link again", path)
	}
	return nil
}
