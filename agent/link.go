package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/durable"
)

// The files of a link, in the state directory.
const (
	keyName        = "key"
	credentialName = "credential"
	linkName       = "link.json"
	unlinkingName  = "unlinking" // there while hanzo unlink is at work
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
func NewKey() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ReadLink reads link.json in dir. A machine that is not linked is fs.ErrNotExist.
func ReadLink(dir string) (Link, error) {
	src, err := readOwn(filepath.Join(dir, linkName))
	if errors.Is(err, fs.ErrNotExist) {
		return Link{}, fmt.Errorf("this machine is not linked (%w): run sudo hanzo link", err)
	}
	if err != nil {
		return Link{}, err
	}
	var l Link
	if err := json.Unmarshal(src, &l); err != nil {
		return Link{}, fmt.Errorf("%s: %w: run sudo hanzo link to write it anew", filepath.Join(dir, linkName), err)
	}
	return l, l.check(filepath.Join(dir, linkName))
}

func (l Link) check(path string) error {
	u, err := url.Parse(l.API)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		err = fmt.Errorf("api: %.200q is no address", l.API)
	case !api.ValidWorker(l.ID):
		err = fmt.Errorf("id: %.80q is no node's", l.ID)
	case l.Org == "":
		err = errors.New("org: missing")
	case strings.ContainsFunc(l.Org+l.LinkedBy+l.Project+l.Linked+l.API, func(r rune) bool { return !unicode.IsPrint(r) }):
		// They are printed for root as they are, and the agent can write this file.
		err = errors.New("org, linkedBy, project, linked: have characters that do not print")
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: run sudo hanzo link to write it anew", path, err)
}

// Write writes credential, which only its owner can read, and then link.json into
// dir, each durably and at once or not at all. They are given to uid and gid, unless
// uid is -1.
func (l Link) Write(dir, credential string, uid, gid int) error {
	if err := l.check(linkName); err != nil {
		return err
	}
	if credential == "" || strings.ContainsFunc(credential, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return errors.New("the control plane answered no credential: run sudo hanzo link again")
	}
	src, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := writeOwned(filepath.Join(dir, credentialName), []byte(credential+"\n"), 0o600, uid, gid); err != nil {
		return err
	}
	return writeOwned(filepath.Join(dir, linkName), append(src, '\n'), 0o644, uid, gid)
}

// writeOwned is durable.WriteFile for a file of another user's. The directory may be
// that user's as well: what is given away is the new file, under a name that did not
// exist, and not what a link might lead to.
func writeOwned(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	if uid < 0 {
		return durable.WriteFile(path, data, mode)
	}
	return durable.On(owned{durable.OS, uid, gid}).WriteFile(path, data, mode)
}

// owned is the machine's disk, on which what is created is another user's.
type owned struct {
	durable.FS
	uid, gid int
}

func (o owned) OpenFile(name string, flag int, mode fs.FileMode) (durable.Handle, error) {
	if flag&os.O_CREATE == 0 {
		return o.FS.OpenFile(name, flag, mode)
	}
	f, err := os.OpenFile(name, flag|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Chown(o.uid, o.gid); err != nil {
		f.Close()
		os.Remove(name)
		return nil, err
	}
	return f, nil
}

// readOwn reads a small regular file that is what it is called: no link, and nothing
// that a reader would wait for.
func readOwn(path string) ([]byte, error) { return readOwnTo(path, 64<<10) }

func readOwnTo(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: remove it and run sudo hanzo link", path)
	}
	src, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(src)) > most {
		err = fmt.Errorf("%s is over %d bytes: remove it and run sudo hanzo link", path, most)
	}
	return src, err
}

// readKey reads the key in dir.
func readKey(dir string) (string, error) {
	path := filepath.Join(dir, keyName)
	src, err := readOwn(path)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(src))
	if !api.ValidKey(key) {
		// Without what is in it, which may be anything.
		return "", fmt.Errorf("%s is no key: remove it, and sudo hanzo link makes another", path)
	}
	return key, nil
}

// FoldHostname makes a node's id of a hostname: lower case, whatever is not a-z, 0-9
// or - as -, none at the ends, at most 63 bytes.
func FoldHostname(hostname string) string {
	folded := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(hostname))
	folded = strings.Trim(folded[:min(len(folded), maxID)], "-")
	if folded == "" {
		return "node"
	}
	return folded
}

const maxID = 63

// suffixed is the id of a machine whose hostname another install holds.
func suffixed(id, key string) string {
	const digits = 4
	return strings.TrimRight(id[:min(len(id), maxID-1-digits)], "-") + "-" + key[:digits]
}

// Register registers a machine with a person's session and returns the link and the
// node's credential; [Link.Write] keeps both. The key is read from dir, or made and
// durably written there before the call, so that a call whose answer is lost can be
// made again. A hostname that another install holds is tried once more with - and the
// first four digits of the key behind it; a machine that was linked under such an id
// asks for it first. The key is given to uid and gid, unless uid is -1; nothing else
// is written.
func Register(ctx context.Context, client *api.Client, dir string, facts api.WorkerFacts, uid, gid int) (Link, string, error) {
	key, err := readKey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		key = NewKey()
		err = writeOwned(filepath.Join(dir, keyName), []byte(key+"\n"), 0o600, uid, gid)
	}
	if err != nil {
		return Link{}, "", err
	}
	id := FoldHostname(facts.Hostname)
	ids := []string{id, suffixed(id, key)}
	if before, err := ReadLink(dir); err == nil && before.ID == ids[1] && before.API == client.Base {
		ids = []string{ids[1]}
	}
	if facts.Offers == nil {
		facts.Offers = []string{}
	}
	for _, id = range ids {
		var stored api.WorkerStored
		stored, err = client.PutWorker(ctx, id, api.WorkerPut{Key: key, WorkerFacts: facts})
		if api.Is(err, api.Conflict) {
			continue
		}
		if err != nil {
			return Link{}, "", err
		}
		if stored.Worker.ID != id || stored.Org == "" || stored.Credential == "" {
			return Link{}, "", fmt.Errorf("%s answered a registration without the node, its org or its credential: is it a control plane?", client.Base)
		}
		l := Link{
			API: client.Base, Org: stored.Org, ID: id, LinkedBy: stored.Worker.LinkedBy, Project: "default",
			Linked: time.Now().UTC().Format(time.RFC3339),
		}
		if err := l.check("the answer of " + client.Base); err != nil {
			return Link{}, "", err
		}
		return l, stored.Credential, nil
	}
	return Link{}, "", fmt.Errorf("%w: other machines are linked as %s: an admin of the org removes one, or give this machine another hostname", err, strings.Join(ids, " and "))
}
