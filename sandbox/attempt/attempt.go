// Package attempt tries to break out of the sandbox from inside it.
//
// It runs as the workload: [Main] is the whole program that the sandbox starts.
// Its mode "list" makes one attempt after the other, each a thing that a hostile
// program would try first, and writes one JSON object a line as soon as an
// answer is known. [Listed] says beforehand which lines must come, so an attempt
// that took the sandbox down shows as the line that is missing. The other modes
// are one behaviour each, for what can only be judged from outside: processes
// that will not die, memory that will not stop growing, a socket that is
// something else.
//
// Every attempt is bounded and undoes what it did, so that a sandbox that fails
// costs the machine nothing; run as root it refuses to start. What it expects
// depends on what the workload was given, and comes as arguments: a workload's
// environment is exact and is itself an attempt.
//
// It imports nothing of this repository, because a check that shares code with
// what it checks shares its mistakes.
package attempt

import (
	"bufio"
	"bytes"
	"encoding/json"
)

// Argument is the first argument that makes a program be [Main]. It is no word
// that a person types.
const Argument = "--inside-the-sandbox"

// State is how an attempt ended.
type State string

const (
	Held    State = "held"    // the sandbox answered as it must
	GaveWay State = "gaveWay" // it did not
	NotRun  State = "notRun"  // the host lacks what the attempt takes
	Failed  State = "failed"  // it could not be made, which says nothing about the sandbox
)

// Result is what came of one attempt.
type Result struct {
	Number   int    `json:"number"` // stable, with gaps: what is tried elsewhere, on a relay (56) or a launcher (81 to 100)
	Name     string `json:"name"`
	Expected string `json:"expected"`
	Got      string `json:"got"` // what the kernel answered; what gave way, is lacking or failed
	State    State  `json:"state"`
}

// Profile is what the workload was given, as far as an attempt expects something
// else because of it.
type Profile struct {
	Inet      bool     // may make internet sockets, of which only the loopback's lead anywhere
	WholeProc bool     // sees all of /proc rather than the processes alone
	Run       string   // its run directory, which is its working directory
	Read      []string // what else is mounted for it, read-only
	Write     []string // what else is mounted for it to write
	Devices   []string // the device nodes it was admitted to
	Env       []string // its whole environment
	Shm       int64    // bytes that /dev/shm may hold
	Port      int      // a TCP port that is open on the host's 127.0.0.1; 0: none
	Abstract  string   // an abstract Unix socket that listens on the host; "": none
	Hidden    []string // paths that exist on the host and may not be seen
}

// Results reads the lines that mode "list" wrote. It stops at the first line
// that is none, so what follows a crash is not taken for a result.
func Results(output []byte) []Result {
	var results []Result
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Result
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			break
		}
		results = append(results, r)
	}
	return results
}
