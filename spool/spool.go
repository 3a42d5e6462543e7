package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
)

var (
	// ErrLocked reports a run that another Log is writing, in this process or
	// another one.
	ErrLocked = errors.New("being written")
	// ErrExists reports a run, a dataset or an artifact that is here already
	// with other content.
	ErrExists = errors.New("already in the spool")
	// ErrCorrupt reports a file that is not what this package left there.
	ErrCorrupt = errors.New("spool is corrupt")
	// ErrForeign reports a spool that belongs to another org or project.
	ErrForeign = errors.New("spool belongs to another org")
	// ErrOtherServer reports a spool that was sent to another control plane.
	ErrOtherServer = errors.New("spool was sent to another control plane")
)

// The folder of a spool that nobody has signed in for.
const (
	LocalOrg     = "local"
	LocalProject = "default"
)

// staleAfter is when a temporary file is taken for abandoned.
const staleAfter = 24 * time.Hour

// The folders of a spool.
const (
	runs      = "runs"
	artifacts = "artifacts"
	datasets  = "datasets"
	gates     = "gates"
	probes    = "determinism"
)

// folders are those of a spool.
var folders = []string{runs, artifacts, datasets, gates, probes}

// A Spool is one org's and project's folder of records. It holds no open file but
// that folder, and no cache: what another process writes is seen at once.
type Spool struct {
	dir          string // <root>/<org>/<project>
	org, project string
	files        folder // all access, at <root>
	disk         durable.Disk
	mode         fs.FileMode // of new files: 0600, or 0660 in a shared spool
	attached     bool        // another writes it, and is not trusted
}

// Open returns the spool of org and project under root, and makes its folders
// when they are missing. An empty root is [Root]; an empty org or project is
// [LocalOrg] or [LocalProject]. Open takes no lock.
//
// A spool is its owner's alone, unless root is a directory with the set-group-id
// bit: then it is shared with that group, as a run's is in a sandbox, where one user
// writes it and another sends it.
func Open(root, org, project string) (*Spool, error) { return open(bare, root, org, project) }

// Attach returns a spool that another user writes, who is not trusted, to send it:
// see the package's contract. It makes nothing; a spool that is not there yet is
// fs.ErrNotExist.
func Attach(root, org, project string) (*Spool, error) {
	s, err := under(bare, root, org, project)
	if err != nil {
		return nil, err
	}
	s.attached, s.mode = true, 0o660
	if _, err := s.files.Stat(s.dir); err != nil {
		s.Close()
		return nil, fmt.Errorf("opening spool: %w", err)
	}
	return s, nil
}

// over is a file system made of another: a test's has faults.
type over func(durable.FS) durable.FS

func bare(base durable.FS) durable.FS { return base }

func open(over over, root, org, project string) (*Spool, error) {
	if root == "" {
		var err error
		if root, err = Root(); err != nil {
			return nil, err
		}
	}
	mode, folder := fs.FileMode(0o600), fs.FileMode(0o700)
	if info, err := os.Stat(root); err == nil && info.Mode()&fs.ModeSetgid != 0 {
		mode, folder = 0o660, 0o770
	}
	if err := durable.On(over(durable.OS)).MkdirAll(root, folder); err != nil {
		return nil, fmt.Errorf("opening spool: %w", err)
	}
	s, err := under(over, root, org, project)
	if err != nil {
		return nil, err
	}
	s.mode = mode
	for _, sub := range folders {
		dir := filepath.Join(s.dir, sub)
		if err := s.disk.MkdirAll(dir, folder); err != nil {
			return nil, fmt.Errorf("opening spool: %w", err)
		}
		if err := s.files.sweep(dir, time.Now().Add(-staleAfter)); err != nil {
			return nil, fmt.Errorf("opening spool: %w", err)
		}
	}
	return s, nil
}

// under is the spool of org and project under a root that is there.
func under(over over, root, org, project string) (*Spool, error) {
	if org == "" {
		org = LocalOrg
	}
	if project == "" {
		project = LocalProject
	}
	for _, name := range []string{org, project} {
		if !folderName.MatchString(name) {
			return nil, fmt.Errorf("opening spool: %q is no name for an org or project folder", name)
		}
	}
	files, err := openFolder(root)
	if err != nil {
		return nil, fmt.Errorf("opening spool: %w", err)
	}
	return &Spool{
		dir: filepath.Join(root, org, project), org: org, project: project,
		files: files, disk: durable.On(over(files)),
	}, nil
}

// Close gives back what a Spool holds, after its last use. A Spool that is not used
// any more is closed with its memory.
func (s *Spool) Close() error { return s.files.root.Close() }

// Root returns $HANZO_SPOOL, or ~/.hanzo/spool when it is not set.
func Root() (string, error) {
	if root := os.Getenv("HANZO_SPOOL"); root != "" {
		return root, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the spool: %w; set HANZO_SPOOL", err)
	}
	return filepath.Join(home, ".hanzo", "spool"), nil
}

// Dir returns the spool's folder.
func (s *Spool) Dir() string { return s.dir }

// Org and Project name what the spool's folder is for.
func (s *Spool) Org() string     { return s.org }
func (s *Spool) Project() string { return s.project }

// Runs returns the ids of the runs with a log, sorted.
func (s *Spool) Runs() ([]string, error) { return list(s, runs, ".log", record.ValidRun) }

// list returns the names in a folder that have the given suffix, without it,
// sorted. What is named as nothing of ours is not listed.
func list[T ~string](s *Spool, sub, suffix string, valid func(T) bool) ([]T, error) {
	entries, names := 0, 0 // no limit
	if s.attached {
		entries, names = maxEntries, maxNames
	}
	dir := filepath.Join(s.dir, sub)
	var found []T
	err := s.files.each(dir, entries, func(name string) error {
		name, ok := strings.CutSuffix(name, suffix)
		if !ok || !valid(T(name)) {
			return nil
		}
		if found = append(found, T(name)); names > 0 && len(found) > names {
			return fmt.Errorf("%w: %s holds more than %d of %s", ErrCorrupt, dir, names, suffix)
		}
		return nil
	})
	if s.attached && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // its writer has not come so far
	}
	if err != nil {
		return nil, fmt.Errorf("reading spool: %w", err)
	}
	slices.Sort(found)
	return found, nil
}

// path returns the path of a file; what is in name was checked by the caller.
func (s *Spool) path(folder, name string) string { return filepath.Join(s.dir, folder, name) }

// folderName is what an org or project may be called here: one path element
// that is not hidden.
var folderName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func checkRun(run string) error {
	if !record.ValidRun(run) {
		return fmt.Errorf("%q is no run id: it begins with a letter or digit and has at most 192 of letters, digits and ._:+@-", run)
	}
	return nil
}

// absent is an fs.ErrNotExist that says what is not here, once.
type absent string

func (a absent) Error() string { return string(a) }
func (a absent) Unwrap() error { return fs.ErrNotExist }

// load reads a record of one of the folders into v, which is left as it is when
// there is none.
func (s *Spool) load(folder, name string, v any) (bool, error) {
	path := s.path(folder, name+".json")
	limit := int64(maxSmall)
	if s.attached {
		limit = maxRecord
	}
	b, err := s.files.read(path, limit)
	if err != nil || b == nil {
		return false, err
	}
	if err := canon.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("%w: %s: %w; move it away and put the object again", ErrCorrupt, path, err)
	}
	return true, nil
}
