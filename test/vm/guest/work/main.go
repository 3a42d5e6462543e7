//go:build linux && amd64

// Command work stands where the train binary would, and does to its sandbox what
// the stage's file tells it to: {"do": "…"}. What the tests need to know it
// writes to a file in the spool.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// order is what the stage's file says.
type order struct {
	Do   string `json:"do"`
	N    int    `json:"n"`
	Path string `json:"path"`
}

func main() {
	debug.SetGCPercent(-1) // a process of many must not start threads of its own
	text, err := os.ReadFile("/in/stage/stage.json")
	if err != nil {
		fail(err)
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		fail(err)
	}
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "do=") { // a child of ours
		o.Do = os.Args[1][3:]
	}
	do, ok := deeds[o.Do]
	if !ok {
		fail(fmt.Errorf("no such deed: %q", o.Do))
	}
	do(o)
}

var deeds = map[string]func(order){
	// sleeps until it is stopped
	"sleep": func(order) {
		say("running", "")
		rest()
	},
	"exit": func(o order) { os.Exit(o.N) },
	// writes n bytes to each stream
	"talk": func(o order) {
		line := []byte(strings.Repeat("x", 1023) + "\n")
		for range o.N / len(line) {
			os.Stdout.Write(line)
			os.Stderr.Write(line)
		}
	},
	// a child takes memory until there is none, beside two that take none
	"memory": func(order) {
		for range 2 {
			fork(rest)
		}
		err := exec.Command("/proc/self/exe", "do=take").Run()
		say("survived", fmt.Sprint(err)) // its child was killed and it was not
		rest()
	},
	"take": func(order) {
		for {
			m, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				fail(err)
			}
			for i := 0; i < len(m); i += 4096 {
				m[i] = 1
			}
		}
	},
	// every process forks for ever
	"fork": func(order) {
		say("running", "")
		for {
			syscall.RawSyscall(unix.SYS_FORK, 0, 0, 0)
		}
	},
	// threads without end; Go's runtime ends a process that is refused one
	"thread": func(order) {
		say("running", "")
		debug.SetMaxThreads(1 << 20)
		for {
			go func() {
				runtime.LockOSThread()
				syscall.Syscall(unix.SYS_PAUSE, 0, 0, 0)
			}()
			runtime.Gosched()
		}
	},
	// n bytes of files, again and again: page cache
	"cache": func(o order) {
		block := make([]byte, 1<<20)
		for range 3 {
			f, err := os.Create("file")
			if err != nil {
				fail(err)
			}
			for range o.N >> 20 {
				if _, err := f.Write(block); err != nil {
					fail(err)
				}
			}
			f.Close()
		}
		say("written", fmt.Sprint(o.N))
		rest()
	},
	// all of /dev/shm
	"shm": func(order) {
		f, err := os.Create("/dev/shm/file")
		if err != nil {
			fail(err)
		}
		n := 0
		block := make([]byte, 1<<16)
		for err == nil {
			var k int
			k, err = f.Write(block)
			n += k
		}
		say("written", fmt.Sprint(n))
		rest()
	},
	// one file of a MiB after another, and no faster than disk use is counted
	"disk": func(order) {
		block := make([]byte, 1<<20)
		for i := 0; ; i++ {
			if err := os.WriteFile(fmt.Sprint("file", i), block, 0o600); err != nil {
				fail(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	},
	// n processes that ignore SIGTERM, as this one does
	"stubborn": func(o order) {
		signal.Ignore(unix.SIGTERM)
		for range o.N {
			fork(rest)
		}
		say("running", fmt.Sprint(o.N))
		rest()
	},
	// a daemon: two forks and a session of its own
	"daemon": func(order) {
		first := fork(func() {
			syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
			if pid, _, _ := syscall.RawSyscall(unix.SYS_FORK, 0, 0, 0); pid == 0 {
				rest()
			}
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		})
		if _, err := syscall.Wait4(first, nil, 0, nil); err != nil { // it ends after the second fork
			fail(err)
		}
		say("running", "")
		rest()
	},
	// n busy threads
	"spin": func(o order) {
		runtime.GOMAXPROCS(o.N)
		for range o.N {
			go func() {
				for n := 0; ; n++ {
					busy.Store(int64(n))
				}
			}()
		}
		say("running", "")
		rest()
	},
	// opens path and /dev/null over and over, and says how that went last
	"open": func(o order) {
		for i := 0; ; i++ {
			say("opened", fmt.Sprintf("%d %s %s", i, tryOpen("/dev/null"), tryOpen(o.Path)))
			time.Sleep(100 * time.Millisecond)
		}
	},
}

var busy atomic.Int64

func tryOpen(path string) string {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return unix.ErrnoName(err.(unix.Errno))
	}
	unix.Close(fd)
	return "opened"
}

// fork runs child in a copy of this process, whose runtime is not whole: it may
// make system calls and nothing else. It returns the copy's number.
func fork(child func()) int {
	pid, _, errno := syscall.RawSyscall(unix.SYS_FORK, 0, 0, 0)
	if errno != 0 {
		fail(errno)
	}
	if pid == 0 {
		child()
	}
	return int(pid)
}

func rest() {
	for {
		syscall.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
	}
}

// say writes a file of the spool, at once or not at all.
func say(name, text string) {
	temporary := filepath.Join("/spool", "."+name)
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		fail(err)
	}
	if err := os.Rename(temporary, filepath.Join("/spool", name)); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "work:", err)
	os.Exit(1)
}
