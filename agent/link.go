package agent

import (
	"context"
	"errors"

	"github.com/hanzoai/link/control/api"
)

// A Link is what a linked machine knows of its link, and what is no secret of it. It
// is link.json in the state directory.
type Link struct {
	API      string `json:"api"` // the control plane's address
	Org      string `json:"org"`
	ID       string `json:"id"`       // the node's
	LinkedBy string `json:"linkedBy"` // org/name
	Project  string `json:"project"`
	Linked   string `json:"linked"` // RFC 3339: when; Register sets it
}

// NewKey makes a key, which names an install: 128 random bits as 32 hex digits.
func NewKey() string { return "" }

// ReadLink reads link.json in dir. A machine that is not linked is fs.ErrNotExist.
func ReadLink(dir string) (Link, error) { return Link{}, errors.New("not built yet") }

// Write writes credential, which only its owner can read, and then link.json into
// dir, each durably and at once or not at all. They are given to uid and gid, unless
// uid is -1.
func (l Link) Write(dir, credential string, uid, gid int) error { return errors.New("not built yet") }

// FoldHostname makes a node's id of a hostname: lower case, whatever is not a-z, 0-9
// or - as -, at most 63 bytes.
func FoldHostname(hostname string) string { return hostname }

// Register registers a machine with a person's session and returns the link and the
// node's credential; [Link.Write] keeps both. The key is read from dir, or made and
// durably written there before the call, so that a call whose answer is lost can be
// made again. A hostname that another install holds is tried once more with - and the
// first four digits of the key behind it. The key is given to uid and gid, unless uid
// is -1; nothing else is written.
func Register(ctx context.Context, client *api.Client, dir string, facts api.WorkerFacts, uid, gid int) (Link, string, error) {
	return Link{}, "", errors.New("not built yet")
}
