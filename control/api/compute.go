package api

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/spool/canon"
)

// Times and sizes of the compute wire, in seconds and bytes.
const (
	MinWait = 1  // of a claim or a listing of events
	MaxWait = 30 // of the same

	// OnlineFor is how long after its last claim a node counts as online. A node
	// offline has lost its live activities.
	OnlineFor = 90

	MaxTreeFiles = 10_000   // files of one tree
	MaxOutput    = 64 << 10 // bytes of each stream in an [Output]
)

// workerID is what may be a node's id, which is a hostname folded.
var workerID = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// ValidWorker reports whether id can be a node's.
func ValidWorker(id string) bool { return workerID.MatchString(id) }

// ValidKey reports whether key is an install's: 128 bits as 32 lower-case hex digits.
func ValidKey(key string) bool { return keyShape.MatchString(key) }

var keyShape = regexp.MustCompile(`^[0-9a-f]{32}$`)

// A WorkerFacts is what a node says of itself (HIP-1172 A2). What a host has not
// is absent.
type WorkerFacts struct {
	Hostname string   `json:"hostname"`
	OS       string   `json:"os"`   // linux, darwin, …
	Arch     string   `json:"arch"` // as uname -m says it: x86_64, aarch64
	CPUs     int      `json:"cpus"` // logical cores
	CPUModel string   `json:"cpuModel"`
	Memory   int64    `json:"memory"` // bytes
	Disk     int64    `json:"disk"`   // bytes free on the store's file system
	GPUs     []GPU    `json:"gpus"`
	CUDA     string   `json:"cuda,omitzero"`
	Driver   string   `json:"driver,omitzero"`
	ROCm     string   `json:"rocm,omitzero"`
	HIP      string   `json:"hip,omitzero"`
	Version  string   `json:"version"`
	Engine   string   `json:"engine,omitzero"` // SHA-256 of the pinned engine
	Lanes    []string `json:"lanes"`
	Offers   []string `json:"offers"` // kinds of the policy that this host can run now

	// Policy is the file as it stands, and PolicySHA256 the hash of its bytes; null
	// and absent where there is none or it is broken, and then nothing is admitted.
	Policy       canon.Raw `json:"policy"`
	PolicySHA256 string    `json:"policySha256,omitzero"`
}

// A GPU is one accelerator.
type GPU struct {
	Name        string `json:"name"`
	MemoryTotal string `json:"memoryTotal,omitzero"` // as "98304 MiB"
	Arch        string `json:"arch,omitzero"`        // as gfx1151 or sm_90
	Unified     bool   `json:"unified,omitzero"`     // its memory is the host's
}

// WorkerPut is the body of PUT /v1/compute/fleet/workers/{id}: the facts, and the
// key that names the install.
type WorkerPut struct {
	Key string `json:"key"`
	WorkerFacts
}

// Bounds of what a node says of itself.
const (
	maxText    = 256     // bytes of a name or a version
	maxLists   = 256     // GPUs, lanes, offers
	maxNumber  = 1 << 53 // bytes or cores: what every reader of JSON keeps exactly
	maxRunning = 1024    // activities named by a claim
)

// Check says what of a registration is not of its form. It does not judge the
// policy: one that does not parse admits nothing.
func (w WorkerPut) Check() error {
	if !ValidKey(w.Key) {
		return fmt.Errorf("key: want 32 lower-case hex digits")
	}
	texts := []named{
		{"hostname", w.Hostname}, {"os", w.OS}, {"arch", w.Arch}, {"cpuModel", w.CPUModel}, {"cuda", w.CUDA},
		{"driver", w.Driver}, {"rocm", w.ROCm}, {"hip", w.HIP}, {"version", w.Version},
	}
	for i, g := range w.GPUs {
		at := fmt.Sprintf("gpus/%d/", i)
		texts = append(texts, named{at + "name", g.Name}, named{at + "memoryTotal", g.MemoryTotal}, named{at + "arch", g.Arch})
	}
	for i, lane := range w.Lanes {
		texts = append(texts, named{fmt.Sprintf("lanes/%d", i), lane})
	}
	for i, kind := range w.Offers {
		texts = append(texts, named{fmt.Sprintf("offers/%d", i), kind})
	}
	for _, t := range texts {
		if len(t.value) > maxText || strings.ContainsFunc(t.value, unicode.IsControl) {
			return fmt.Errorf("%s: want at most %d bytes, and no control character among them", t.name, maxText)
		}
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"cpus", int64(w.CPUs)}, {"memory", w.Memory}, {"disk", w.Disk},
	} {
		if n.value < 0 || n.value > maxNumber {
			return fmt.Errorf("%s: %d is not within 0 to %d", n.name, n.value, int64(maxNumber))
		}
	}
	switch {
	case len(w.GPUs) > maxLists || len(w.Lanes) > maxLists || len(w.Offers) > maxLists:
		return fmt.Errorf("gpus, lanes, offers: at most %d of each", maxLists)
	case w.Engine != "" && !canon.SHA256(w.Engine).Valid():
		return fmt.Errorf("engine: want 64 lower-case hex digits")
	case w.PolicySHA256 != "" && !canon.SHA256(w.PolicySHA256).Valid():
		return fmt.Errorf("policySha256: want 64 lower-case hex digits")
	}
	return nil
}

// A named is a text and where it stands.
type named struct{ name, value string }

// WorkerStored answers a registration.
type WorkerStored struct {
	Worker Worker `json:"worker"`
	Org    string `json:"org"`

	// Credential is the node's bearer token, bound to (org, id, key). It is there
	// when a person's session registered, is shown once, and ends the one before when
	// it is first used.
	Credential string `json:"credential,omitzero"`
}

// A Worker is a node as its org sees it.
type Worker struct {
	ID string `json:"id"`
	WorkerFacts
	Status    string     `json:"status"`             // online or offline
	LinkedBy  string     `json:"linkedBy"`           // org/name
	FirstSeen string     `json:"firstSeen"`          // RFC 3339
	LastClaim string     `json:"lastClaim,omitzero"` // RFC 3339; absent before the first
	Workloads []Workload `json:"workloads"`          // live activities
}

const (
	Online  = "online"
	Offline = "offline"
)

// A Workload is one live activity in a [Worker].
type Workload struct {
	Activity string         `json:"activity"`
	Kind     string         `json:"kind"`
	State    activity.State `json:"state"`
	Model    string         `json:"model,omitzero"`
}

// Workers answers GET /v1/compute/fleet/workers.
type Workers struct {
	Workers []Worker `json:"workers"`
}

// Claim is the body of POST …/workers/{id}/claim (A4). Running is every activity
// that the node has taken and that has not ended on the cloud's side too.
type Claim struct {
	Key     string    `json:"key"`
	Wait    int       `json:"wait"` // seconds, MinWait to MaxWait
	Running []Running `json:"running"`
}

// Check says what of a claim is not of its form.
func (c Claim) Check() error {
	switch {
	case !ValidKey(c.Key):
		return fmt.Errorf("key: want 32 lower-case hex digits")
	case c.Wait < MinWait || c.Wait > MaxWait:
		return fmt.Errorf("wait: %d is not within %d to %d", c.Wait, MinWait, MaxWait)
	case len(c.Running) > maxRunning:
		return fmt.Errorf("running: at most %d activities", maxRunning)
	}
	seen := make(map[string]bool, len(c.Running))
	for i, r := range c.Running {
		if !activity.ValidID(r.Activity) {
			return fmt.Errorf("running/%d/activity: %.80q is no activity id", i, r.Activity)
		}
		if seen[r.Activity] {
			return fmt.Errorf("running/%d/activity: %s stands twice", i, r.Activity)
		}
		seen[r.Activity] = true
	}
	return nil
}

// Running is one activity in a [Claim].
type Running struct {
	Activity string         `json:"activity"`
	State    activity.State `json:"state"`
}

// Claimed answers a claim that had something to say; one that had not is answered
// 204. Start are envelopes, offered again until the node reports a state of each.
type Claimed struct {
	Start []activity.Envelope `json:"start"`
	Stop  []Stop              `json:"stop"`
}

// MaxStarts is the most envelopes in one answer to a claim; the next one has the rest.
const MaxStarts = 64

// Offered is a [Claimed] as a node reads it: the envelopes, each as it was sent.
type Offered struct {
	Start []canon.Raw `json:"start"`
	Stop  []Stop      `json:"stop"`
}

// Stop asks a node to end an activity.
type Stop struct {
	Activity string          `json:"activity"`
	Reason   activity.Reason `json:"reason"`
}

// StateReport is the body of POST …/activities/{activity}/state: a transition.
// Stopped brings a Reason, and Failed an Error; Output may come with either.
type StateReport struct {
	Key      string            `json:"key"`
	State    activity.State    `json:"state"`
	Progress *Progress         `json:"progress,omitzero"`
	Reason   activity.Reason   `json:"reason,omitzero"`
	Error    *activity.Failure `json:"error,omitzero"`
	Output   *Output           `json:"output,omitzero"`
}

// Progress is how far a state has come, in bytes.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Output is what a workload of kind train.fit leaves besides its record, which is
// a run of the activity's name: its exit status, and the beginning of what it wrote,
// of each stream at most [MaxOutput] bytes, as text.
type Output struct {
	Exit      int    `json:"exit"` // -1 after a signal
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"`
}

// Check says what of a report is not of its form.
func (r StateReport) Check() error {
	switch {
	case !ValidKey(r.Key):
		return fmt.Errorf("key: want 32 lower-case hex digits")
	case !r.State.Valid() || r.State == activity.Requested:
		return fmt.Errorf("state: %.80q is none that a node reports", r.State)
	case (r.State == activity.Stopped) != (r.Reason != ""):
		return fmt.Errorf("reason: comes with stopped and with no other state")
	case r.Reason != "" && !r.Reason.Valid():
		return fmt.Errorf("reason: %.80q is none", r.Reason)
	case (r.State == activity.Failed) != (r.Error != nil):
		return fmt.Errorf("error: comes with failed and with no other state")
	case r.Error != nil && !r.Error.Code.Valid():
		return fmt.Errorf("error.code: %.80q is none", r.Error.Code)
	case r.Error != nil && len(r.Error.Message) > activity.MaxMessage:
		return fmt.Errorf("error.message: over %d bytes", activity.MaxMessage)
	case r.Output != nil && !r.State.Ended():
		return fmt.Errorf("output: comes with the end")
	case r.Output != nil && (len(r.Output.Stdout) > MaxOutput || len(r.Output.Stderr) > MaxOutput):
		return fmt.Errorf("output: a stream has over %d bytes", MaxOutput)
	case r.Progress != nil && (r.Progress.Done < 0 || r.Progress.Total < r.Progress.Done):
		return fmt.Errorf("progress: %d of %d", r.Progress.Done, r.Progress.Total)
	}
	return nil
}

// Enqueue is the body of POST /v1/compute/fleet/activities.
type Enqueue struct {
	Node  string    `json:"node"`
	Kind  string    `json:"kind"`
	Input canon.Raw `json:"input"`
}

// An Activity is one piece of work as its org sees it: the envelope, and what
// became of it.
type Activity struct {
	activity.Envelope
	Node     string            `json:"node"`
	State    activity.State    `json:"state"`
	Updated  string            `json:"updated"`           // RFC 3339, when the state came
	Stopping activity.Reason   `json:"stopping,omitzero"` // while it lives: why it is to end
	Progress *Progress         `json:"progress,omitzero"` // of the state
	Reason   activity.Reason   `json:"reason,omitzero"`   // when stopped
	Error    *activity.Failure `json:"error,omitzero"`    // when failed
	Output   *Output           `json:"output,omitzero"`   // when ended
}

// Activities answers GET /v1/compute/fleet/activities, the newest first.
type Activities struct {
	Activities []Activity `json:"activities"`
}

// ActivityQuery filters a listing; an empty field admits all. After names the last
// activity of the page before.
type ActivityQuery struct {
	Node  string
	State activity.State
	After string
	Limit int
}

// The events of the compute feed (A10).
const (
	WorkloadStarted = "compute.workload.started" // ready for the first time
	WorkloadStopped = "compute.workload.stopped"
	WorkloadDenied  = "compute.workload.denied" // at enqueue, or by the node
	WorkloadFailed  = "compute.workload.failed"
)

// A WorkloadEvent is one member of the feed.
type WorkloadEvent struct {
	Seq       uint64         `json:"seq"` // ascending within an org
	Name      string         `json:"name"`
	Org       string         `json:"org"`
	Node      string         `json:"node"`
	Activity  string         `json:"activity,omitzero"` // absent for what was refused at enqueue
	Kind      string         `json:"kind"`
	Requester string         `json:"requester"`
	Model     string         `json:"model,omitzero"`
	State     activity.State `json:"state,omitzero"`
	Reason    string         `json:"reason,omitzero"` // A5's reason or code; when denied, the rule
	Time      string         `json:"time"`
}

// A Tree is the files of a train.fit input, by name; see policy.TreeHash, which
// names the whole.
type Tree struct {
	Files []TreeFile `json:"files"`
}

// A TreeFile is one of them.
type TreeFile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// TreeStored answers PUT /v1/compute/fleet/trees/{hash}: which files' bytes are not
// held yet, each once. The tree can be run when there is none.
type TreeStored struct {
	Missing []string `json:"missing"`
}
