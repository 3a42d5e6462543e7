//go:build linux

// Package vm boots a small Debian on an emulated processor, so that tests can
// have what a build machine may lack: systemd as pid 1 and cgroup v2 with every
// controller, an out-of-memory kill that hurts nobody.
//
// [Build] makes the image once, from Debian packages, and keeps it; [Image.Boot]
// starts a machine from it, hands it a folder, runs the program named run in it
// as root, and brings back what that wrote under /run/results. A boot takes some
// seconds, a machine's changes are dropped when it ends, and any number may run
// at once.
//
// The processor is emulated (QEMU's TCG), for nested virtualisation is rare
// where tests run. Integer code runs at about the speed of the host, starting a
// process takes ten times as long, floating point and hashes thirty to a hundred
// times. A test in the machine gives ten times the bound it would give outside
// and asserts no other times.
package vm

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed image.sh
var imageScript []byte

// An Unavailable error says why this host cannot build or run a machine. It is
// a fact about the host, where every other error is a failure.
type Unavailable struct{ Reason string }

func (e Unavailable) Error() string { return "no test machine: " + e.Reason }

// An Image is what machines boot from: a folder with vmlinuz, initrd.img and
// root.ext4. Boot does not change it.
type Image string

// Dir is where images are kept when nobody says otherwise: $LINK_VM_CACHE, else
// hanzo-link-vm in the user's cache folder.
func Dir() (string, error) {
	if dir := os.Getenv("LINK_VM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder to keep the test machine's image in: %w; set LINK_VM_CACHE", err)
	}
	return filepath.Join(cache, "hanzo-link-vm"), nil
}

// Build returns the image kept in dir, and makes it first when there is none or
// image.sh has changed. It takes root and Debian's apt, and installs QEMU where
// it is absent; on a host that lacks any of it the error is [Unavailable]. What
// it does is written to log. Processes that build at once wait for one another,
// and an interrupted build leaves nothing that a later one takes for an image.
func Build(ctx context.Context, dir string, log io.Writer) (Image, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// A file, for the script names its own bytes in the image's key.
	script := filepath.Join(dir, fmt.Sprintf("image.%d.sh", os.Getpid()))
	if err := os.WriteFile(script, imageScript, 0o755); err != nil {
		return "", err
	}
	defer os.Remove(script)
	var out, last bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", script, dir)
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(log, &last)
	endsWithUs(cmd)
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
		lines := strings.Split(strings.TrimSpace(last.String()), "\n")
		return "", Unavailable{lines[len(lines)-1]}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "", Unavailable{"no bash here"}
	}
	if err != nil {
		return "", fmt.Errorf("building the test machine's image in %s: %w\n%s", dir, err, last.String())
	}
	return Image(strings.TrimSpace(out.String())), nil
}

// A Boot is one life of a machine.
type Boot struct {
	Payload string    // the folder that stands at /run/payload, whose program run is run as root
	Results string    // the folder to fill with what is left in /run/results; made when absent
	Output  io.Writer // what run writes to its standard output and error, as it comes
	Memory  int       // MiB
}

// ErrNoResults says that a machine ended, or was ended, before it handed back
// its results: it hung, panicked, or ran out of time.
var ErrNoResults = errors.New("the machine gave no results")

// Boot runs a machine to its end and returns run's exit status. Beside what run
// left, Results holds the machine's console, its journal and run's status. When
// ctx ends first, so does the machine, with ErrNoResults.
//
// On a busy host a boot now and then hangs in the kernel's first second, of
// the emulator's making. A machine that says nothing for two minutes is ended and
// another one booted, three times at most; what run does happens once.
func (image Image) Boot(ctx context.Context, b Boot) (status int, err error) {
	for range 3 {
		status, err = image.boot(ctx, b)
		if !errors.Is(err, errSilent) {
			break
		}
	}
	return status, err
}

// errSilent says that a machine did not come to its payload.
var errSilent = errors.New("it did not start within two minutes")

func (image Image) boot(ctx context.Context, b Boot) (status int, err error) {
	if err := os.MkdirAll(b.Results, 0o755); err != nil {
		return 0, err
	}
	disks, err := os.MkdirTemp("", "hanzo-link-vm-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(disks)
	payload, results := filepath.Join(disks, "payload.ext4"), filepath.Join(disks, "results.tar")
	if err := makePayload(ctx, payload, b.Payload); err != nil {
		return 0, err
	}
	if err := os.WriteFile(results, nil, 0o644); err != nil {
		return 0, err
	}
	if err := os.Truncate(results, 64<<20); err != nil { // sparse: what results there can be
		return 0, err
	}
	console := filepath.Join(b.Results, "console")
	args := []string{
		"-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max",
		"-smp", "2", "-m", strconv.Itoa(b.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:" + console, "-serial", "stdio",
		"-kernel", filepath.Join(string(image), "vmlinuz"), "-initrd", filepath.Join(string(image), "initrd.img"),
		"-append", kernelArgs,
	}
	// In the order of vda, vdb and vdc. What the machine writes to its root is dropped.
	for _, disk := range []struct{ id, file, mode string }{
		{"root", filepath.Join(string(image), "root.ext4"), "snapshot=on"},
		{"payload", payload, "readonly=on"},
		{"results", results, "snapshot=off"},
	} {
		args = append(args, "-drive", "if=none,id="+disk.id+",file="+disk.file+",format=raw,cache=unsafe,"+disk.mode,
			"-device", "virtio-blk-pci,drive="+disk.id)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(2*time.Minute, func() { cancel(errSilent) })
	defer silent.Stop()
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = listener{b.Output, func() { silent.Stop() }}, &complaint
	endsWithUs(cmd)
	ran := cmd.Run()
	if err := unpack(results, b.Results); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(b.Results, "status"))
	if err != nil {
		tail, _ := os.ReadFile(console)
		return 0, fmt.Errorf("%w: %w\n%s%s", ErrNoResults, errors.Join(context.Cause(ctx), ran), complaint.String(), tail[max(0, len(tail)-4096):])
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// A listener passes writes on and calls heard at each of them.
type listener struct {
	io.Writer
	heard func()
}

func (w listener) Write(p []byte) (int, error) {
	w.heard()
	return w.Writer.Write(p)
}

// kernelArgs is the kernel's command line: a console, the security modules that
// a Debian has and the sandbox uses, and nothing that costs time to no end under
// emulation.
const kernelArgs = "console=ttyS0 8250.nr_uarts=2 quiet loglevel=4 rw panic=-1 reboot=t lsm=landlock,yama,bpf " +
	"mitigations=off nokaslr no5lvl init_on_alloc=0 audit=0 nmi_watchdog=0 tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests systemd.show_status=0"

// makePayload writes the folder dir into an ext4 image.
func makePayload(ctx context.Context, image, dir string) error {
	if info, err := os.Stat(filepath.Join(dir, "run")); err != nil || info.Mode()&0o100 == 0 {
		return fmt.Errorf("the payload %s has no program named run", dir)
	}
	var bytes int64
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size() + 4096
		}
		return err
	})
	if err != nil {
		return err
	}
	size := strconv.FormatInt(bytes/1024*5/4+8192, 10) + "k"
	mke2fs := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-m0", "-d", dir, image, size)
	if out, err := mke2fs.CombinedOutput(); err != nil {
		return fmt.Errorf("writing the payload %s: %w\n%s", dir, err, out)
	}
	return nil
}

// unpack writes the folders and regular files of a tar into dir. A disk that the
// machine never wrote to is an empty tar.
func unpack(name, dir string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the machine's results: %w", err)
		}
		path := filepath.Clean(header.Name)
		switch {
		case header.Typeflag == tar.TypeDir:
			err = root.MkdirAll(path, 0o755)
		case header.Typeflag == tar.TypeReg:
			var out *os.File
			if out, err = root.Create(path); err == nil {
				_, err = io.Copy(out, r)
				err = errors.Join(err, out.Close())
			}
		}
		if err != nil {
			return fmt.Errorf("the machine's results: %s: %w", header.Name, err)
		}
	}
}

// endsWithUs lets a command be killed with everything it started, when ctx ends
// or this process does.
func endsWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
}
