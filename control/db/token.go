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
	"time"

	"github.com/hanzoai/link/control/api"
)

// Tokens are the bearer tokens of a control plane. Only their SHA-256 is kept:
// a token is 256 random bits, so its hash cannot be searched back to it and
// needs no salt. Tokens may be made while a server runs.
type Tokens struct{ db *sql.DB }

var tokenSchema = []string{`
create table token(
	hash    blob primary key,
	org     text not null,
	project text not null,
	name    text not null,
	created text not null
) strict;
create table secret(name text primary key, value blob not null) strict;
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

// Mint makes a token that speaks for id and returns it. It cannot be read again.
func (t *Tokens) Mint(ctx context.Context, id api.Identity) (string, error) {
	if !ValidOrg(id.Owner) {
		return "", fmt.Errorf("org %q: want up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", id.Owner)
	}
	if !ValidOrg(id.Project) {
		return "", fmt.Errorf("project %q: want up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", id.Project)
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	token := base64.RawURLEncoding.EncodeToString(secret)
	hash := sha256.Sum256([]byte(token))
	_, err := t.db.ExecContext(ctx, "insert into token(hash, org, project, name, created) values(?, ?, ?, ?, ?)",
		hash[:], id.Owner, id.Project, id.Name, time.Now().UTC().Format(time.RFC3339))
	if err != nil {
		return "", fmt.Errorf("storing the token's hash: %w", err)
	}
	return token, nil
}

// Identify answers whom a token speaks for, and false for one never made here.
func (t *Tokens) Identify(ctx context.Context, token string) (api.Identity, bool, error) {
	hash := sha256.Sum256([]byte(token))
	var (
		id   api.Identity
		held []byte
	)
	err := t.db.QueryRowContext(ctx, "select hash, org, project, name from token where hash = ?", hash[:]).
		Scan(&held, &id.Owner, &id.Project, &id.Name)
	if errors.Is(err, sql.ErrNoRows) {
		return api.Identity{}, false, nil
	}
	if err != nil {
		return api.Identity{}, false, fmt.Errorf("looking a token up: %w", err)
	}
	// The index compared hashes byte by byte; what that takes tells nothing of
	// the token, and the decision itself does not depend on where they differ.
	if subtle.ConstantTimeCompare(held, hash[:]) != 1 {
		return api.Identity{}, false, nil
	}
	return id, true, nil
}

// Ping reports whether the tokens can be read.
func (t *Tokens) Ping(ctx context.Context) error {
	var one int
	return t.db.QueryRowContext(ctx, "select 1").Scan(&one)
}
