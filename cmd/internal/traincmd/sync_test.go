package traincmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// serve starts a control plane, and makes it and a token of it the one that is
// synced with.
func (s *shell) serve() {
	s.t.Helper()
	dir := s.t.TempDir()
	store, err := db.Open(dir, time.Now)
	if err != nil {
		s.t.Fatal(err)
	}
	server := httptest.NewServer(control.New(control.Config{Store: store}))
	s.t.Cleanup(func() {
		server.Close()
		store.Close()
	})
	token, err := store.Mint(s.t.Context(), api.Identity{Owner: "acme", Name: "test", Project: "default"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Setenv("HANZO_API", server.URL)
	s.token(token)
}

func (s *shell) token(token string) {
	s.t.Helper()
	name := filepath.Join(s.t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(token), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.t.Setenv("HANZO_TOKEN_FILE", name)
}

// says runs a command and checks its status and what it prints. What begins with
// ! it must not print.
func (s *shell) says(status term.Status, line string, words ...string) string {
	s.t.Helper()
	got, out := s.types(s.t.Context(), line)
	if got != status {
		s.t.Errorf("train %s: status %d, want %d\n%s", line, got, status, out)
	}
	for _, word := range words {
		absent := strings.HasPrefix(word, "!")
		if strings.Contains(out, strings.TrimPrefix(word, "!")) == absent {
			s.t.Errorf("train %s: want %q\n%s", line, word, out)
		}
	}
	return out
}

// begun records the beginning of a run.
func (s *shell) begun(run string) {
	s.t.Helper()
	sp, err := spool.Open("", "", "")
	if err != nil {
		s.t.Fatal(err)
	}
	put := func(kind record.Kind, v any) canon.SHA256 {
		b, err := canon.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		a, err := sp.Put(record.Artifact{
			Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: record.Train,
			Producer: record.Producer{Tool: "test"}, Parents: []canon.SHA256{},
		}, strings.NewReader(string(b)))
		if err != nil {
			s.t.Fatal(err)
		}
		return a.SHA256
	}
	log, err := sp.Create(run)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	_, err = log.Append(event.RunCreated{
		Kind: event.KindTrain,
		EnvironmentArtifactSHA256: put(record.KindEnvironment, record.Environment{
			Dirty: true, LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil),
			Accelerator: record.Accelerator{API: record.CPU},
			Precision:   record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
		}),
		ConfigSHA256: put(record.KindConfig, map[string]string{"run": run}),
		Parents:      []canon.SHA256{}, Tags: []string{}, By: "test",
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestSyncWithNothingLeft: sync speaks to the control plane also when all is
// acknowledged, and to the one that acknowledged it.
func TestSyncWithNothingLeft(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	s := &shell{t}
	s.serve()
	s.begun("r")
	s.says(term.OK, "sync", "sent 2 artifacts, 0 datasets, 0 gates, 1 events")
	s.says(term.OK, "sync", "sent 0 artifacts")
	s.says(term.OK, "sync --check", "complete")

	name := os.Getenv("HANZO_TOKEN_FILE")
	t.Setenv("HANZO_TOKEN_FILE", "nowhere")
	s.says(term.Unsynced, "sync", "nowhere", "!sent")
	s.token("nonsense")
	s.says(term.Unsynced, "sync", "not signed in", "!sent")
	t.Setenv("HANZO_TOKEN_FILE", name)

	s.serve()
	for _, line := range []string{"sync", "sync --check"} {
		s.says(term.Unsynced, line, "another control plane", "train sync --again")
	}
	s.says(term.Usage, "sync --check --again", "one of them")
	s.says(term.OK, "sync --again", "sent 2 artifacts, 0 datasets, 0 gates, 1 events")
	s.says(term.OK, "sync --check", "complete")
}

// TestSyncWaits: a control plane that is away is waited for, in words.
func TestSyncWaits(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	s := &shell{t}
	s.token("any")
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer server.Close()
	t.Setenv("HANZO_API", server.URL)
	var out interrupted
	out.cancel = cancel
	status := Program().Main(ctx, []string{"sync"}, term.IO{In: strings.NewReader(""), Out: &out, Err: &out})
	if status != term.Interrupted || !strings.HasPrefix(out.String(), "waiting 1") || strings.Contains(out.String(), "level=") {
		t.Errorf("status %d: %s", status, &out)
	}
}

// interrupted is what a command prints, and the Ctrl-C after its first line.
type interrupted struct {
	strings.Builder
	cancel func()
}

func (i *interrupted) Write(p []byte) (int, error) {
	i.cancel()
	return i.Builder.Write(p)
}

// TestSyncSaysRefusalsOnce: and not as a log does.
func TestSyncSaysRefusalsOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	s := &shell{t}
	s.serve()
	s.begun("broken")
	s.begun("whole")
	log := filepath.Join("spool", "local", "default", "runs", "broken.log")
	if err := os.WriteFile(log, []byte("{\"nothing\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.says(term.Unsynced, "sync", "refused: run broken stopped at seq 1", "1 events", "!level=")
	if n := strings.Count(out, "run broken"); n != 1 {
		t.Errorf("the refusal is printed %d times:\n%s", n, out)
	}
	s.says(term.Unsynced, "sync --check", "run broken: unreadable", "!run whole")
}

// TestFitSaysWhatIsLeft: a fit with a control plane that is not there ends as any
// other, and says so in one line.
func TestFitSaysWhatIsLeft(t *testing.T) {
	s := newShell(t)
	t.Setenv("HANZO_API", "http://127.0.0.1:1")
	s.token("any")
	status, out := s.types(t.Context(), "fit desk.json --run r")
	if status != term.OK && status != term.Rejected {
		t.Fatalf("status %d: %s", status, out)
	}
	if n := strings.Count(out, "artifacts are not acknowledged yet; train sync sends them"); n != 1 {
		t.Errorf("fit does not say in one line what is left:\n%s", out)
	}

	sp, err := spool.Open("", "", "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	showLeft(&b, sp, "r", errors.New("nobody is there"))
	showLeft(&b, sp, "none", errors.New("nobody is there"))
	log, err := sp.View("r")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("run r: %d events and ", log.Seq)
	if got := b.String(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "(the last error: nobody is there)\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("showLeft says %q, want %q…", got, want)
	}
}

// TestSyncOfAnother: root sends, with a person's token, the spool that the workload of
// a linked machine has written, as the user hanzo-work in a folder that it shares with
// the agent: the activity's run and nothing else, through no link, and only as the org
// and project, and to the control plane, that the agent began to send it to.
func TestSyncOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to send another user's spool takes root")
	}
	const act, work, agent = "act_01JB7Q8ZK3M2N4P5R6S7T8V9W0", 64001, 64002
	dir := filepath.Join(t.TempDir(), act)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(dir, work, agent), os.Chmod(dir, os.ModeSetgid|0o770)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HANZO_SPOOL", dir)
	s := &shell{t}
	s.serve()
	s.begun(act)
	s.begun("forged")
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, work, agent))
	}); err != nil {
		t.Fatal(err)
	}
	s.says(term.OK, "sync", "1 events")
	s.says(term.OK, "sync", "0 events")
	client, err := api.FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Run(t.Context(), act); err != nil {
		t.Errorf("the activity's run: %v", err)
	}
	if _, err := client.Run(t.Context(), "forged"); err == nil {
		t.Error("a run of another name was sent in the name of who sends")
	}
	s.serve()
	s.says(term.Unsynced, "sync", "another control plane")

	if err := os.RemoveAll(filepath.Join(dir, "local")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "local")); err != nil {
		t.Fatal(err)
	}
	if got, out := s.types(t.Context(), "sync"); got == term.OK {
		t.Errorf("through a link: %s", out)
	}
	if err := os.Remove(filepath.Join(dir, "local")); err != nil {
		t.Fatal(err)
	}
	if got, out := s.types(t.Context(), "sync"); got == term.OK {
		t.Errorf("of nothing: %s", out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("looking made %v", left)
	}
}
