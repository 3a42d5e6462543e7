//go:build linux

package stage

// Order is what the host asks of a parked stage, as one packet of JSON on the
// control socket. The packet carries file descriptors: the detached mount of the
// program, that of the run directory, then one for each of Mounts.
type Order struct {
	Program string // where the program is seen, an absolute path
	Args    []string
	Env     []string
	Run     string // where the run directory is seen; the workload's working directory
	ExecRun bool

	Mounts []Mount
	Files  []File

	Groups    []int
	Umask     int
	Shm       int64  // bytes of /dev/shm
	FileSize  uint64 // bytes of the largest file
	WholeProc bool
	Inet      bool
}

// Mount says where one of the packet's detached mounts belongs. Its flags (read
// only, no devices, no execution) are already set.
type Mount struct {
	Target      string
	Dir         bool // a directory, not a file
	Write, Exec bool // what Landlock allows too
}

// File is a file with given contents, read-only over whatever stands at Target.
type File struct {
	Target string
	Data   []byte
}

// Report is what a stage answers, one packet each: parked once, started once, ended
// once; or failed, after which it is gone.
type Report struct {
	Parked  bool   `json:",omitempty"`
	Started bool   `json:",omitempty"`
	Ended   bool   `json:",omitempty"`
	Code    int    `json:",omitempty"` // with Ended: the status, -1 when a signal ended it
	Signal  int    `json:",omitempty"` // with Ended: that signal
	Failed  string `json:",omitempty"` // the step that failed, and why
}

// Limits of the wire. MaxMounts keeps a packet's descriptors below what Linux
// passes in one message (SCM_MAX_FD, 253).
const (
	ControlFD = 3 // the control socket, a seqpacket
	MaxOrder  = 128 << 10
	MaxMounts = 200
)
