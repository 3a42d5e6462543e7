//go:build linux

package systemd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/durable"
	"golang.org/x/sys/unix"
)

// Files in Lib.
const (
	manifest = "manifest.json"
	// started holds the sums of what was there when the services were last started,
	// less what was written since: what differs from it has yet to be reloaded or
	// restarted, whoever was killed in between.
	started = "started.json"
)

// The units that an owner starts; the others follow from them.
const (
	socketUnit   = "hanzo-link-launcher.socket"
	launcherUnit = "hanzo-link-launcher.service"
	agentUnit    = "hanzo-link.service"
)

// A binary is a program that is installed in Lib.
type binary struct {
	name     string
	optional bool // a release may be without it
	dynamic  bool // it may be linked with the host's libraries
}

var binaries = []binary{
	{name: "hanzo-link"}, {name: "hanzo-launcher"}, {name: "hanzo-stage"}, {name: "train"},
	{name: "hanzo-gpu", optional: true, dynamic: true},
}

// module is the Go module that every binary is of.
const module = "github.com/hanzoai/link"

// A Host is a machine that hanzo link is installed on, or taken from.
//
// Everything is done by root, on a host that systemd runs. Each step looks at what is
// there and does what is missing, so every method may be called again, and a call that
// was killed anywhere is mended by the next: a file is written beside its place and
// renamed; the manifest, without which the launcher starts nothing, is written after
// all it names; and what has to be reloaded or restarted is known from the sums of what
// was last started, and not from what this call wrote. Two calls at once are the
// caller's to prevent.
//
// The steps that a method returns are those it took, also when it failed.
type Host struct {
	// Root is "/", or a folder that stands for it in a test. Paths in steps and
	// arguments of commands are as they are below it.
	Root string

	// Run runs a command of the host and waits for it; nil is [Command].
	Run func(ctx context.Context, name string, args ...string) error

	// Build is that of the program that installs. Its binaries must be of the same
	// one; nil asks only that they are alike.
	Build *debug.BuildInfo
}

// Check says why the binaries of a folder cannot be installed on this host: one is
// missing, is of another build or for another machine; a place is read-only, or others
// than root can write there; a unit is masked; systemd does not run. It writes nothing.
func (h Host) Check(dir string) error {
	if info, err := os.Stat(h.path("/run/systemd/system")); err != nil || !info.IsDir() {
		return errors.New("this host is not run by systemd (there is no /run/systemd/system), which starts and confines the services of hanzo link: link a host that is")
	}
	if _, err := h.release(dir); err != nil {
		return err
	}
	for _, unit := range Units {
		path := filepath.Join(UnitDir, unit)
		if to, err := os.Readlink(h.path(path)); err == nil {
			return fmt.Errorf("%s is a link to %s: systemctl unmask %s, or remove it, and link again", path, to, unit)
		}
	}
	for _, path := range []string{Lib, Etc, State} {
		if err := h.trusted(path); err != nil {
			return err
		}
	}
	for _, path := range []string{Lib, UnitDir, SysusersDir, TmpfilesDir, Etc, State} {
		if err := h.writable(path); err != nil {
			return err
		}
	}
	return nil
}

// Place puts files, users and folders in place. Nothing is started.
func (h Host) Place(ctx context.Context, dir string) (steps []Step, err error) {
	did := func(what, path string) { steps = append(steps, Step{what, path}) }
	release, err := h.release(dir)
	if err != nil {
		return nil, err
	}
	if err := h.folder(Lib); err != nil {
		return nil, err
	}
	if err := h.sweep(); err != nil {
		return nil, err
	}
	pins := make(map[string]string)
	for _, b := range release {
		sum, what, err := h.install(dir, b)
		if err != nil {
			return steps, err
		}
		pins[b.name] = sum
		did(what, filepath.Join(Lib, b.name))
	}
	files := []struct{ name, to string }{
		{Sysusers, filepath.Join(SysusersDir, "hanzo-link.conf")},
		{Tmpfiles, filepath.Join(TmpfilesDir, "hanzo-link.conf")},
	}
	for _, unit := range Units {
		files = append(files, struct{ name, to string }{unit, filepath.Join(UnitDir, unit)})
	}
	for _, f := range files {
		text, err := Files.ReadFile(f.name)
		if err != nil {
			return steps, err
		}
		what, err := h.file(f.to, text)
		if err != nil {
			return steps, err
		}
		did(what, f.to)
	}
	text, err := json.Marshal(map[string]any{"binaries": pins})
	if err != nil {
		return steps, err
	}
	path := filepath.Join(Lib, manifest)
	what, err := h.file(path, append(text, '\n'))
	if err != nil {
		return steps, err
	}
	did(what, path)
	// After the manifest, which no longer names it.
	for _, b := range binaries {
		if !slices.Contains(release, b) {
			if err := h.remove(filepath.Join(Lib, b.name), did); err != nil {
				return steps, err
			}
		}
	}
	run := h.telling(ctx, &steps)
	if h.users() {
		did(Current, "users hanzo-link and hanzo-work")
	} else if err := run("systemd-sysusers", filepath.Join(SysusersDir, "hanzo-link.conf")); err != nil {
		return steps, err
	}
	if err := run("systemd-tmpfiles", "--create", filepath.Join(TmpfilesDir, "hanzo-link.conf")); err != nil {
		return steps, err
	}
	if restorecon := h.restorecon(); restorecon != "" {
		args := []string{"-R", filepath.Dir(Lib)}
		for _, f := range files {
			args = append(args, f.to)
		}
		if err := run(restorecon, args...); err != nil {
			return steps, err
		}
		// Not what lies below: that is made in place, and a store is large.
		if err := run(restorecon, filepath.Dir(State), State, State+"/run", State+"/spool", State+"/store"); err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// Start makes systemd read the units where they have changed, enables them, and starts
// them: again, where what they run is not what was last started. Restarting either
// service ends the work that runs.
func (h Host) Start(ctx context.Context) (steps []Step, err error) {
	run := h.telling(ctx, &steps)
	now, err := h.sums()
	if err != nil {
		return nil, err
	}
	was := h.lastStarted()
	changed := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return now[name] != was[name] })
	}
	if changed(Units...) {
		if err := run("systemctl", "daemon-reload"); err != nil {
			return steps, err
		}
	}
	if h.enabled() {
		steps = append(steps, Step{Current, socketUnit + " and " + agentUnit + " are enabled"})
	} else if err := run("systemctl", "enable", "--quiet", socketUnit, agentUnit); err != nil {
		return steps, err
	}
	switch {
	case changed(socketUnit, launcherUnit, "hanzo-launcher", "hanzo-stage"):
		// Apart from the start: a socket is not started while its service runs.
		if err := run("systemctl", "stop", agentUnit, launcherUnit, socketUnit); err != nil {
			return steps, err
		}
	case changed(agentUnit, "hanzo-link"):
		if err := run("systemctl", "stop", agentUnit); err != nil {
			return steps, err
		}
	}
	if err := run("systemctl", "start", socketUnit, agentUnit); err != nil {
		return steps, err
	}
	return steps, h.remember(now)
}

// Stop ends the services, waits until they have (the agent, until its work has), and
// keeps them from starting at boot. A host that has none is left alone.
func (h Host) Stop(ctx context.Context) (steps []Step, err error) {
	run := h.telling(ctx, &steps)
	var installed, there []string
	for _, unit := range []string{agentUnit, launcherUnit, socketUnit, "hanzo-link-modules.service"} {
		on := exists(h.path(filepath.Join(UnitDir, unit)))
		if on {
			installed = append(installed, unit)
		}
		// One whose file somebody has removed runs on.
		if on || exists(h.path("/sys/fs/cgroup/system.slice/"+unit)) {
			there = append(there, unit)
		}
	}
	if len(there) == 0 {
		return []Step{{Current, "no service of hanzo link is installed"}}, nil
	}
	// In one call, in which systemd stops the agent before the launcher, and so lets it
	// end its work in order.
	if err := run("systemctl", append([]string{"stop"}, there...)...); err != nil {
		return steps, err
	}
	if len(installed) > 0 {
		if err := run("systemctl", append([]string{"disable", "--quiet"}, installed...)...); err != nil {
			return steps, err
		}
	}
	// One that had failed would go on being listed. What has not is an error here.
	_ = h.run(ctx, "systemctl", append([]string{"reset-failed"}, there...)...)
	return steps, nil
}

// Remove takes away what Place put there. The users stay, for files may be theirs; so
// does everything in State and Etc. The services have been stopped.
func (h Host) Remove(ctx context.Context) (steps []Step, err error) {
	did := func(what, path string) { steps = append(steps, Step{what, path}) }
	for _, unit := range Units {
		if err := h.remove(filepath.Join(UnitDir, unit), did); err != nil {
			return steps, err
		}
	}
	for _, dir := range []string{SysusersDir, TmpfilesDir} {
		if err := h.remove(filepath.Join(dir, "hanzo-link.conf"), did); err != nil {
			return steps, err
		}
	}
	if err := h.sweep(); err != nil {
		return steps, err
	}
	// The folder goes last: while it is there, systemd may not know that the units are
	// gone.
	if !exists(h.path(Lib)) {
		return steps, nil
	}
	if err := h.telling(ctx, &steps)("systemctl", "daemon-reload"); err != nil {
		return steps, err
	}
	if err := os.RemoveAll(h.path(Lib)); err != nil {
		return steps, err
	}
	did(Removed, Lib)
	for _, dir := range []string{filepath.Dir(Lib), "/run/hanzo-link"} {
		_ = os.Remove(h.path(dir)) // where nothing else is in it
	}
	return steps, nil
}

func (h Host) path(path string) string { return filepath.Join(h.Root, path) }

func (h Host) run(ctx context.Context, name string, args ...string) error {
	if h.Run == nil {
		return Command(ctx, name, args...)
	}
	return h.Run(ctx, name, args...)
}

// telling is run that adds what it ran to steps.
func (h Host) telling(ctx context.Context, steps *[]Step) func(name string, args ...string) error {
	return func(name string, args ...string) error {
		if err := h.run(ctx, name, args...); err != nil {
			return err
		}
		*steps = append(*steps, Step{Ran, line(name, args)})
		return nil
	}
}

// release is the binaries of a folder, all of which can be installed.
func (h Host) release(dir string) ([]binary, error) {
	var all []binary
	build := h.Build
	for _, b := range binaries {
		path := filepath.Join(dir, b.name)
		f, err := openFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			if b.optional {
				continue
			}
			return nil, fmt.Errorf("%s is not there: install every binary of the release into %s, and link again", path, dir)
		}
		if err != nil {
			return nil, err
		}
		is, err := b.inspect(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s %w", path, err)
		}
		if build == nil {
			build = is
		}
		if got, want := version(is), version(build); got != want {
			return nil, fmt.Errorf("%s is of another build (%s) than hanzo (%s): install the binaries of one release into %s, and link again", path, got, want, dir)
		}
		all = append(all, b)
	}
	return all, nil
}

// openFile opens a regular file to read. What it follows is the person's own who
// runs this.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a FIFO
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// machines are the ELF machines of the architectures that Go calls so.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "riscv64": elf.EM_RISCV, "ppc64le": elf.EM_PPC64,
	"s390x": elf.EM_S390, "loong64": elf.EM_LOONGARCH,
}

// inspect refuses what is not this module's command of that name, for this machine.
// A dynamic one may ask for the host's loader; what root runs, and what runs in a
// sandbox that need not have one, may not.
func (b binary) inspect(f *os.File) (*debug.BuildInfo, error) {
	build, err := buildinfo.Read(f)
	if err != nil {
		return nil, errors.New("is no program of Go's: install the release again")
	}
	if want := module + "/cmd/" + b.name; build.Path != want {
		return nil, fmt.Errorf("is another program, %s: install the release again", build.Path)
	}
	file, err := elf.NewFile(f)
	if err != nil {
		return nil, errors.New("is no program for Linux: install the release for this machine")
	}
	defer file.Close()
	if want := machines[runtime.GOARCH]; file.Machine != want {
		return nil, fmt.Errorf("is a program for %s, and this machine is %s: install the release for this machine", file.Machine, want)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP && !b.dynamic {
			return nil, errors.New("is linked with libraries of the machine that built it: build it with CGO_ENABLED=0")
		}
	}
	return build, nil
}

// version is what binaries of one build have in common.
func version(b *debug.BuildInfo) string {
	words := []string{b.Main.Version}
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			words = append(words, s.Value)
		case s.Key == "vcs.modified" && s.Value == "true":
			words = append(words, "modified")
		}
	}
	return strings.Join(words, " ")
}

// trusted refuses a path that others than root could put something else into: the
// launcher would refuse all that lies there.
func (h Host) trusted(path string) error {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at += "/" + part
		var st unix.Stat_t
		if err := unix.Lstat(h.path(at), &st); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return &os.PathError{Op: "stat", Path: at, Err: err}
		}
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("%s is no folder, and what root runs is reached by no link: make it one, and link again", at)
		case int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s is user %d's, who could replace what root runs from it: chown root %s, and link again", at, st.Uid, at)
		case st.Mode&0o022 != 0 && at != State: // which is sticky, and the agent's too
			return fmt.Errorf("%s can be written by others than root (mode %04o), who could replace what root runs from it: chmod go-w %s, and link again", at, st.Mode&0o7777, at)
		}
	}
	return nil
}

// writable refuses a place on a file system that is read-only.
func (h Host) writable(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		switch err := unix.Access(h.path(at), unix.W_OK); {
		case err == nil:
			return nil
		case errors.Is(err, fs.ErrNotExist) && at != "/":
		case errors.Is(err, unix.EROFS):
			return fmt.Errorf("%s cannot be written: its file system is read-only; mount it read-write, and link again", at)
		default:
			return fmt.Errorf("%s cannot be written: %w", at, err)
		}
	}
}

// folder makes a folder of root's, and its parents, whatever the umask.
func (h Host) folder(path string) error {
	for at, parts := "", strings.Split(strings.Trim(path, "/"), "/"); len(parts) > 0; parts = parts[1:] {
		at += "/" + parts[0]
		err := os.Mkdir(h.path(at), 0o755)
		if errors.Is(err, fs.ErrExist) && !strings.Contains(at, "/hanzo") {
			continue // the host's own
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// Also one that exists: a call may have been killed after it was made.
		if err := errors.Join(os.Chmod(h.path(at), 0o755), durable.SyncDir(h.path(filepath.Dir(at)))); err != nil {
			return err
		}
	}
	return nil
}

// install installs a binary, unless the same is there. What is written is a copy and
// never a renamed file, which would bring the label of where it came from.
func (h Host) install(dir string, b binary) (sum, what string, err error) {
	src, err := openFile(filepath.Join(dir, b.name))
	if err != nil {
		return "", "", err
	}
	defer src.Close()
	path := filepath.Join(Lib, b.name)
	if dst, err := os.OpenFile(h.path(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		sum, same := compare(src, dst)
		same = same && ours(dst, 0o755)
		dst.Close()
		if same {
			return sum, Current, nil
		}
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			return "", "", err
		}
	}
	if err := h.forget(b.name); err != nil {
		return "", "", err
	}
	digest := sha256.New()
	err = h.replace(path, 0o755, io.TeeReader(src, digest), func(written *os.File) error {
		// What was written, for the folder it came from need not be root's.
		is, err := b.inspect(written)
		if err == nil && h.Build != nil && version(is) != version(h.Build) {
			err = errors.New("was replaced while it was read: link again")
		}
		if err != nil {
			return fmt.Errorf("%s %w", src.Name(), err)
		}
		return nil
	})
	return hex.EncodeToString(digest.Sum(nil)), Wrote, err
}

// compare tells the SHA-256 of a file, and whether another is the same.
func compare(a, b io.Reader) (sum string, same bool) {
	digest := sha256.New()
	one, two := make([]byte, 256<<10), make([]byte, 256<<10)
	for {
		n, err := io.ReadFull(a, one)
		m, _ := io.ReadFull(b, two)
		digest.Write(one[:n])
		if !bytes.Equal(one[:n], two[:m]) {
			return "", false
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return hex.EncodeToString(digest.Sum(nil)), true
		}
		if err != nil {
			return "", false
		}
	}
}

// file writes a small file of root's, mode 0644, unless it is there.
func (h Host) file(path string, text []byte) (what string, err error) {
	if f, err := os.OpenFile(h.path(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		_, same := compare(bytes.NewReader(text), f)
		same = same && ours(f, 0o644)
		f.Close()
		if same {
			return Current, nil
		}
	}
	err = errors.Join(h.forget(filepath.Base(path)), h.folder(filepath.Dir(path)))
	if err != nil {
		return "", err
	}
	return Wrote, h.replace(path, 0o644, bytes.NewReader(text), nil)
}

// ours reports whether an open file is a regular one of root's with that mode and no
// second name.
func ours(f *os.File, mode uint32) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode == unix.S_IFREG|mode && st.Nlink == 1 &&
		int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid()
}

// replace writes a file beside its place, has it checked, and renames it there, with
// owner and mode before anybody can see it. On an error what was there is there still.
func (h Host) replace(path string, mode fs.FileMode, from io.Reader, check func(*os.File) error) (err error) {
	dir, name := filepath.Split(h.path(path))
	// Package durable would leave owner and mode to the umask.
	temporary := filepath.Join(dir, fmt.Sprintf(".%s.%016x.tmp", name, rand.Uint64()))
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(temporary)
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	if check != nil {
		if err := check(f); err != nil {
			return err
		}
	}
	// A folder with the set-group-ID bit would have given it the folder's group.
	if err := errors.Join(f.Chown(os.Geteuid(), os.Getegid()), f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

// sweep removes what calls that were killed left half written.
func (h Host) sweep() error {
	for _, in := range []string{Lib + "/.*.tmp", UnitDir + "/.hanzo-link*.tmp", SysusersDir + "/.hanzo-link*.tmp", TmpfilesDir + "/.hanzo-link*.tmp"} {
		left, err := filepath.Glob(h.path(in))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a file, if it is there.
func (h Host) remove(path string, did func(what, path string)) error {
	err := os.Remove(h.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		did(Removed, path)
	}
	return err
}

// users reports whether the host has both.
func (h Host) users() bool {
	text, err := os.ReadFile(h.path("/etc/passwd"))
	return err == nil && bytes.Contains(text, []byte("\nhanzo-link:")) && bytes.Contains(text, []byte("\nhanzo-work:"))
}

// restorecon is the program that gives files the labels of their place, where labels
// count.
func (h Host) restorecon() string {
	if !exists(h.path("/sys/fs/selinux/enforce")) {
		return ""
	}
	for _, path := range []string{"/usr/sbin/restorecon", "/sbin/restorecon"} {
		if exists(h.path(path)) {
			return path
		}
	}
	return ""
}

// enabled reports whether systemd starts the units at boot.
func (h Host) enabled() bool {
	return exists(h.path(UnitDir+"/sockets.target.wants/"+socketUnit)) && exists(h.path(UnitDir+"/multi-user.target.wants/"+agentUnit))
}

// sums are the SHA-256 of the units and, as the manifest has them, of the binaries.
func (h Host) sums() (map[string]string, error) {
	text, err := os.ReadFile(h.path(filepath.Join(Lib, manifest)))
	if err != nil {
		return nil, err
	}
	var m struct {
		Binaries map[string]string `json:"binaries"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(Lib, manifest), err)
	}
	for _, unit := range Units {
		text, err := os.ReadFile(h.path(filepath.Join(UnitDir, unit)))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		m.Binaries[unit] = hex.EncodeToString(sum[:])
	}
	return m.Binaries, nil
}

// lastStarted is what sums were when the services were last started; empty when that
// is not known, and then they are started again.
func (h Host) lastStarted() (sums map[string]string) {
	text, err := os.ReadFile(h.path(filepath.Join(Lib, started)))
	if err != nil || json.Unmarshal(text, &sums) != nil {
		return nil
	}
	return sums
}

// forget says of a file that is about to be written that nothing was started from it.
func (h Host) forget(name string) error {
	sums := h.lastStarted()
	if _, known := sums[name]; !known {
		return nil
	}
	delete(sums, name)
	return h.remember(sums)
}

// Renew has the next Start start the agent anew, if it runs: it holds a link that is
// about to be replaced. That is remembered, should the caller be killed before.
func (h Host) Renew() error { return h.forget("hanzo-link") }

func (h Host) remember(sums map[string]string) error {
	text, err := json.Marshal(sums)
	if err != nil {
		return err
	}
	_, err = h.file(filepath.Join(Lib, started), append(text, '\n'))
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
