package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// TestFullDisk gives the database no more pages: an append fails whole, what was
// there stays, and with room again the same append succeeds.
func TestFullDisk(t *testing.T) {
	ctx := t.Context()
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o, err := s.Org("acme")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.CreateDataset(ctx, api.DatasetCreate{ID: "d", Purpose: record.Train, License: "unstated", Origin: "test"}); err != nil {
		t.Fatal(err)
	}
	var items []record.DatasetItem
	for i := range 200 {
		text := canon.Raw(fmt.Sprintf("%q", strings.Repeat(fmt.Sprint("word", i, " "), 100)))
		it, err := record.NewItem("d", record.Train, fmt.Sprint("i", i), fmt.Sprint("test:", i), text, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, it)
	}
	pages := func(max int) {
		t.Helper()
		if _, err := o.write.ExecContext(ctx, fmt.Sprint("pragma max_page_count = ", max)); err != nil {
			t.Fatal(err)
		}
	}
	pages(1) // SQLite makes it the pages there are
	if _, err := o.AppendItems(ctx, "d", items); !Full(err) {
		t.Fatalf("AppendItems on a full disk = %v, want Full", err)
	}
	if d, err := o.Dataset(ctx, "d"); err != nil || d.Items != 0 {
		t.Errorf("after the failure the dataset is %+v, %v", d, err)
	}
	pages(1 << 20)
	if got, err := o.AppendItems(ctx, "d", items); err != nil || got.Accepted != 200 {
		t.Errorf("with room again: %+v, %v", got, err)
	}
}

// TestNewerDatabase opens what a later hanzo-cloud wrote.
func TestNewerDatabase(t *testing.T) {
	dir := t.TempDir()
	tokens, err := OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.db.ExecContext(context.Background(), "pragma user_version = 99"); err != nil {
		t.Fatal(err)
	}
	tokens.Close()
	if _, err := OpenTokens(dir); err == nil || !strings.Contains(err.Error(), "use a newer one") {
		t.Errorf("OpenTokens = %v", err)
	}
}

// TestTokensAreHashed looks for a token in everything a folder holds.
func TestTokensAreHashed(t *testing.T) {
	tokens, err := OpenTokens(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	id := api.Identity{Owner: "acme", Project: "default", Name: "test"}
	token, err := tokens.Mint(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(token) != 43 {
		t.Errorf("a token of %d characters, want the 43 of 32 bytes", len(token))
	}
	var held int
	if err := tokens.db.QueryRow("select count(*) from token where instr(hash, ?) or instr(name, ?) or instr(org, ?)", token, token, token).Scan(&held); err != nil || held != 0 {
		t.Errorf("%d rows hold the token, %v", held, err)
	}
	if got, ok, err := tokens.Identify(t.Context(), token); err != nil || !ok || got != id {
		t.Errorf("Identify = %+v, %t, %v", got, ok, err)
	}
	for _, org := range []string{"", "..", "A", "a/b", strings.Repeat("a", 64), "-a"} {
		if _, err := tokens.Mint(t.Context(), api.Identity{Owner: org, Project: "default", Name: "test"}); err == nil {
			t.Errorf("a token was made for org %q", org)
		}
	}
}

// TestPragmas checks that every connection has what durability rests on.
func TestPragmas(t *testing.T) {
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o, err := s.Org("acme")
	if err != nil {
		t.Fatal(err)
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"} {
		var got string
		if err := o.write.QueryRow("pragma " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("pragma %s is %s, %v, want %s", pragma, got, err, want)
		}
	}
	if _, err := o.read.Exec("delete from dataset"); err == nil {
		t.Error("a reading connection may write")
	}
}

// TestHugeEvidence asks for a verdict over items that would not fit in memory:
// they are refused by their size, before a byte of them is read.
func TestHugeEvidence(t *testing.T) {
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o, err := s.Org("acme")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []record.Kind{record.KindItems, record.KindPredictions} {
		sha := canon.Sum([]byte(kind))
		err = o.update(t.Context(), func(tx *tx) error {
			a, err := tx.register(record.Artifact{
				SHA256: sha, Kind: kind, MediaType: record.MediaNDJSON, SchemaVersion: 1, Purpose: record.Dev,
				Size: 1 << 30, Producer: record.Producer{Tool: "test"}, State: record.Registered, Created: tx.received,
			})
			if err != nil {
				return err
			}
			if err := tx.markStored(&a); err != nil { // no file: it must not be looked for
				return err
			}
			b := &batch{org: o, tx: tx}
			if kind == record.KindItems {
				_, err = readStored(b, "items", sha, gate.ParseItems)
			} else {
				_, err = readStored(b, "predictions", sha, gate.ParsePredictions)
			}
			return err
		})
		if p, ok := errors.AsType[*api.Problem](err); !ok || p.Code != api.Invalid {
			t.Errorf("%s of 1 GiB: %v, want invalid", kind, err)
		}
	}
}

// TestPrivateFiles opens a folder that others can enter: the files in it, which
// hold the key that signs grants and every tenant's record, are not theirs to
// read.
func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Org("acme"); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
