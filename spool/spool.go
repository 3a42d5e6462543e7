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
)

// A Spool is one org's and project's folder of records. It holds no open file
// and no cache: what another process writes is seen at once.
type Spool struct {
	dir          string // <root>/<org>/<project>
	org, project string
	disk         durable.Disk
	mode         fs.FileMode // of new files: 0600, or 0660 in a shared spool
}

// Open returns the spool of org and project under root, and makes its folders
// when they are missing. An empty root is [Root]; an empty org or project is
// [LocalOrg] or [LocalProject]. Open takes no lock.
//
// A spool is its owner's alone, unless root is a directory with the set-group-id
// bit: then it is shared with that group, as a run's is in a sandbox, where one user
// writes it and another sends it.
func Open(root, org, project string) (*Spool, error) {
	return open(durable.On(durable.OS), root, org, project)
}

func open(disk durable.Disk, root, org, project string) (*Spool, error) {
	if root == "" {
		var err error
		if root, err = Root(); err != nil {
			return nil, err
		}
	}
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
	s := &Spool{dir: filepath.Join(root, org, project), org: org, project: project, disk: disk, mode: 0o600}
	folder := fs.FileMode(0o700)
	if info, err := os.Stat(root); err == nil && info.Mode()&fs.ModeSetgid != 0 {
		s.mode, folder = 0o660, 0o770
	}
	for _, sub := range []string{runs, artifacts, datasets, gates} {
		dir := filepath.Join(s.dir, sub)
		if err := disk.MkdirAll(dir, folder); err != nil {
			return nil, fmt.Errorf("opening spool: %w", err)
		}
		if err := durable.RemoveStale(dir, time.Now().Add(-staleAfter)); err != nil {
			return nil, fmt.Errorf("opening spool: %w", err)
		}
	}
	return s, nil
}

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
func list[T ~string](s *Spool, folder, suffix string, valid func(T) bool) ([]T, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, folder))
	if err != nil {
		return nil, fmt.Errorf("reading spool: %w", err)
	}
	var found []T
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && valid(T(name)) {
			found = append(found, T(name))
		}
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

// read returns a small file's content, nil when there is none.
func read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// absent is an fs.ErrNotExist that says what is not here, once.
type absent string

func (a absent) Error() string { return string(a) }
func (a absent) Unwrap() error { return fs.ErrNotExist }

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// load reads a record of one of the folders into v, which is left as it is when
// there is none.
func (s *Spool) load(folder, name string, v any) (bool, error) {
	path := s.path(folder, name+".json")
	b, err := read(path)
	if err != nil || b == nil {
		return false, err
	}
	if err := canon.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("%w: %s: %w; move it away and put the object again", ErrCorrupt, path, err)
	}
	return true, nil
}
