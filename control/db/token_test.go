package db

import (
	"fmt"
	"testing"

	"github.com/hanzoai/link/control/api"
)

const (
	keyOne = "9b1c0e6f2a4d4e0b8c7f3a5d1e2b6c90"
	keyTwo = "00000000000000000000000000000002"
)

// TestNodeCredential follows a node's credential from its making to its tombstone.
func TestNodeCredential(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	tokens, err := OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	mint := func(org, id, key string) string {
		t.Helper()
		c, err := tokens.MintNode(ctx, org, id, key, org+"/alice")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	is := func(what, credential string, want NodeID) {
		t.Helper()
		got, ok, err := tokens.IdentifyNode(ctx, credential)
		if err != nil || ok != (want != NodeID{}) || got != want {
			t.Errorf("%s: IdentifyNode = %+v, %t, %v, want %+v", what, got, ok, err, want)
		}
	}
	evo := NodeID{Org: "acme", ID: "evo", Key: keyOne, LinkedBy: "acme/alice"}
	removed := evo
	removed.Revoked = true
	unknown := NodeID{}

	first := mint("acme", "evo", keyOne)
	other := mint("acme", "ovo", keyOne)
	foreign := mint("globex", "evo", keyOne)
	is("fresh", first, evo)
	if _, ok, err := tokens.Identify(ctx, first); ok || err != nil {
		t.Errorf("a node's credential is a person's token: %t, %v", ok, err)
	}
	person, err := tokens.Mint(ctx, api.Identity{Owner: "acme", Name: "alice", Project: "default", Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	is("a person's token", person, unknown)
	is("no token", "", unknown)

	second := mint("acme", "evo", keyOne)
	is("linked again, and the answer was lost", first, evo)
	is("linked again, the second", second, evo)
	is("linked again, the first once the second was used", first, unknown)

	for range 2 { // twice is once
		if err := tokens.RevokeNode(ctx, "acme", "evo"); err != nil {
			t.Fatal(err)
		}
	}
	is("removed", second, removed)
	is("removed, the one before", first, unknown)

	// Another install takes the name: the first one is to learn that it was removed.
	usurper := mint("acme", "evo", keyTwo)
	is("another install", usurper, NodeID{Org: "acme", ID: "evo", Key: keyTwo, LinkedBy: "acme/alice"})
	is("the removed install", second, removed)
	if err := tokens.RevokeNode(ctx, "acme", "evo"); err != nil {
		t.Fatal(err)
	}

	// The same install comes back: it is not to take itself for removed.
	third := mint("acme", "evo", keyOne)
	is("back again", third, evo)
	is("back again, its tombstone", second, unknown)

	if err := tokens.Close(); err != nil {
		t.Fatal(err)
	}
	if tokens, err = OpenTokens(dir); err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	is("after a restart", third, evo)
	is("after a restart, a removed one", usurper, NodeID{Org: "acme", ID: "evo", Key: keyTwo, LinkedBy: "acme/alice", Revoked: true})
	is("another node of the org", other, NodeID{Org: "acme", ID: "ovo", Key: keyOne, LinkedBy: "acme/alice"})
	is("another org's node of that name", foreign, NodeID{Org: "globex", ID: "evo", Key: keyOne, LinkedBy: "globex/alice"})

	var held int
	if err := tokens.db.QueryRow("select count(*) from node where instr(hash, ?)", third).Scan(&held); err != nil || held != 0 {
		t.Errorf("%d rows hold the credential, %v", held, err)
	}
}

// TestTokensBecomeAdmins opens a folder from before there were admins: its tokens
// were made by the server's owner, each of them. New ones are what they are made.
func TestTokensBecomeAdmins(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	old, err := openSQLite(dir+"/control.db", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate(ctx, old, tokenSchema[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := old.ExecContext(ctx, "insert into token(hash, org, project, name, created) values(?, 'acme', 'default', 'hanzo-cloud', '')", hashOf("old")); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	tokens, err := OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	want := api.Identity{Owner: "acme", Project: "default", Name: "hanzo-cloud", Admin: true}
	if got, ok, err := tokens.Identify(ctx, "old"); got != want || !ok || err != nil {
		t.Errorf("the old token is %+v, %t, %v", got, ok, err)
	}
	for _, admin := range []bool{false, true} {
		want.Admin = admin
		token, err := tokens.Mint(ctx, want)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := tokens.Identify(ctx, token); got != want || err != nil {
			t.Errorf("made as %+v, it is %+v, %v", want, got, err)
		}
	}
}

func TestCheckIdentity(t *testing.T) {
	right := api.Identity{Owner: "acme", Name: "alice", Project: "default"}
	for name, ok := range map[string]bool{
		"alice": true, "alice@example.org": true, "Alice.B_c+d-1": true, "0": true,
		"": false, "a b": false, "a/b": false, ".a": false, "a\n": false, "a\x1b[2J": false, "é": false,
		fmt.Sprintf("%064d", 1): false, fmt.Sprintf("%063d", 1): true,
	} {
		id := right
		id.Name = name
		if err := CheckIdentity(id); (err == nil) != ok {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, id := range []api.Identity{{Name: "alice", Project: "default"}, {Owner: "acme", Name: "alice"}, {Owner: "../x", Name: "alice", Project: "default"}} {
		if CheckIdentity(id) == nil {
			t.Errorf("%+v is taken", id)
		}
	}
}
