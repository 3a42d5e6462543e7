package db

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/hanzoai/link/control/api"
)

// Tokens are the bearer tokens of a control plane: those of persons, and the
// credentials of nodes. Only their SHA-256 is kept: a token is 256 random bits, so
// its hash cannot be searched back to it and needs no salt. Tokens may be made
// while a server runs.
type Tokens struct{ db *sql.DB }

// A NodeID is the node that a credential speaks for, and for no other: an org's
// node id, as the install of one key, linked by one person.
type NodeID struct {
	Org      string
	ID       string
	Key      string
	LinkedBy string // org/name
	Revoked  bool   // the node was removed: the credential says so to whoever kept it, and opens nothing
}

var tokenSchema = []string{`
create table token(
	hash    blob primary key,
	org     text not null,
	project text not null,
	name    text not null,
	created text not null
) strict;
create table secret(name text primary key, value blob not null) strict;
`, `
-- Every token so far was made by the owner of the server.
alter table token add column admin integer not null default 1;
create table node(
	hash     blob primary key,
	org      text not null,
	id       text not null,
	key      text not null,
	linkedby text not null,
	created  text not null,
	revoked  integer not null default 0 -- 1: the tombstone of a removed node
) strict;
create index node_id on node(org, id);
`}

// OpenTokens opens the tokens of the data folder dir without serving it.
func OpenTokens(dir string) (*Tokens, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("opening the data folder: %w", err)
	}
	path := filepath.Join(dir, "control.db")
	db, err := openSQLite(path, 1, false)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	if err := migrate(context.Background(), db, tokenSchema); err != nil {
		db.Close()
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	return &Tokens{db}, nil
}

// Close closes the file.
func (t *Tokens) Close() error { return t.db.Close() }

// Mint makes a token that speaks for id, a person, and returns it. It cannot be
// read again.
func (t *Tokens) Mint(ctx context.Context, id api.Identity) (string, error) {
	if err := CheckIdentity(id); err != nil {
		return "", err
	}
	token, hash := newToken()
	_, err := t.db.ExecContext(ctx, "insert into token(hash, org, project, name, admin, created) values(?, ?, ?, ?, ?, ?)",
		hash, id.Owner, id.Project, id.Name, id.Admin, instant(time.Now()))
	if err != nil {
		return "", fmt.Errorf("storing the token's hash: %w", err)
	}
	return token, nil
}

// Identify answers which person a token speaks for, and false for one never made
// here.
func (t *Tokens) Identify(ctx context.Context, token string) (api.Identity, bool, error) {
	hash := hashOf(token)
	var id api.Identity
	ok, err := t.find(ctx, hash, "select hash, org, project, name, admin from token where hash = ?",
		&id.Owner, &id.Project, &id.Name, &id.Admin)
	if !ok {
		return api.Identity{}, false, err
	}
	return id, true, nil
}

// MintNode makes the credential of a node and returns it. It cannot be read again.
// The credentials that the node had before end when this one is first used, and not
// before: a registration that arrives twice mints twice, and the node holds the one
// of the answer that it got. The tombstones of the same install end at once; those of
// another install under the same id remain. That the id is this install's to have is
// for the caller to know.
func (t *Tokens) MintNode(ctx context.Context, org, id, key, linkedBy string) (credential string, err error) {
	token, hash := newToken()
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("making a node's credential: %w", err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "delete from node where org = ? and id = ? and key = ? and revoked", org, id, key); err != nil {
		return "", fmt.Errorf("ending a node's credential: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "insert into node(hash, org, id, key, linkedby, created) values(?, ?, ?, ?, ?, ?)",
		hash, org, id, key, linkedBy, instant(time.Now())); err != nil {
		return "", fmt.Errorf("storing a credential's hash: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return "", fmt.Errorf("storing a credential's hash: %w", err)
	}
	return token, nil
}

// IdentifyNode answers which node a credential speaks for, and false for one that
// was never made here or that a newer one has replaced. That of a removed node is
// known and Revoked.
func (t *Tokens) IdentifyNode(ctx context.Context, credential string) (NodeID, bool, error) {
	hash := hashOf(credential)
	var n NodeID
	var replaces bool
	ok, err := t.find(ctx, hash, `select hash, org, id, key, linkedby, revoked,
		exists(select 1 from node older where older.org = node.org and older.id = node.id and older.rowid < node.rowid and not older.revoked)
		from node where hash = ?`, &n.Org, &n.ID, &n.Key, &n.LinkedBy, &n.Revoked, &replaces)
	if !ok {
		return NodeID{}, false, err
	}
	if replaces && !n.Revoked {
		if _, err := t.db.ExecContext(ctx, `delete from node where org = ? and id = ? and not revoked
			and rowid < (select rowid from node where hash = ?)`, n.Org, n.ID, hash); err != nil {
			return NodeID{}, false, fmt.Errorf("ending the credentials before: %w", err)
		}
	}
	return n, true, nil
}

// RevokeNode makes the credential of a node its tombstone. A node that has none is
// no error: it is revoked already.
func (t *Tokens) RevokeNode(ctx context.Context, org, id string) error {
	if _, err := t.db.ExecContext(ctx, "update node set revoked = 1 where org = ? and id = ?", org, id); err != nil {
		return fmt.Errorf("revoking a node's credential: %w", err)
	}
	return nil
}

// find reads the row of a hash, the query's first column, and the rest of it into
// dest.
func (t *Tokens) find(ctx context.Context, hash []byte, query string, dest ...any) (bool, error) {
	var held []byte
	err := t.db.QueryRowContext(ctx, query, hash).Scan(append([]any{&held}, dest...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking a token up: %w", err)
	}
	// The index compared hashes byte by byte; what that takes tells nothing of
	// the token, and the decision itself does not depend on where they differ.
	return subtle.ConstantTimeCompare(held, hash) == 1, nil
}

// newToken draws a token and answers it with its hash.
func newToken() (token string, hash []byte) {
	secret := make([]byte, 32)
	rand.Read(secret)
	token = base64.RawURLEncoding.EncodeToString(secret)
	return token, hashOf(token)
}

func hashOf(token string) []byte {
	hash := sha256.Sum256([]byte(token))
	return hash[:]
}

// personName is what may name a person in an org: it stands in the requester of an
// activity, in logs and on a terminal.
var personName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}$`)

// CheckIdentity says what of a person's identity this store cannot hold.
func CheckIdentity(id api.Identity) error {
	switch {
	case !ValidOrg(id.Owner):
		return fmt.Errorf("org %.80q: want up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", id.Owner)
	case !ValidOrg(id.Project):
		return fmt.Errorf("project %.80q: want up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", id.Project)
	case !personName.MatchString(id.Name):
		return fmt.Errorf("name %.80q: want up to 63 of letters, digits, '.', '_', '@', '+' and '-', the first a letter or digit", id.Name)
	}
	return nil
}

// Ping reports whether the tokens can be read.
func (t *Tokens) Ping(ctx context.Context) error {
	var one int
	return t.db.QueryRowContext(ctx, "select 1").Scan(&one)
}
