package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
)

// ErrUnlinked is [Run]'s error when the cloud says that the node was removed. All
// work has been stopped and the credential is gone.
var ErrUnlinked = errors.New("this machine was removed from its org: to link it again, run sudo hanzo link")

// Config is what an agent needs to know. Paths are absolute.
type Config struct {
	Dir    string // the state directory: key, credential, link.json, activities, audit.jsonl
	Spool  string // the directory of spool directories
	Store  string // the directory that holds trees/
	Policy string // the policy file; "" when there is no launcher
	Status string // where status.json is written; "" is nowhere

	// Dial connects to the launcher; nil is presence only, which offers nothing.
	Dial func() (Launcher, error)

	// Facts says what this host is; Run adds what it offers and the policy.
	Facts func(context.Context) (api.WorkerFacts, error)

	// HTTP is the transport of every call; nil is one of the agent's own, over
	// HTTP/1.1, without redirects.
	HTTP *http.Client

	// Wait is how long a claim waits, in whole seconds; 0 is 25 s.
	Wait time.Duration

	// Notify is told READY=1, WATCHDOG=1 and STOPPING=1, for a service manager; nil
	// is none. Watchdog is how often it wants to be told of the second, 0 is never.
	// It is told whenever a claim was answered or waited out, at least every 45 s, so
	// it must be longer than that.
	Notify   func(state string)
	Watchdog time.Duration

	Log *slog.Logger // nil discards
}

// A Launcher is a connection to the launcher: an [ipc.Conn], on a system that has
// one. One goroutine reads and another writes.
type Launcher interface {
	ReadReply() (ipc.Reply, []*os.File, error)
	WriteRequest(ipc.Request) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// Run is the agent's life. It returns nil when ctx ends, [ErrUnlinked] when the node
// was removed, and any other error where it cannot go on: a link that cannot be read,
// a launcher of another version.
//
// When ctx ends it stops all work, says so to the cloud, and returns within 25 s.
// Work that ran is reported as lost, or as stopped by unlink when the file unlinking
// stands in Dir, which is how hanzo unlink says that it is at work; work that did not
// run yet stays in the journal for the next life.
func Run(ctx context.Context, cfg Config) error { return errors.New("not built yet") }
