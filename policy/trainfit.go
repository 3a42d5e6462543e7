package policy

import (
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// TrainFitInput is the input of kind [TrainFit], which teaches a decision model:
// our own train binary, over a stage and a base that are given to it read-only.
// It is to this kind what HIP-1172 A5 is to the other three. The schema is
// closed, and every member is there:
//
//	{
//	  "stage": "<64 hex: the tree that holds stage.json and the data it names>",
//	  "base": "<64 hex: the tree of the checkpoint that it starts from>",
//	  "memory": 4294967296,
//	  "cpus": 8,
//	  "disk": 10737418240,
//	  "vram": 0,
//	  "gpus": [],
//	  "maxSec": 3600
//	}
//
// stage and base are names of trees, which [TreeHash] defines; the agent fetches
// their files into store/trees/<hash>/ and verifies them before it asks for a
// start. memory is at least 64 MiB, cpus 1 to 1024, disk at least 1 MiB, maxSec
// 60 to 86400 and at most the policy's. vram is bytes of accelerator memory on
// the accelerators of gpus, which are distinct indices 0 to 255 of this host;
// vram 0 is no accelerator, and then, and only then, gpus is []. Anything else
// fails schema.
//
// # What runs
//
// The train binary that the root-owned manifest pins by its SHA-256, with
//
//	train fit /in/stage/stage.json --run <activity> --spool /spool
//	  --data <dir>/data --builds <dir>/builds --runs <dir>/runs
//	  --threads <cpus> --json
//
// where <dir> is the run directory. No word of it comes from the stage or from
// the input but the number of threads, and the launcher builds it.
//
// # What it sees
//
//	/in/stage  the stage's tree, read-only
//	/in/base   the base's tree, read-only; a stage says "init": {"dir": "../base"}
//	/spool     /var/lib/hanzo/link/spool/<activity>, writable: what the run
//	           recorded, which the agent uploads while it runs and after. Once the
//	           cloud has all of it the folder is emptied, and stays, so that the
//	           activity never runs again; until then what is in it counts against
//	           caps.disk of the policy, beside what running work holds
//	<dir>      its run directory, writable, deleted at stop
//
// and the system's runtime paths, and the device nodes of gpus and of no other
// accelerator. There is no network and no socket: the workload is not called,
// and says what it has to say in its spool.
//
// # Environment
//
// Exactly
//
//	PATH    a fixed system path
//	HOME    its run directory
//	TMPDIR  its run directory
//	LANG    C.UTF-8
//
// # Limits
//
//	memory.max       memory; the run directory, when it is a tmpfs, /dev/shm and
//	                 the page cache of what it writes are charged to it
//	memory.swap.max  0
//	cpu.max          cpus
//	pids.max         TrainFitPids
//	disk             disk, of run directory and spool together
//	time             maxSec from ready, and at most the policy's maxSec
//
// # States
//
//	requested  enqueued, unclaimed
//	pulling    the two trees are being fetched and verified; skipped when both
//	           are in the store
//	starting   the sandbox is being built
//	ready      the train binary is running
//	idle       never
//	stopped    done: it ended by itself with status 0, or 3 when its gate failed;
//	           or cancel,
//	           policy, deadline, max, unlink
//	failed     any other end, with a code of HIP-1172 A5: pull when a tree is not
//	           in the store, start when the sandbox could not be built, capacity
//	           when it needed more memory or disk than it was admitted with, crash
//	           for any other status and for a signal that was not the launcher's
//
// A run that was stopped otherwise than done stays open in its spool, as Ctrl-C
// leaves it. Its checkpoint went with the run directory, so another activity
// begins anew.
type TrainFitInput struct {
	Stage  string `json:"stage"`
	Base   string `json:"base"`
	Memory int64  `json:"memory"`
	Disk   int64  `json:"disk"`
	VRAM   int64  `json:"vram"`
	CPUs   int    `json:"cpus"`
	GPUs   []int  `json:"gpus"`
	MaxSec int    `json:"maxSec"`
}

// TrainFitDone reports whether a train fit that exits with this status has done its
// work. It has with 3 too: the run ended and its gate failed, which the record says and
// the machine is not to blame for.
func TrainFitDone(status int) bool { return status == 0 || status == 3 }

// TrainFitLeast is the least that a workload of kind [TrainFit] asks of each cap.
var TrainFitLeast = Caps{Memory: 64 << 20, CPUs: 1, Disk: 1 << 20}

// trainFitShortest is the least maxSec, in seconds.
const trainFitShortest = 60

// TrainFitLacks names what of a policy is too small for the least workload of kind
// [TrainFit], as "caps.memory is 0": a kind that the policy names and that nobody could
// be given is not offered.
func (p Policy) TrainFitLacks() []string {
	var all []string
	for _, n := range []struct {
		name         string
		given, least int64
	}{
		{"caps.memory", p.Caps.Memory, TrainFitLeast.Memory},
		{"caps.cpus", int64(p.Caps.CPUs), int64(TrainFitLeast.CPUs)},
		{"caps.disk", p.Caps.Disk, TrainFitLeast.Disk},
		{"concurrency", int64(p.Concurrency), 1},
		{"maxSec", int64(p.MaxSec), trainFitShortest},
	} {
		if n.given < n.least {
			all = append(all, fmt.Sprintf("%s is %d", n.name, n.given))
		}
	}
	return all
}

// TrainFitPids is how many threads a workload of kind [TrainFit] may have. It
// starts no process, and computes on as many threads as it has cpus; but Go's
// scheduler counts the host's cores, which it may see, and may have a thread for
// each and as many again for its collector, and dies where it cannot have them.
// So the limit fits a host of 1024 cores twice over, and is an eighth of the pids
// (32768) that a small host has by default.
const TrainFitPids = 4096

// ParseTrainFit reads an input of kind [TrainFit]. Its errors are what HIP-1172
// calls schema: they name the member as a JSON pointer.
func ParseTrainFit(input []byte) (TrainFitInput, error) {
	var in TrainFitInput
	if err := canon.Unmarshal(input, &in); err != nil {
		return TrainFitInput{}, err
	}
	if err := in.check(); err != nil {
		return TrainFitInput{}, err
	}
	return in, nil
}

func (in TrainFitInput) check() error {
	if !hashShape.MatchString(in.Stage) {
		return refuse("/stage", "%.80q is not 64 lower-case hex digits", in.Stage)
	}
	if !hashShape.MatchString(in.Base) {
		return refuse("/base", "%.80q is not 64 lower-case hex digits", in.Base)
	}
	if err := checkNumbers([]number{
		{"/memory", in.Memory, TrainFitLeast.Memory, maxBytes},
		{"/cpus", int64(in.CPUs), int64(TrainFitLeast.CPUs), maxCPUs},
		{"/disk", in.Disk, TrainFitLeast.Disk, maxBytes},
		{"/vram", in.VRAM, 0, maxBytes},
		{"/maxSec", int64(in.MaxSec), trainFitShortest, 86400},
	}); err != nil {
		return err
	}
	for i, g := range in.GPUs {
		at := fmt.Sprintf("/gpus/%d", i)
		if err := checkNumbers([]number{{at, int64(g), 0, 255}}); err != nil {
			return err
		}
		if slices.Contains(in.GPUs[:i], g) {
			return refuse(at, "%d stands twice", g)
		}
	}
	switch {
	case in.VRAM == 0 && len(in.GPUs) > 0:
		return refuse("/gpus", "names accelerators while vram is 0; write [] or the vram")
	case in.VRAM > 0 && len(in.GPUs) == 0:
		return refuse("/gpus", "names no accelerator while vram is %d; name one or write vram 0", in.VRAM)
	}
	return nil
}

// Ask is what the workload would be to the policy. It loads no model of a source
// and never idles.
func (in TrainFitInput) Ask(activity, org string) Ask {
	return Ask{
		Activity: activity, Kind: TrainFit, Org: org,
		VRAM: in.VRAM, Memory: in.Memory, CPUs: in.CPUs, Disk: in.Disk,
		MaxSec: in.MaxSec,
	}
}
