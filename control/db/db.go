// Package db is the control plane's memory: for each org one SQLite file and one
// folder of artifact bytes, and every rule that must hold at the moment of
// writing. It knows no HTTP; its refusals are [*api.Problem] values.
//
// # Files
//
//	<data>/lock                        held by the one server of this folder
//	<data>/control.db                  hashes of tokens and credentials, the key that signs grants, the record's id
//	<data>/orgs/<org>/research.db      the org's record
//	<data>/orgs/<org>/compute.db       its machines and their work; see [Fleet]
//	<data>/orgs/<org>/artifacts/<sha>  canonical uncompressed bytes, by address
//	<data>/orgs/<org>/parts/<sha>.<n>  received parts of an upload under way
//	<data>/orgs/<org>/trees/<hash>     what files an input has, by policy.TreeHash
//	<data>/orgs/<org>/blobs/<sha>      the bytes of such a file, by address
//
// # Durability and crashes
//
// A method that writes is one transaction (WAL, synchronous=FULL) and returns
// nil only after its commit is on stable storage. Bytes are written to a
// temporary file, hashed as they arrive, synced and renamed before the
// transaction that says they are stored. So after a crash at any moment
//
//   - what was acknowledged is there, whole;
//   - what was not is there whole or not at all, and sending it again succeeds;
//   - a file under artifacts/ that no row calls stored may remain. It is complete
//     and correct, nothing serves it, and the same upload made again replaces it.
//     Parts of an upload that never ended remain until it is made again; when all
//     had come, the next registration or PUT puts them together.
//
// We assume what SQLite assumes of the disk, and what package durable does. The
// folder must be on a local file system: WAL does not work over NFS.
//
// # Order
//
// Every object gets a sequence number when it is received. Only that number
// orders a gate before a run (HIP-1334 §9.3); clocks are shown and not compared.
//
// # Concurrency
//
// All methods may be called concurrently. Writes of one org are serialised, reads
// see the last commit and do not wait. Two processes must not serve one folder:
// Open takes a lock, which dies with the process.
package db

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"

	"github.com/hanzoai/link/spool/durable"
)

// A Store is the folder of one control plane.
type Store struct {
	*Tokens

	// immutable once open
	dir  string
	now  func() time.Time
	key  []byte
	id   string
	lock *os.File

	mu     sync.Mutex // guards orgs and fleets
	orgs   map[string]*Org
	fleets map[string]*Fleet
}

// ErrInUse is returned by Open when another process serves the folder.
var ErrInUse = errors.New("another hanzo-cloud is serving this folder; stop it, or use another --data")

// Open opens the folder dir, and makes it when it is missing. now is the clock
// of received instants; nil means time.Now.
func Open(dir string, now func() time.Time) (*Store, error) {
	if now == nil {
		now = time.Now
	}
	tokens, err := OpenTokens(dir)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		tokens.Close()
		return nil, fmt.Errorf("opening the data folder: %w", err)
	}
	s := &Store{Tokens: tokens, dir: dir, now: now, lock: lock, orgs: make(map[string]*Org), fleets: make(map[string]*Fleet)}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		s.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data folder %s: %w", dir, ErrInUse)
		}
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	var id []byte
	if s.key, err = s.once("grant", 32); err == nil {
		id, err = s.once("instance", 16)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.id = hex.EncodeToString(id)
	return s, nil
}

// Close closes every org's files and drops the lock. No method may be running.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, o := range s.orgs {
		errs = append(errs, o.close())
	}
	for _, f := range s.fleets {
		errs = append(errs, f.close())
	}
	clear(s.orgs)
	clear(s.fleets)
	errs = append(errs, s.Tokens.Close(), s.lock.Close())
	return errors.Join(errs...)
}

// GrantKey is the secret that signs upload grants. It is made once a folder, so
// that a grant outlives a restart.
func (s *Store) GrantKey() []byte { return s.key }

// ID tells this record from every other: 32 random hex digits, made once a folder.
// It is no secret.
func (s *Store) ID() string { return s.id }

// once returns the random bytes of a name, which are made the first time.
func (s *Store) once(name string, size int) ([]byte, error) {
	fresh := make([]byte, size)
	rand.Read(fresh)
	ctx := context.Background()
	if _, err := s.db.ExecContext(ctx, "insert into secret(name, value) values(?, ?) on conflict do nothing", name, fresh); err != nil {
		return nil, fmt.Errorf("making the %s bytes of control.db: %w", name, err)
	}
	var held []byte
	if err := s.db.QueryRowContext(ctx, "select value from secret where name = ?", name).Scan(&held); err != nil {
		return nil, fmt.Errorf("reading the %s bytes of control.db: %w", name, err)
	}
	return held, nil
}

// orgName is what may be an org: it becomes a folder's name.
var orgName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ValidOrg reports whether name can be an org.
func ValidOrg(name string) bool { return orgName.MatchString(name) }

// Org opens the record of one org, which must come from a token.
func (s *Store) Org(name string) (*Org, error) {
	if !ValidOrg(name) {
		return nil, fmt.Errorf("org %q is not a name this store can hold", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.orgs[name]; o != nil {
		return o, nil
	}
	o, err := openOrg(filepath.Join(s.dir, "orgs", name), s.now)
	if err != nil {
		return nil, fmt.Errorf("opening org %s: %w", name, err)
	}
	s.orgs[name] = o
	return o, nil
}

// openSQLite opens one database file. Pragmas are per connection, so they stand
// in the address, where the driver applies them to each.
func openSQLite(path string, connections int, readOnly bool) (*sql.DB, error) {
	pragmas := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
		"_txlock": {"immediate"},
	}
	if readOnly {
		pragmas["_pragma"] = []string{"busy_timeout(10000)", "query_only(1)"}
		pragmas["_txlock"] = []string{"deferred"}
	} else {
		// SQLite would make it readable by everyone; the files it makes beside it
		// take its mode. One that is there is not opened: closing it would drop
		// the locks that this process holds on it.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+pragmas.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// migrate brings a database to the last version: step i takes it from version i
// to i+1. A database of a later version is refused.
func migrate(ctx context.Context, db *sql.DB, steps []string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int
	if err := tx.QueryRowContext(ctx, "pragma user_version").Scan(&version); err != nil {
		return err
	}
	if version > len(steps) {
		return fmt.Errorf("the database has version %d and this hanzo-cloud knows %d: use a newer one", version, len(steps))
	}
	for _, step := range steps[version:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("pragma user_version = %d", len(steps))); err != nil {
		return err
	}
	return tx.Commit()
}

func makeDir(dir string) error {
	return durable.MkdirAll(dir, 0o700)
}

// Full reports whether err is SQLite's finding that the disk is full.
func Full(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == sqlitelib.SQLITE_FULL
}
