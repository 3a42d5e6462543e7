//go:build linux

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox/stage"
)

// Config is where workloads are made.
type Config struct {
	Group string       // a control group's directory, root's own; each workload gets a child
	Run   string       // a directory of root's, no link in its path; each workload gets its run directory in it
	Stage *os.File     // the hanzo-stage binary, open for reading; New keeps a copy
	User  uint32       // uid and gid of every workload, never 0
	Log   *slog.Logger // nil discards
}

// Host makes workloads. It may be used by several goroutines.
type Host struct {
	cfg Config
	log *slog.Logger

	run   *os.File      // Config.Run
	stage *os.File      // the binary; see keepStage
	base  *ebpf.Program // the device program of a workload without devices of its own

	mu     sync.Mutex
	parked *process // a stage that waits for an order, or nil
	next   int      // number of the next control group
}

// New checks what it is given and loads a device program, without which no workload
// starts. It changes nothing; Close ends it.
func New(cfg Config) (_ *Host, err error) {
	if cfg.Stage == nil {
		return nil, errors.New("sandbox: no stage binary")
	}
	if cfg.User == 0 {
		return nil, errors.New("sandbox: workloads cannot run as root")
	}
	if info, err := os.Lstat(cfg.Group); err != nil || !info.IsDir() || !filepath.IsAbs(cfg.Group) {
		return nil, fmt.Errorf("sandbox: %q is not an absolute path of a directory", cfg.Group)
	}
	h := &Host{cfg: cfg, log: cfg.Log, next: 1}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if h.run, err = openRuns(cfg.Run); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	if h.stage, err = keepStage(cfg.Stage); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	if h.base, err = deviceProgram(nil); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return h, nil
}

// keepStage is a descriptor of our own for the binary. A child puts its own
// descriptors, from 0 on, in place before it looks for the binary by number; from above
// up it has none.
func keepStage(f *os.File) (*os.File, error) {
	const above = 64
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("%s is not an executable file (%v): it must be the hanzo-stage of this version", f.Name(), info.Mode())
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, above)
	if err != nil {
		return nil, fmt.Errorf("keep %s open as descriptor %d or above: %w: the limit on open files (ulimit -n) is lower", f.Name(), above, err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// openRuns opens the directory of run directories, in which root makes and removes
// whatever a caller of Start names. It is opened once, for others may be able to put
// something else at its path.
func openRuns(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !filepath.IsAbs(path) || st.Uid != 0 || st.Mode&0o022 != 0 {
		dir.Close()
		return nil, fmt.Errorf("%q must be an absolute path of a directory that only root can write to", path)
	}
	// Every workload would see the others' directories.
	if seen := stage.Shown(path); seen != "" {
		dir.Close()
		return nil, fmt.Errorf("%q is below /%s, which every workload sees: keep run directories elsewhere", path, seen)
	}
	return dir, nil
}

// Sweep kills and removes what an earlier life left: every control group that a
// Host makes, and everything in the directory of run directories. It is called
// before the first Start, never beside one.
func (h *Host) Sweep() error {
	var errs []error
	entries, err := os.ReadDir(h.cfg.Group)
	errs = append(errs, err)
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), groupPrefix) {
			continue
		}
		g := group{filepath.Join(h.cfg.Group, e.Name())}
		h.log.Info("killing what an earlier launcher left", "group", e.Name())
		errs = append(errs, g.kill(), g.remove())
	}
	_, err = h.run.Seek(0, io.SeekStart)
	names, readErr := h.run.Readdirnames(-1)
	errs = append(errs, err, readErr)
	for _, name := range names {
		errs = append(errs, removeTree(context.Background(), int(h.run.Fd()), name))
	}
	return errors.Join(errs...)
}

// Park makes a stage ahead of need: the next Start begins with one that already has
// its namespaces, its root, its group and its run directory. One is kept; a second call
// does nothing.
func (h *Host) Park(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parked != nil {
		return nil
	}
	p, err := h.launch(ctx)
	if err != nil {
		return err
	}
	h.parked = p
	return nil
}

// Close discards the parked stage. It comes after everything else: no Start and no
// Park is under way, and every workload is done.
func (h *Host) Close() error {
	var err error
	if h.parked != nil {
		err = h.parked.discard()
		h.parked = nil
	}
	h.base.Close()
	h.stage.Close()
	h.run.Close()
	return err
}

// take is the parked stage, or a new one.
func (h *Host) take(ctx context.Context) (*process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.parked
	h.parked = nil
	if p != nil && p.alive() {
		return p, nil
	}
	if p != nil {
		p.discard()
	}
	return h.launch(ctx)
}

// Start makes the workload and returns when its program has been executed. On an
// error nothing of it is left. The files in spec stay the caller's and may be closed
// afterwards. ctx bounds the start, not the workload's life.
func (h *Host) Start(ctx context.Context, spec Spec) (*Workload, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	p, err := h.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	w := &Workload{host: h, spec: spec, process: p, log: h.log.With("activity", spec.ID)}
	if err := w.start(ctx); err != nil {
		closeAll(w.counted)
		return nil, errors.Join(fmt.Errorf("sandbox: %w", err), p.discard())
	}
	w.begin()
	return w, nil
}

// start furnishes the stage and has it execute the program.
func (w *Workload) start(ctx context.Context) error {
	w.host.mu.Lock()
	err := w.run.rename(w.spec.ID)
	w.host.mu.Unlock()
	if err != nil {
		return err
	}
	if err := w.group.limit(w.spec.Limits); err != nil {
		return err
	}
	program := w.host.base
	if len(w.spec.Devices) > 0 {
		if program, err = deviceProgram(w.spec.Devices); err != nil {
			return err
		}
		defer program.Close()
	}
	if err := w.group.attach(program); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	order, mounts, err := w.order()
	defer closeAll(mounts)
	if err != nil {
		return err
	}
	if err := w.process.send(order, mounts); err != nil {
		return err
	}
	_, err = w.process.await(ctx, func(r stage.Report) bool { return r.Started })
	return err
}

// open keeps the directories, besides the run directory, whose contents count as the
// workload's disk use.
func (w *Workload) open() error {
	for _, m := range w.spec.Mounts {
		if !m.Write {
			continue
		}
		fd, err := unix.Openat(int(m.Source.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s is writable and no directory: its use of disk could not be counted: %w", m.Target, err)
		}
		w.counted = append(w.counted, os.NewFile(uintptr(fd), m.Target))
	}
	return nil
}

// order translates the Spec for the stage, and makes the detached mounts that go
// with it: once made they need no path and no descriptor of the caller's.
func (w *Workload) order() (stage.Order, []*os.File, error) {
	s := &w.spec
	o := stage.Order{
		Program: "/app/" + s.Args[0], Args: s.Args, Env: s.Env, Run: w.Run(), ExecRun: s.ExecRun,
		Umask: s.Umask, FileSize: uint64(s.Limits.Disk), Shm: s.Limits.Shm,
		WholeProc: s.WholeProc, Inet: s.Inet,
	}
	if o.Shm == 0 {
		o.Shm = cmp.Or(s.Limits.Memory/4, 64<<20)
	}
	for _, g := range s.Groups {
		o.Groups = append(o.Groups, int(g))
	}
	for _, f := range s.Files {
		o.Files = append(o.Files, stage.File{Target: f.Target, Data: f.Data})
	}
	var mounts []*os.File
	detach := func(f *os.File, attr uint64) error {
		m, err := detached(f, attr)
		if err == nil {
			mounts = append(mounts, m)
		}
		return err
	}
	if err := detach(s.Program, roAttr); err != nil {
		return o, mounts, err
	}
	if err := detach(w.run.dir, attrOf(true, s.ExecRun)); err != nil {
		return o, mounts, err
	}
	for _, m := range s.Mounts {
		info, err := m.Source.Stat()
		if err != nil {
			return o, mounts, err
		}
		if err := detach(m.Source, attrOf(m.Write, m.Exec)); err != nil {
			return o, mounts, err
		}
		o.Mounts = append(o.Mounts, stage.Mount{Target: m.Target, Dir: info.IsDir(), Write: m.Write, Exec: m.Exec})
	}
	for _, d := range s.Devices {
		f, err := d.open()
		if err != nil {
			return o, mounts, err
		}
		err = detach(f, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		f.Close()
		if err != nil {
			return o, mounts, err
		}
		o.Mounts = append(o.Mounts, stage.Mount{Target: d.Path, Write: true})
	}
	if len(o.Mounts) > stage.MaxMounts {
		return o, mounts, fmt.Errorf("%d mounts: a workload has at most %d", len(o.Mounts), stage.MaxMounts)
	}
	return o, mounts, nil
}

const roAttr = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

func attrOf(write, exec bool) uint64 {
	attr := uint64(roAttr)
	if write {
		attr &^= unix.MOUNT_ATTR_RDONLY
	}
	if !exec {
		attr |= unix.MOUNT_ATTR_NOEXEC
	}
	return attr
}

// detached is a mount of f that stands nowhere yet. It must be made here: the stage
// lives in another mount namespace, where a descriptor of this one's mounts cannot
// be cloned (EINVAL).
func detached(f *os.File, attr uint64) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: f.Name(), Err: err}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mount_setattr", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// open opens the node, and refuses what is not the device that was admitted.
func (d Device) open() (*os.File, error) {
	fd, err := unix.Open(d.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.Path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "stat", Path: d.Path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(d.Major, d.Minor) {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not the character device %d:%d that was admitted", d.Path, d.Major, d.Minor)
	}
	return os.NewFile(uintptr(fd), d.Path), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// gone reports whether err says that a thing is not there any more.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// startTimeout bounds what a stage does by itself before it is parked.
const startTimeout = 30 * time.Second
