// Command workload is what the sandbox's tests run inside it. Its first argument
// chooses one behaviour; it makes a file "ready" where a test waits for that.
package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var behaviours = map[string]func(args []string) error{
	"echo":        func(args []string) error { return say(strings.Join(args, " ")) },
	"environment": func([]string) error { return say(strings.Join(os.Environ(), "\n")) },
	"identity":    identity,
	"descriptors": descriptors,
	"list":        list,
	"missing":     missing,
	"refused":     refused,
	"read":        read,
	"write":       write,
	"open":        openDevice,
	"exit":        func(args []string) error { os.Exit(number(args[0])); return nil },
	"core":        core,
	"signal":      func(args []string) error { return syscall.Kill(os.Getpid(), syscall.Signal(number(args[0]))) },
	"sleep":       sleep,
	"handle":      handle,
	"ignore":      ignore,
	"daemons":     daemons,
	"kill1":       killFirst,
	"shout":       shout,
	"mess":        mess,
	"nest":        nest,
	"fill":        fill,
	"execute":     execute,
	"listen":      listen,
	"pass":        pass,
	"stand":       stand,
}

func main() {
	behave, known := behaviours[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "no behaviour %q\n", os.Args[1])
		os.Exit(2)
	}
	if err := behave(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(s string) error { _, err := fmt.Println(s); return err }

func number(s string) int { n, _ := strconv.Atoi(s); return n }

// sleep says by a file that everything before it is done, for ever.
func sleep([]string) error {
	if err := os.WriteFile("ready", nil, 0o600); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// identity prints who this is and what it may do, as the kernel says.
func identity([]string) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains([]string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"}, name) {
			fmt.Printf("%s %s\n", name, strings.Join(strings.Fields(value), " "))
		}
	}
	dir, err := os.Getwd()
	fmt.Println("Dir", dir)
	host, _ := os.Hostname()
	fmt.Println("Host", host, "Pid1", os.Getppid())
	return err
}

// descriptors prints the open descriptors, without the one it reads them with.
func descriptors([]string) error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "/proc/") || target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue // closed since, or the Go runtime's
		}
		say(e.Name())
	}
	return err
}

// core prints the limit of core files and tries to lower it.
func core([]string) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	say(fmt.Sprint(limit.Cur, " ", limit.Max))
	return syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
}

func list(args []string) error {
	entries, err := os.ReadDir(args[0])
	for _, e := range entries {
		say(e.Name())
	}
	return err
}

// missing prints which of these paths are there.
func missing(args []string) error {
	for _, path := range args {
		if _, err := os.Lstat(path); err == nil {
			say(path)
		}
	}
	return nil
}

// refused tries one thing and fails unless the kernel answers as the filter says.
func refused(args []string) error {
	f, err := os.Create("own")
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	want := unix.EPERM
	switch args[0] {
	case "watch /usr":
		_, err = unix.InotifyInit1(0)
	case "notify of /usr":
		var dir *os.File
		if dir, err = os.Open("/usr"); err == nil {
			_, err = unix.FcntlInt(dir.Fd(), unix.F_NOTIFY, 1 /* DN_ACCESS */)
		}
	case "set-user-id":
		err = unix.Fchmod(fd, 0o4755)
	case "made set-user-id":
		_, err = unix.Open("made", unix.O_CREAT|unix.O_WRONLY, 0o2755)
	case "preallocate":
		err, want = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20), unix.EOPNOTSUPP
	case "openat2":
		_, err = unix.Openat2(unix.AT_FDCWD, "own", &unix.OpenHow{})
		want = unix.ENOSYS
	}
	if err != want {
		return fmt.Errorf("%v, want %v", err, want)
	}
	return nil
}

func read(args []string) error {
	b, err := os.ReadFile(args[0])
	os.Stdout.Write(b)
	return err
}

func write(args []string) error { return os.WriteFile(args[0], []byte("written\n"), 0o666) }

func openDevice(args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// handle ends with 7 on SIGTERM, and counts how often that came.
func handle([]string) error {
	terms := make(chan os.Signal, 8)
	signal.Notify(terms, syscall.SIGTERM)
	go sleep(nil)
	<-terms
	for range 200_000 { // long enough for a second one to come
		syscall.Getppid()
	}
	say(fmt.Sprint("terms ", 1+len(terms)))
	os.Exit(7)
	return nil
}

// ignore starts n processes that ignore SIGTERM, and is one.
func ignore(args []string) error {
	signal.Ignore(syscall.SIGTERM)
	if len(args) > 0 && args[0] == "0" {
		time.Sleep(time.Hour)
	}
	for range number(args[0]) {
		if err := exec.Command("/proc/self/exe", "ignore", "0").Start(); err != nil {
			return err
		}
	}
	return sleep(nil)
}

// daemons leaves a process in a session of its own behind and ends.
func daemons([]string) error {
	cmd := exec.Command("/proc/self/exe", "ignore", "0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// killFirst tries to end or stop pid 1, by every signal.
func killFirst([]string) error {
	for s := syscall.Signal(1); s <= 64; s++ {
		if err := syscall.Kill(1, s); err != nil && err != syscall.EPERM && err != syscall.EINVAL {
			return err
		}
	}
	return say("alive")
}

func shout(args []string) error {
	_, err := os.Stdout.Write(bytes.Repeat([]byte("x"), number(args[0])))
	return err
}

// mess leaves what a remover must not follow or wait for.
func mess([]string) error {
	for _, err := range []error{
		os.Symlink("/etc/passwd", "link"), os.Symlink("/usr", "directory-link"), syscall.Mkfifo("pipe", 0o600),
		os.Mkdir("closed", 0o700), os.WriteFile("closed/file", []byte("x"), 0o000), os.Chmod("closed", 0o000),
		os.MkdirAll("in/side", 0o700), os.WriteFile("moved-1", nil, 0o600), os.WriteFile("a\nb", nil, 0o600), os.WriteFile("sparse", nil, 0o600),
	} {
		if err != nil {
			return err
		}
	}
	if _, err := net.Listen("unix", "socket"); err != nil {
		return err
	}
	for i := range 2000 {
		if err := os.WriteFile(fmt.Sprintf("file-%d", i), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// nest makes directories as deep as asked, far past what one path can name.
func nest(args []string) error {
	for range number(args[0]) {
		if err := os.Mkdir("moved-1", 0o700); err != nil { // the name the remover uses too
			return err
		}
		if err := os.Chdir("moved-1"); err != nil {
			return err
		}
		if err := os.WriteFile("file", []byte("x"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fill writes so many MiB to a file and waits.
func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	for range number(args[1]) {
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
	return sleep(nil)
}

func execute(args []string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	path := args[0] + "/copy"
	if err := os.WriteFile(path, program, 0o700); err != nil {
		return err
	}
	out, err := exec.Command(path, "echo", "executed").CombinedOutput()
	os.Stdout.Write(out)
	return err
}

// listen answers each connection with one line.
func listen(args []string) error {
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(c, "hello")
		c.Close()
	}
}

// pass passes its standard output to whoever connects, and ends.
func pass(args []string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
	if err != nil {
		return err
	}
	c, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix([]byte("x"), syscall.UnixRights(1), nil); err != nil {
		return err
	}
	return say("passed")
}

// stand puts something other than a socket of its own where one is expected.
func stand(args []string) error {
	var err error
	switch args[0] {
	case "symlink":
		err = os.Symlink("/proc/self/exe", "sock")
	case "fifo":
		err = syscall.Mkfifo("sock", 0o600)
	case "directory":
		err = os.Mkdir("sock", 0o700)
	case "file":
		err = os.WriteFile("sock", nil, 0o600)
	case "linked":
		if _, err = net.Listen("unix", "other"); err == nil {
			err = os.Link("other", "sock")
		}
	}
	if err != nil {
		return err
	}
	return sleep(nil)
}
