// Package facts reads what a host is: its name, processors, memory, free disk and
// GPUs, as a node says it of itself (HIP-1172 A2).
//
// On Linux everything comes from files beneath a root folder, so that a folder of
// files stands for a host in a test. Two programs are run, and only where NVIDIA's
// kernel driver is loaded: hanzo-gpu where there is one, else nvidia-smi, each with
// an empty environment, fixed arguments and a bound on its output and its time.
//
// What a host has not, or does not say in time, is absent; that is no error. A
// wedged driver can hold a reader in the kernel for good: the reader is then left
// behind, its facts are absent, and no second one follows it, so an agent that
// reads again and again leaves at most one behind for each part of the host. That
// state is the process's. Read may be called concurrently.
//
// Files and the programs' output are trusted as far as the kernel and the driver
// are; still every string is cut and cleaned, for it goes to the cloud and to
// terminals.
package facts

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hanzoai/link/control/api"
)

const (
	patience  = 20 * time.Second // for everything: a driver that is not kept loaded takes seconds to answer
	maxString = 256              // bytes of one fact
)

// Read answers what can be known of the host whose files are beneath root ("/" on
// a host) within twenty seconds. gpuHelper is the path of hanzo-gpu, which need not be
// there; storeDir is where the store is or will be, and its file system's
// free bytes are the disk. Offers, Lanes, Engine and Policy are the caller's to
// fill. The error is ctx's and nothing else's.
func Read(ctx context.Context, root, gpuHelper, storeDir string) (api.WorkerFacts, error) {
	return read(ctx, patience, parts(root, gpuHelper, storeDir))
}

// A part is one side of a host, which may hang without the others. Its read
// returns what writes it into the facts.
type part struct {
	name string // of the part and of what it is read from
	read func(context.Context) func(*api.WorkerFacts)
}

// A reading is a part being read. Whoever asks for the part meanwhile waits for it.
type reading struct {
	done  chan struct{}
	write func(*api.WorkerFacts) // set before done is closed
}

var (
	mu       sync.Mutex
	readings = make(map[string]*reading) // by the part's name
)

// begin reads p, or joins the reading of it.
func begin(ctx context.Context, within time.Duration, p part) *reading {
	mu.Lock()
	defer mu.Unlock()
	if r := readings[p.name]; r != nil {
		return r
	}
	r := &reading{done: make(chan struct{})}
	readings[p.name] = r
	// Not the caller's to cancel: another may have joined.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	go func() {
		defer cancel()
		r.write = p.read(ctx)
		mu.Lock()
		defer mu.Unlock()
		delete(readings, p.name)
		close(r.done)
	}()
	return r
}

// read reads all parts at once, and writes down in their order those that answer
// within the time.
func read(ctx context.Context, within time.Duration, parts []part) (api.WorkerFacts, error) {
	w := api.WorkerFacts{
		OS: runtime.GOOS, Arch: machine(), CPUs: runtime.NumCPU(), Version: Version(),
		GPUs: []api.GPU{}, Lanes: []string{}, Offers: []string{},
	}
	begun := make([]*reading, len(parts))
	for i, p := range parts {
		begun[i] = begin(ctx, within, p)
	}
	// A reading that was joined ends by its own clock, before this one.
	waited, cancel := context.WithTimeout(ctx, within+time.Second)
	defer cancel()
	for _, r := range begun {
		select {
		case <-r.done:
		case <-waited.Done():
		}
		select {
		case <-r.done:
			r.write(&w)
		default:
		}
	}
	return w, ctx.Err()
}

// machine is the name of the architecture as uname says it, or as uname would.
func machine() string {
	if name := uname(); name != "" {
		return name
	}
	switch {
	case runtime.GOARCH == "amd64":
		return "x86_64"
	case runtime.GOARCH == "arm64" && runtime.GOOS != "darwin":
		return "aarch64"
	}
	return runtime.GOARCH
}

// Version is this build's: the module's version, or the commit it was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

// clean makes one fact of what a file or a program says: one line of visible
// characters, not too long.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != '\t' && r != ' ' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxString {
		s = strings.ToValidUTF8(s[:maxString], "")
	}
	return s
}

// mebibytes is how a GPU's memory is said.
func mebibytes(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// addGPUs appends GPUs; one whose memory is the host's, and whose driver does not
// say how much of it, has the host's.
func addGPUs(w *api.WorkerFacts, gpus []api.GPU) {
	for _, g := range gpus {
		if g.Unified {
			g.MemoryTotal = cmp.Or(g.MemoryTotal, mebibytes(w.Memory))
		}
		w.GPUs = append(w.GPUs, g)
	}
}
