package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	rec "github.com/hanzoai/link/spool/record"
)

// A writer is a workload as its spool shows it.
type writer struct {
	testing.TB
	s   *spool.Spool
	log *spool.Log
}

// spools is a node of a control plane that has taken an activity, and the recorder of
// its agent.
func spools(t testing.TB) (c *cloud, r *records, act string, log *syncBuffer) {
	t.Helper()
	c = newCloud(t)
	const text = `{"kinds":["train.fit"],"orgs":["acme"],"caps":{"cpus":8,"disk":1073741824,"memory":1073741824,"vram":0},"concurrency":4}`
	const key = "9b1c0e6f2a4d4e0b8c7f3a5d1e2b6c90"
	stored, err := c.person.PutWorker(t.Context(), "evo", api.WorkerPut{Key: key, WorkerFacts: api.WorkerFacts{
		Hostname: "evo", OS: "linux", Arch: "x86_64", CPUs: 8, Memory: 1 << 34, Disk: 1 << 40, GPUs: []api.GPU{}, Lanes: []string{},
		Offers: []string{policy.TrainFit}, Policy: canon.Raw(text), PolicySHA256: string(canon.Sum([]byte(text))), Version: "test",
	}})
	if err != nil {
		t.Fatal(err)
	}
	client := &api.Client{Base: c.url, Token: func() (string, error) { return stored.Credential, nil }}
	if _, err := client.Claim(t.Context(), "evo", api.Claim{Key: key, Wait: 1, Running: []api.Running{}}); err != nil {
		t.Fatal(err)
	}
	log = &syncBuffer{}
	r = &records{
		client: client, node: "evo", dir: inMemory(t), log: slog.New(slog.NewTextHandler(log, nil)),
		poll: time.Millisecond, pause: time.Millisecond,
	}
	return c, r, c.enqueue("evo"), log
}

// inMemory is t.TempDir in memory, where there is such a place: a hundred thousand
// files take a disk half a minute.
func inMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "record-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// starts makes a spool directory as the launcher does, and opens it as train does.
func (r *records) starts(t testing.TB, act string) *writer {
	t.Helper()
	dir := filepath.Join(r.dir, act)
	if err := os.Mkdir(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, os.ModeSetgid|0o770); err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return &writer{TB: t, s: s}
}

func (w *writer) put(kind rec.Kind, b []byte) canon.SHA256 {
	w.Helper()
	a, err := w.s.Put(rec.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: rec.Train,
		Producer: rec.Producer{Tool: "test"}, Parents: []canon.SHA256{},
	}, bytes.NewReader(b))
	if err != nil {
		w.Fatal(err)
	}
	return a.SHA256
}

func (w *writer) append(bodies ...event.Body) {
	w.Helper()
	for _, b := range bodies {
		if _, err := w.log.Append(b); err != nil {
			w.Fatal(err)
		}
	}
}

// begins records the beginning of a run.
func (w *writer) begins(run string) {
	w.Helper()
	environment, err := canon.Marshal(rec.Environment{
		Dirty: true, LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil),
		Accelerator: rec.Accelerator{API: rec.CPU},
		Precision:   rec.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
	})
	if err != nil {
		w.Fatal(err)
	}
	var items []rec.DatasetItem
	for i := range 3 {
		row := fmt.Appendf(nil, `{"text":"%d"}`, i)
		name := fmt.Sprintf("i%d", i)
		it, err := rec.NewItem("rows", rec.Train, name, "rows:"+name, row, row, []byte(`{"q":[0,1]}`))
		if err != nil {
			w.Fatal(err)
		}
		items = append(items, it)
	}
	b, sha, err := rec.ItemsNDJSON(items)
	if err != nil {
		w.Fatal(err)
	}
	w.put(rec.KindDataset, b)
	when := "2026-09-29T07:42:00Z"
	if err := w.s.PutDataset(rec.Dataset{
		ID: "rows", Purpose: rec.Train, Title: "rows", License: "unstated", Origin: "test", Parents: []string{},
		State: rec.Sealed, Items: 3, SHA256: &sha, Created: when, Sealed: &when,
	}); err != nil {
		w.Fatal(err)
	}
	if w.log, err = w.s.Create(run); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.log.Close() })
	w.append(event.RunCreated{
		Kind:                      event.KindTrain,
		EnvironmentArtifactSHA256: w.put(rec.KindEnvironment, environment),
		ConfigSHA256:              w.put(rec.KindConfig, []byte(`{"stage":"tiny"}`)),
		Parents:                   []canon.SHA256{}, Tags: []string{}, By: "test",
	}, event.DatasetAttached{Dataset: "rows", DatasetSHA256: sha, Purpose: rec.Train, Role: rec.RoleTrain},
		event.TrainStarted{PlanSHA256: w.put(rec.KindPlan, []byte(`{"plan":1}`)), Batches: 100, Tokens: 1000})
}

func (w *writer) steps(from, to uint64) {
	w.Helper()
	for n := from; n <= to; n++ {
		w.append(event.StepRecorded{Step: n, Tokens: 10 * n, Loss: 1 / float64(n), GradNorm: 0.5, LR: 1e-5, BatchIDsHash: canon.HashOf(fmt.Append(nil, n))})
	}
}

// arrives waits until the control plane has a run's events up to seq.
func (c *cloud) arrives(run string, seq uint64) {
	c.Helper()
	until(c, fmt.Sprintf("seq %d of run %s is there", seq, run), func() bool {
		v, err := c.person.Run(c.Context(), run)
		if p, ok := errors.AsType[*api.Problem](err); ok && p.Code == api.NotFound {
			return false
		}
		if err != nil {
			c.Fatal(err)
		}
		return v.Seq >= seq
	})
}

func over() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (c *cloud) calledTimes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// TestRecord: what a workload records arrives while it runs, and all of it in the end;
// then the spool keeps what it is read by, and not the bytes.
func TestRecord(t *testing.T) {
	c, r, act, _ := spools(t)
	before := c.calledTimes()
	ended, returned := make(chan struct{}), make(chan error, 1)
	go func() { returned <- r.Record(t.Context(), act, ended) }()
	w := r.starts(t, act)
	w.begins(act)
	w.steps(1, 3)
	c.arrives(act, 6)
	w.steps(4, 20)
	c.arrives(act, 23)
	big := w.put(rec.KindCapability, bytes.Repeat([]byte("weights."), 1<<18)) // more than is sent inline
	w.append(event.CheckpointCreated{Step: 20, Tokens: 200, ArtifactSHA256: big})
	w.append(event.RunCompleted{Status: event.Completed, Steps: 20, Tokens: 200, Batches: 20})
	w.log.Close()
	close(ended)
	if err := <-returned; err != nil {
		t.Fatal(err)
	}
	there, err := c.person.Run(t.Context(), act)
	if err != nil {
		t.Fatal(err)
	}
	here, err := w.s.View(act)
	if err != nil {
		t.Fatal(err)
	}
	here.Project, here.Visibility, here.Reference = there.Project, there.Visibility, there.Reference // the server's own
	if a, b := mustJSON(t, here), mustJSON(t, there); a != b {
		t.Errorf("the record there is\n%s\nand here\n%s", b, a)
	}
	if c.calledTimes() == before {
		t.Error("no call was counted")
	}
	// Once more, as after a restart: there is nothing to send, and nobody is called.
	calls := c.calledTimes()
	if err := r.Record(t.Context(), act, over()); err != nil {
		t.Error(err)
	}
	if n := c.calledTimes() - calls; n != 0 {
		t.Errorf("with nothing to send there were %d calls", n)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := canon.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRecordOfNothing: an activity that was never started, or wrote nothing, costs no
// call.
func TestRecordOfNothing(t *testing.T) {
	c, r, act, _ := spools(t)
	calls := c.calledTimes()
	if err := r.Record(t.Context(), act, over()); err != nil {
		t.Error(err)
	}
	r.starts(t, act)
	if err := r.Record(t.Context(), act, over()); err != nil {
		t.Error(err)
	}
	if n := c.calledTimes() - calls; n != 0 {
		t.Errorf("there were %d calls", n)
	}
	if err := r.Record(t.Context(), "../x", over()); err == nil {
		t.Error("a path for an activity was taken")
	}
}

// TestRecordAfterRestart: what one life of the agent did not send, the next does.
func TestRecordAfterRestart(t *testing.T) {
	c, r, act, log := spools(t)
	w := r.starts(t, act)
	w.begins(act)
	w.steps(1, 5)
	w.log.Close()
	ctx, stop := context.WithCancel(t.Context())
	c.between(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
		stop()
	})
	if err := r.Record(ctx, act, over()); !errors.Is(err, context.Canceled) {
		t.Errorf("the first life = %v", err)
	}
	c.between(nil)
	if err := r.Record(t.Context(), act, over()); err != nil {
		t.Errorf("the second life = %v\n%s", err, log)
	}
	c.arrives(act, 8)
}

// TestRecordWaits: what a control plane answers that is none, or does not accept the
// credential for now, is waited out.
func TestRecordWaits(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) },
		"401":    func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Unauthorized, "who?").Write(w) },
		"410":    func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Gone, "removed").Write(w) },
	} {
		t.Run(name, func(t *testing.T) {
			c, r, act, log := spools(t)
			w := r.starts(t, act)
			w.begins(act)
			n := 0
			c.on("userinfo", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if n++; n < 5 {
					answer(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
			if err := r.Record(t.Context(), act, over()); err != nil {
				t.Errorf("Record = %v", err)
			}
			c.arrives(act, 3)
			if lines := strings.Count(log.String(), "not sent for now"); lines != 1 {
				t.Errorf("it was told %d times that the record waits, want once:\n%s", lines, log)
			}
		})
	}
}

// TestRecordOfAnother: an activity that the cloud does not have, or not for this node,
// has no record there, and that is final.
func TestRecordOfAnother(t *testing.T) {
	_, r, _, _ := spools(t)
	w := r.starts(t, "act_unknown")
	w.begins("act_unknown")
	if err := r.Record(t.Context(), "act_unknown", over()); err == nil || !strings.Contains(err.Error(), "act_unknown") {
		t.Errorf("Record = %v", err)
	}
}

// TestHostileRecord has a workload do its worst with its spool. Its agent says in a
// line that the record is not whole, sends no other run, and touches nothing else.
func TestHostileRecord(t *testing.T) {
	const word = "x\nlevel=ERROR msg=\"forged\"\x1b[2J"
	for name, worst := range map[string]func(t *testing.T, w *writer, act, outside string){
		"a log that is a link": func(t *testing.T, w *writer, act, outside string) {
			link(t, filepath.Join(w.s.Dir(), "runs", act+".log"), outside)
		},
		"a log that is a named pipe": func(t *testing.T, w *writer, act, _ string) {
			path := filepath.Join(w.s.Dir(), "runs", act+".log")
			os.Remove(path)
			if err := unix.Mkfifo(path, 0o660); err != nil {
				t.Fatal(err)
			}
		},
		"acks that are links": func(t *testing.T, w *writer, act, outside string) {
			link(t, filepath.Join(w.s.Dir(), "runs", act+".ack"), outside)
		},
		"bytes that are links": func(t *testing.T, w *writer, _, outside string) {
			link(t, filepath.Join(w.s.Dir(), "artifacts", string(canon.Sum([]byte(`{"plan":1}`)))), outside)
		},
		"a folder that is a link": func(t *testing.T, w *writer, _, outside string) {
			link(t, filepath.Join(w.s.Dir(), "artifacts"), filepath.Dir(outside))
		},
		"the whole spool a link": func(t *testing.T, w *writer, _, outside string) {
			link(t, filepath.Dir(w.s.Dir()), filepath.Dir(outside))
		},
		"the whole spool a named pipe": func(t *testing.T, w *writer, _, _ string) {
			if err := os.RemoveAll(w.s.Dir()); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(w.s.Dir(), 0o660); err != nil {
				t.Fatal(err)
			}
		},
		"a folder that is a file": func(t *testing.T, w *writer, _, _ string) {
			if err := os.RemoveAll(filepath.Dir(w.s.Dir())); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Dir(w.s.Dir()), word)
		},
		"words in its log": func(t *testing.T, w *writer, act, _ string) {
			write(t, filepath.Join(w.s.Dir(), "runs", act+".log"), word+"\n")
		},
		"words where it was filed": func(t *testing.T, w *writer, _, _ string) {
			write(t, filepath.Join(w.s.Dir(), "filed.json"), `{"org":"x\nlevel=ERROR msg=\"forged\"\u001b[2J","project":"default"}`)
		},
		"filed under another org": func(t *testing.T, w *writer, _, _ string) {
			write(t, filepath.Join(w.s.Dir(), "filed.json"), `{"org":"globex","project":"default"}`)
		},
		"acknowledged by itself": func(t *testing.T, w *writer, act, _ string) {
			write(t, filepath.Join(w.s.Dir(), "runs", act+".ack"), "2\n")
		},
		"a hundred thousand files": func(t *testing.T, w *writer, _, _ string) {
			for i := range 100_000 {
				f, err := os.Create(filepath.Join(w.s.Dir(), "artifacts", fmt.Sprint("x", i)))
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		},
		"metadata without end": func(t *testing.T, w *writer, _, _ string) {
			path := filepath.Join(w.s.Dir(), "artifacts", string(canon.Sum([]byte(`{"plan":1}`)))+".json")
			if err := os.Truncate(path, 1<<40); err != nil {
				t.Fatal(err)
			}
		},
		"other runs beside it": func(t *testing.T, w *writer, _, _ string) {
			for i := range 100 {
				write(t, filepath.Join(w.s.Dir(), "runs", fmt.Sprintf("act_other%d.log", i)), word+"\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, r, act, log := spools(t)
			w := r.starts(t, act)
			w.begins(act)
			w.steps(1, 3)
			w.log.Close()
			outside := filepath.Join(t.TempDir(), "secret")
			write(t, outside, "sesame")
			worst(t, w, act, outside)
			err := r.Record(t.Context(), act, over())
			if name == "other runs beside it" {
				if err != nil {
					t.Errorf("Record = %v", err)
				}
				c.arrives(act, 6)
			} else if err == nil || !strings.Contains(err.Error(), act) {
				t.Errorf("Record = %v, want an error that names the activity", err)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("the error is not a line: %q", err)
			}
			for line := range strings.Lines(log.String()) {
				if !strings.HasPrefix(line, "time=") || strings.ContainsRune(line, 0x1b) {
					t.Errorf("the log has the line %q", line)
				}
			}
			if strings.Contains(fmt.Sprint(err)+log.String(), "sesame") {
				t.Errorf("a secret is told: %v\n%s", err, log)
			}
			if b, err := os.ReadFile(outside); string(b) != "sesame" {
				t.Errorf("what lies outside is now %q, %v", b, err)
			}
			if entries, _ := os.ReadDir(filepath.Dir(outside)); len(entries) != 1 {
				t.Errorf("beside what lies outside are %v", entries)
			}
			if n := c.count("act_other0/events"); n != 0 {
				t.Errorf("another run was sent")
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o660); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, path, to string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}
