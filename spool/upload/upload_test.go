package upload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// TestDrain sends a whole run and a long one, and finds them there.
func TestDrain(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	r := recorder{t, s}
	r.whole("whole", 5)
	r.short("long", 1200).Close()

	left := func(events uint64, artifacts int) {
		t.Helper()
		n, m, err := Left(s, "whole")
		if err != nil || n != events || m != artifacts {
			t.Errorf("Left = %d events and %d artifacts, %v, want %d and %d", n, m, err, events, artifacts)
		}
	}
	left(14, 7)
	if _, _, err := Left(s, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Left of no run: %v", err)
	}
	found, err := Check(t.Context(), s, c.client())
	if err != nil || len(found) == 0 {
		t.Errorf("before: Check = %v, %v, want differences", found, err)
	}
	u, waits := c.uploader(s)
	c.reset(nil)
	report, err := u.Drain(t.Context())
	if err != nil || len(report.Refused) != 0 || len(*waits) != 0 {
		t.Fatalf("Drain = %+v, %v, after %d waits", report, err, len(*waits))
	}
	want := Report{Artifacts: 7, Datasets: 2, Gates: 1, Determinism: 1, Events: 14 + 1203}
	if got := fmt.Sprint(report); got != fmt.Sprint(want) {
		t.Errorf("Drain = %s, want %s", got, fmt.Sprint(want))
	}
	c.inSync(s)
	left(0, 0)

	// Nothing is left: it only asks who is there.
	c.reset(nil)
	again, _ := c.uploader(s)
	if report, err := again.Drain(t.Context()); err != nil || fmt.Sprint(report) != fmt.Sprint(Report{}) || !slices.Equal(c.calls, []string{"GET /v1/iam/oauth/userinfo"}) {
		t.Errorf("again: Drain = %+v, %v, with requests %q", report, err, c.calls)
	}

	// Without its acks all of it is sent again, and changes nothing.
	acks, err := filepath.Glob(filepath.Join(s.Dir(), "*", "*.ack"))
	if err != nil || len(acks) != 13 {
		t.Fatalf("acks: %q, %v", acks, err)
	}
	for _, ack := range acks {
		os.Remove(ack)
	}
	u, _ = c.uploader(s)
	if report, err := u.Drain(t.Context()); err != nil || fmt.Sprint(report) != fmt.Sprint(want) {
		t.Errorf("repeated: Drain = %+v, %v", report, err)
	}
	c.inSync(s)
}

// TestOrder holds the order of sending to HIP-1334 §13.4: datasets before gates, and
// determinism reports after them.
func TestOrder(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.whole("run", 3)
	u, _ := c.uploader(s)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	rank := func(call string) int {
		for i, part := range []string{"userinfo", "artifacts", "datasets", "gates", "determinism", "runs"} {
			if strings.Contains(call, part) || part == "artifacts" && strings.Contains(call, "uploads") {
				return i
			}
		}
		return -1
	}
	calls := slices.DeleteFunc(slices.Clone(c.calls), func(s string) bool { return strings.Contains(s, "userinfo") })
	if !slices.IsSortedFunc(calls, func(a, b string) int { return rank(a) - rank(b) }) {
		t.Errorf("the order of calls is %q", calls)
	}
}

// TestEveryCallFails breaks every call of a drain, in each of the ways that the
// network can break it, and checks that all of it arrives, once.
func TestEveryCallFails(t *testing.T) {
	template := newSpool(t)
	recorder{t, template}.whole("run", 3)
	for name, b := range map[string]behaviour{
		"503, not applied":         {false, status(http.StatusServiceUnavailable)},
		"502, applied":             {true, status(http.StatusBadGateway)},
		"dropped, not applied":     {false, drop},
		"answer lost, applied":     {true, drop},
		"half-closed, applied":     {true, halfClose},
		"half-closed, not applied": {false, halfClose},
		"never answered, applied":  {true, hang},
		"too many, asks for 3 s":   {false, status(http.StatusTooManyRequests, "Retry-After", "3")},
		"own problem: unavailable": {false, refuse(api.Unavailable)},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			total := 1
			for n := 1; n <= total; n++ {
				root := tempDir(t)
				if err := os.CopyFS(root, os.DirFS(filepath.Dir(filepath.Dir(template.Dir())))); err != nil {
					t.Fatal(err)
				}
				s, err := spool.Open(root, "", "")
				if err != nil {
					t.Fatal(err)
				}
				u, waits := c.uploader(s)
				u.client.HTTP.Timeout = 5 * time.Second
				c.reset(func(i int, r *http.Request) behaviour {
					if i == n {
						return b
					}
					return through
				})
				if strings.Contains(name, "never") {
					u.client.HTTP.Timeout = 100 * time.Millisecond
				}
				report, err := u.Drain(t.Context())
				if err != nil || len(report.Refused) > 0 {
					t.Fatalf("call %d, %s: Drain = %v, %+v", n, c.calls[n-1], err, report.Refused)
				}
				total = len(c.calls) - len(*waits) // a repetition after each; a busy machine waits more than once
				if len(*waits) == 0 {
					t.Errorf("call %d: no wait", n)
				}
				if strings.Contains(name, "3 s") && (*waits)[0] < 3*time.Second {
					t.Errorf("call %d: waited %v, was asked for 3s", n, (*waits)[0])
				}
				c.reset(nil)
				c.inSync(s)
				if t.Failed() {
					t.FailNow()
				}
			}
			if total < 10 {
				t.Errorf("only %d calls were broken", total)
			}
		})
	}
}

// TestBackoff holds the waits to HIP-1334 §13.4.
func TestBackoff(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 1).Close()
	u, waits := c.uploader(s)
	c.reset(func(n int, r *http.Request) behaviour {
		switch {
		case n == 9:
			return behaviour{false, status(http.StatusTooManyRequests, "Retry-After", "120")}
		case n <= 10:
			return behaviour{false, status(http.StatusServiceUnavailable)}
		}
		return through
	})
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []int{1, 2, 4, 8, 16, 32, 60, 60, 120, 60}
	if len(*waits) != len(want) {
		t.Fatalf("waits: %v, want about %v s", *waits, want)
	}
	for i, w := range *waits {
		low := time.Duration(want[i]) * time.Second
		if w < low || w > low*5/4 {
			t.Errorf("wait %d is %v, want %v to %v", i+1, w, low, low*5/4)
		}
	}
	c.inSync(s)
}

// TestUnreachable: with nobody there, Drain waits until its context ends, says
// so, and nothing is lost.
func TestUnreachable(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 1).Close()
	u, waits := c.uploader(s)
	base := u.client.Base
	u.client.Base = "http://127.0.0.1:1"
	ctx, cancel := context.WithCancel(t.Context())
	inner := u.sleep
	u.sleep = func(ctx context.Context, d time.Duration) error {
		if len(*waits) == 5 {
			cancel()
		}
		return inner(ctx, d)
	}
	_, err := u.Drain(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Drain = %v, want the context's end and the last failure", err)
	}
	u, _ = c.uploader(s)
	u.client.Base = base
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.inSync(s)
}

// TestTooLarge: a server that takes few events at once gets few at once.
func TestTooLarge(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 100).Close()
	var sizes []int
	c.reset(func(n int, r *http.Request) behaviour {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			return through
		}
		size := count(t, r, "events")
		sizes = append(sizes, size)
		if size > 15 {
			return behaviour{false, refuse(api.TooLarge)}
		}
		return through
	})
	u, waits := c.uploader(s)
	if report, err := u.Drain(t.Context()); err != nil || report.Events != 103 {
		t.Fatalf("Drain = %+v, %v", report, err)
	}
	if want := []int{103, 51, 25, 12, 12, 12, 12, 12, 12, 12, 12, 7}; !slices.Equal(sizes, want) || len(*waits) != 0 {
		t.Errorf("sent %v, with waits %v, want %v", sizes, *waits, want)
	}
	c.reset(nil)
	c.inSync(s)

	// Items of a dataset in the same way; one event that is too large alone
	// ends the run's upload.
	c, s = newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 3).Close()
	c.reset(func(n int, r *http.Request) behaviour {
		if strings.HasSuffix(r.URL.Path, "/items") && count(t, r, "items") > 1 || strings.HasSuffix(r.URL.Path, "/events") {
			return behaviour{false, refuse(api.TooLarge)}
		}
		return through
	})
	u, _ = c.uploader(s)
	report, err := u.Drain(t.Context())
	if err != nil || report.Datasets != 1 || len(report.Refused) != 1 || report.Refused[0].Seq != 1 {
		t.Errorf("Drain = %+v, %v, want the run stopped at seq 1", report, err)
	}
}

// count returns how many members the request's list has, and puts its body back.
func count(t *testing.T, r *http.Request, list string) int {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	var body map[string][]json.RawMessage
	if err := json.Unmarshal(b, &body); err != nil {
		t.Error(err)
	}
	return len(body[list])
}

// TestRefusedRun: a run that the server refuses stops; the others go on, and what
// came before the refusal counts.
func TestRefusedRun(t *testing.T) {
	c := newCloud(t)
	// Another machine has used the same name, and agreed up to seq 5.
	theirs := newSpool(t)
	r := recorder{t, theirs}
	l := r.short("shared", 2)
	root := tempDir(t)
	if err := os.CopyFS(root, os.DirFS(filepath.Dir(filepath.Dir(theirs.Dir())))); err != nil {
		t.Fatal(err)
	}
	r.append(l, step(3), step(4))
	l.Close()
	u, _ := c.uploader(theirs)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}

	ours, err := spool.Open(root, "", "")
	if err != nil {
		t.Fatal(err)
	}
	r = recorder{t, ours}
	if l, err = ours.Resume("shared"); err != nil {
		t.Fatal(err)
	}
	other := step(3)
	other.Loss = 9
	r.append(l, other)
	l.Close()
	r.short("ours", 4).Close()

	u, waits := c.uploader(ours)
	report, err := u.Drain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Refused) != 1 || report.Refused[0].Subject != "run shared" || report.Refused[0].Seq != 6 ||
		!strings.Contains(report.Refused[0].String(), string(api.EventConflict)) {
		t.Errorf("refused: %v, want run shared at seq 6 with event_conflict", report.Refused)
	}
	if len(*waits) != 0 {
		t.Errorf("a refusal was waited for: %v", *waits)
	}
	if acked, err := ours.Acked("shared"); acked != 5 || err != nil {
		t.Errorf("shared is acknowledged to %d, %v, want 5", acked, err)
	}
	if acked, err := ours.Acked("ours"); acked != 7 || err != nil {
		t.Errorf("ours is acknowledged to %d, %v, want 7", acked, err)
	}
	// It is not tried again by this Uploader.
	c.reset(nil)
	if _, err := u.Drain(t.Context()); err != nil || len(c.calls) != 1 {
		t.Errorf("Drain = %v, with requests %q", err, c.calls)
	}
	found, err := Check(t.Context(), ours, c.client())
	if err != nil || len(found) == 0 || found[0].Subject != "run shared" {
		t.Errorf("Check = %v, %v, want differences of run shared", found, err)
	}
}

// TestHeldBack: what names a refused object is not sent, and says why; the rest
// is.
func TestHeldBack(t *testing.T) {
	for _, tt := range []struct {
		name    string
		path    string // of the call that is refused
		body    string // in its body
		subject string
		seq     uint64 // where run "whole" stops
	}{
		{"an artifact", "/artifacts", `"kind":"capability"`, "artifact ", 8},
		{"a dataset", "/datasets/judge/items", "", "dataset judge", 3},
		{"a gate", "/gates", `"name":"tiny"`, "gate sha256:", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := newCloud(t), newSpool(t)
			r := recorder{t, s}
			r.whole("whole", 3)
			r.short("other", 3).Close()
			c.reset(func(n int, req *http.Request) behaviour {
				b, _ := io.ReadAll(req.Body)
				req.Body = io.NopCloser(bytes.NewReader(b))
				if strings.HasSuffix(req.URL.Path, tt.path) && bytes.Contains(b, []byte(tt.body)) {
					return behaviour{false, refuse(api.PurposeRefused)}
				}
				return through
			})
			u, _ := c.uploader(s)
			report, err := u.Drain(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Refused) < 2 || !strings.HasPrefix(report.Refused[0].Subject, tt.subject) {
				t.Fatalf("refused: %v", report.Refused)
			}
			last := report.Refused[len(report.Refused)-1]
			if last.Subject != "run whole" || last.Seq != tt.seq || !errors.Is(last.Err, errHeld) || !strings.Contains(last.String(), tt.subject) {
				t.Errorf("refused at last: %v, want run whole held at seq %d for %s", last, tt.seq, tt.subject)
			}
			if acked, err := s.Acked("other"); acked != 6 || err != nil {
				t.Errorf("the other run is acknowledged to %d, %v, want 6", acked, err)
			}
			if acked, err := s.Acked("whole"); acked != tt.seq-1 || err != nil {
				t.Errorf("the held run is acknowledged to %d, %v, want %d", acked, err, tt.seq-1)
			}
		})
	}
}

// TestReportsStandAlone: a determinism report that is refused, damaged or held back
// for its environment stays here, and stops nothing but itself.
func TestReportsStandAlone(t *testing.T) {
	for _, tt := range []struct {
		name       string
		path, body string // of the calls that are refused
		damage     bool
		subject    string
		err        error
	}{
		{"refused", "/determinism", "", false, "determinism report sha256:", nil},
		{"damaged", "none", "", true, "determinism report sha256:", spool.ErrCorrupt},
		{"its environment refused", "/artifacts", `"kind":"environment"`, false, "determinism report sha256:", errHeld},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := newCloud(t), newSpool(t)
			r := recorder{t, s}
			r.probed(r.created(nil))
			r.put(record.KindConfig, record.Train, []byte(`{"another":1}`))
			if tt.damage {
				files, err := filepath.Glob(filepath.Join(s.Dir(), "determinism", "*.json"))
				if err != nil || len(files) != 1 {
					t.Fatalf("%q, %v", files, err)
				}
				if err := os.Truncate(files[0], 10); err != nil {
					t.Fatal(err)
				}
			}
			c.reset(func(n int, req *http.Request) behaviour {
				b, _ := io.ReadAll(req.Body)
				req.Body = io.NopCloser(bytes.NewReader(b))
				if strings.HasSuffix(req.URL.Path, tt.path) && bytes.Contains(b, []byte(tt.body)) {
					return behaviour{false, refuse(api.NotStored)}
				}
				return through
			})
			u, _ := c.uploader(s)
			report, err := u.Drain(t.Context())
			if err != nil || report.Artifacts < 2 || report.Determinism != 0 || len(report.Refused) == 0 {
				t.Fatalf("Drain = %+v, %v", report, err)
			}
			last := report.Refused[len(report.Refused)-1]
			if !strings.HasPrefix(last.Subject, tt.subject) || tt.err != nil && !errors.Is(last.Err, tt.err) {
				t.Errorf("refused: %v, want %s, %v", last, tt.subject, tt.err)
			}
			c.reset(nil)
			found, err := Check(t.Context(), s, c.client())
			if err != nil || !slices.ContainsFunc(found, func(d Difference) bool { return d.Subject == last.Subject }) {
				t.Errorf("Check = %v, %v, want %s", found, err, last.Subject)
			}
		})
	}
}

func TestSignIn(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 1).Close()
	u, waits := c.uploader(s)
	u.client.Token = func() (string, error) { return "nonsense", nil }
	if _, err := u.Drain(t.Context()); !errors.Is(err, ErrSignIn) || !strings.Contains(err.Error(), "HANZO_TOKEN_FILE") || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Drain = %v, want ErrSignIn, naming the file and not the token", err)
	}
	u.client.Token = api.TokenFile(filepath.Join(t.TempDir(), "token"))
	if _, err := u.Drain(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a token file: Drain = %v", err)
	}
	if len(*waits) != 0 {
		t.Errorf("waited %v for a token", *waits)
	}
	// In the middle of a drain as well.
	u, _ = c.uploader(s)
	c.reset(func(n int, r *http.Request) behaviour {
		if n == 4 {
			return behaviour{false, refuse(api.Unauthorized)}
		}
		return through
	})
	if _, err := u.Drain(t.Context()); !errors.Is(err, ErrSignIn) {
		t.Errorf("Drain = %v, want ErrSignIn", err)
	}
	if report, err := u.Drain(t.Context()); err != nil || len(report.Refused) != 0 {
		t.Errorf("signed in again: Drain = %+v, %v", report, err)
	}
	c.inSync(s)
}

func TestOtherOrg(t *testing.T) {
	c := newCloud(t)
	s, err := spool.Open(tempDir(t), "rival", "default")
	if err != nil {
		t.Fatal(err)
	}
	recorder{t, s}.short("run", 1).Close()
	u, _ := c.uploader(s)
	if _, err := u.Drain(t.Context()); !errors.Is(err, spool.ErrForeign) || !strings.Contains(err.Error(), "acme/default") {
		t.Errorf("Drain = %v, want ErrForeign", err)
	}
	if _, err := Check(t.Context(), s, c.client()); !errors.Is(err, spool.ErrForeign) {
		t.Errorf("Check = %v, want ErrForeign", err)
	}
	if len(c.calls) != 2 {
		t.Errorf("another org's spool made the calls %q", c.calls)
	}
}

// TestNotAControlPlane: an address that answers, but is something else.
func TestNotAControlPlane(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") },
		"404":    http.NotFound,
	} {
		c, s := newCloud(t), newSpool(t)
		recorder{t, s}.short("run", 1).Close()
		c.reset(func(int, *http.Request) behaviour { return behaviour{false, answer} })
		u, _ := c.uploader(s)
		report, err := u.Drain(t.Context())
		if err == nil || !strings.Contains(err.Error(), "control plane?") || len(report.Refused) != 0 {
			t.Errorf("%s: Drain = %+v, %v", name, report.Refused, err)
		}
	}
}

// TestPageOnTheWay: what a proxy says while it is in the way is no refusal: once it is
// gone, all is sent.
func TestPageOnTheWay(t *testing.T) {
	for _, code := range []int{400, 402, 403, 404, 407, 410, 451} {
		c, s := newCloud(t), newSpool(t)
		recorder{t, s}.short("run", 1).Close()
		c.reset(func(n int, _ *http.Request) behaviour {
			if n == 1 {
				return through // who the token speaks for
			}
			return behaviour{false, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(code)
				io.WriteString(w, "<html>")
			}}
		})
		u, _ := c.uploader(s)
		if report, err := u.Drain(t.Context()); err == nil || len(report.Refused) != 0 {
			t.Errorf("%d: Drain = %+v, %v", code, report.Refused, err)
		}
		c.reset(nil)
		if report, err := u.Drain(t.Context()); err != nil || len(report.Refused) != 0 {
			t.Errorf("after %d: Drain = %+v, %v", code, report.Refused, err)
		}
		c.inSync(s)
	}
}

// TestAskedForAYear: a Retry-After of no sense does not end the sending.
func TestAskedForAYear(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 1).Close()
	u, waits := c.uploader(s)
	c.reset(func(n int, _ *http.Request) behaviour {
		if n == 1 {
			return behaviour{false, status(http.StatusServiceUnavailable, "Retry-After", "31536000")}
		}
		return through
	})
	if _, err := u.Drain(t.Context()); err != nil || len(*waits) != 1 || (*waits)[0] > mostAsked {
		t.Errorf("it waits %v, %v", *waits, err)
	}
}

// TestStalledUpload: a server that stops reading an artifact costs one deadline.
func TestStalledUpload(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.put(record.KindCapability, record.Train, bytes.Repeat([]byte("w"), 8<<20))
	stalls := 0
	gone := make(chan struct{})
	c.reset(func(n int, r *http.Request) behaviour {
		if r.Method != http.MethodPut || stalls == 2 {
			return through
		}
		if stalls++; stalls == 2 {
			return behaviour{false, hang} // all is read and nothing said
		}
		return behaviour{false, func(http.ResponseWriter, *http.Request) { <-gone }} // nothing is read
	})
	u, waits := c.uploader(s)
	u.stall = 200 * time.Millisecond
	inner := u.sleep
	u.sleep = func(ctx context.Context, d time.Duration) error {
		if len(*waits) == 0 {
			close(gone)
		}
		return inner(ctx, d)
	}
	if report, err := u.Drain(t.Context()); err != nil || report.Artifacts != 1 {
		t.Fatalf("Drain = %+v, %v", report, err)
	}
	if stalls != 2 || len(*waits) < 2 { // more on a slow machine
		t.Errorf("%d stalls and %d waits, want 2 of each", stalls, len(*waits))
	}
	c.inSync(s)
}

// TestAckFails: where an ack can be neither read nor written its run is not sent, which
// is reported, and nothing counts as acknowledged.
func TestAckFails(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 3).Close()
	ack := filepath.Join(s.Dir(), "runs", "run.ack")
	if err := os.Mkdir(ack, 0o700); err != nil {
		t.Fatal(err)
	}
	u, _ := c.uploader(s)
	report, err := u.Drain(t.Context())
	if err != nil || report.Events != 0 || len(report.Refused) != 1 || !strings.Contains(report.Refused[0].String(), "run.ack") {
		t.Errorf("Drain = %+v, %v, want the run refused, naming run.ack", report, err)
	}
	if err := os.Remove(ack); err != nil {
		t.Fatal(err)
	}
	u, _ = c.uploader(s)
	if report, err := u.Drain(t.Context()); err != nil || report.Events != 6 {
		t.Errorf("Drain = %+v, %v", report, err)
	}
	c.inSync(s)
}

// TestDamagedLogs: whole events of a torn log are sent; a corrupt one is sent up
// to its fault, and does not stop the others.
func TestDamagedLogs(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	r := recorder{t, s}
	for _, run := range []string{"corrupt", "torn", "whole"} {
		r.short(run, 3).Close()
	}
	edit := func(run string, change func(string) string) {
		path := filepath.Join(s.Dir(), "runs", run+".log")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(change(string(b))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("torn", func(b string) string { return b + `{"at":"20` })
	edit("corrupt", func(b string) string { return strings.Replace(b, `"step":2`, `"step":7`, 1) })
	u, _ := c.uploader(s)
	report, err := u.Drain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Refused) != 1 || report.Refused[0].Seq != 5 || !errors.Is(report.Refused[0].Err, spool.ErrCorrupt) {
		t.Errorf("refused: %v, want run corrupt at seq 5", report.Refused)
	}
	for run, want := range map[string]uint64{"corrupt": 4, "torn": 6, "whole": 6} {
		if acked, err := s.Acked(run); acked != want || err != nil {
			t.Errorf("%s is acknowledged to %d, %v, want %d", run, acked, err, want)
		}
	}
}

// TestUnreadable: an object whose record is damaged stays here, with the run that
// names it, and does not stop the others.
func TestUnreadable(t *testing.T) {
	for _, tt := range []struct {
		file, subject string
		seq           uint64 // where run "whole" stops
	}{
		{"artifacts/" + string(canon.Sum(weights)) + ".json", "artifact ", 8},
		{"datasets/judge.json", "dataset judge", 3},
		{"gates/*.json", "gate sha256:", 1},
	} {
		t.Run(tt.subject, func(t *testing.T) {
			c, s := newCloud(t), newSpool(t)
			r := recorder{t, s}
			r.whole("whole", 3)
			r.short("other", 3).Close()
			damaged, err := filepath.Glob(filepath.Join(s.Dir(), tt.file))
			if err != nil || len(damaged) != 1 {
				t.Fatalf("%s: %q, %v", tt.file, damaged, err)
			}
			if err := os.Truncate(damaged[0], 10); err != nil {
				t.Fatal(err)
			}
			u, _ := c.uploader(s)
			report, err := u.Drain(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, last := report.Refused[0], report.Refused[len(report.Refused)-1]
			if !strings.HasPrefix(first.Subject, tt.subject) || !errors.Is(first.Err, spool.ErrCorrupt) {
				t.Errorf("refused at first: %v, want %s, corrupt", first, tt.subject)
			}
			if last.Subject != "run whole" || last.Seq != tt.seq || !errors.Is(last.Err, errHeld) {
				t.Errorf("refused at last: %v, want run whole held at seq %d", last, tt.seq)
			}
			if acked, err := s.Acked("other"); acked != 6 || err != nil {
				t.Errorf("the other run is acknowledged to %d, %v, want 6", acked, err)
			}
		})
	}
}

// TestServerLost: a server whose data is gone is told apart from a fault of ours.
func TestServerLost(t *testing.T) {
	s := newSpool(t)
	r := recorder{t, s}
	l := r.short("run", 3)
	u, _ := newCloud(t).uploader(s)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.append(l, step(4))
	c := newCloud(t)
	c.reset(func(_ int, r *http.Request) behaviour { // an identity service that has no ids
		if strings.HasSuffix(r.URL.Path, "/userinfo") {
			return behaviour{false, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, `{"owner":"acme","project":"default","iss":"iam"}`)
			}}
		}
		return through
	})
	u, _ = c.uploader(s)
	report, err := u.Drain(t.Context())
	if err != nil || len(report.Refused) != 1 || !strings.Contains(report.Refused[0].String(), "--again") {
		t.Errorf("Drain = %+v, %v, want what to do", report, err)
	}
	found, err := Check(t.Context(), s, c.client())
	if err != nil || len(found) != 1 || found[0].Server != "nothing" {
		t.Errorf("Check = %v, %v", found, err)
	}
}

// TestOtherServer: what one control plane acknowledged is not held for held by
// another, until that is asked for.
func TestOtherServer(t *testing.T) {
	s := newSpool(t)
	recorder{t, s}.whole("run", 3)
	u, _ := newCloud(t).uploader(s)
	first, err := u.Drain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := newCloud(t)
	u, _ = c.uploader(s)
	if _, err := u.Drain(t.Context()); !errors.Is(err, spool.ErrOtherServer) {
		t.Errorf("Drain = %v, want ErrOtherServer", err)
	}
	if _, err := Check(t.Context(), s, c.client()); !errors.Is(err, spool.ErrOtherServer) {
		t.Errorf("Check = %v, want ErrOtherServer", err)
	}
	u, _ = c.uploader(s)
	u.again = true
	if report, err := u.Drain(t.Context()); err != nil || fmt.Sprint(report) != fmt.Sprint(first) {
		t.Errorf("again: Drain = %+v, %v, want %+v", report, err, first)
	}
	if report, err := u.Drain(t.Context()); err != nil || fmt.Sprint(report) != fmt.Sprint(first) {
		t.Errorf("and once more: Drain = %+v, %v, want nothing sent after %+v", report, err, first)
	}
	c.inSync(s)
}

// TestNothingLeft: with everything acknowledged, Drain still says when the server
// does not answer or does not know the token.
func TestNothingLeft(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	recorder{t, s}.short("run", 1).Close()
	u, _ := c.uploader(s)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, _ = c.uploader(s)
	u.client.Token = func() (string, error) { return "nonsense", nil }
	if _, err := u.Drain(t.Context()); !errors.Is(err, ErrSignIn) {
		t.Errorf("another token: Drain = %v, want ErrSignIn", err)
	}
	u, waits := c.uploader(s)
	u.client.Base = "http://127.0.0.1:1"
	ctx, cancel := context.WithCancel(t.Context())
	u.notify = func(time.Duration, error) { cancel() }
	if _, err := u.Drain(ctx); !errors.Is(err, context.Canceled) || len(*waits) != 1 {
		t.Errorf("nobody there: Drain = %v after %d waits", err, len(*waits))
	}
}

// TestCheckGoesOn: a log that cannot be read is one difference among the others.
func TestCheckGoesOn(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	r := recorder{t, s}
	for _, run := range []string{"a", "b"} {
		r.short(run, 3).Close()
	}
	l := r.short("c", 3)
	u, _ := c.uploader(s)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.append(l, step(4))
	for _, run := range []string{"a", "b"} {
		path := filepath.Join(s.Dir(), "runs", run+".log")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(b, []byte(`"step":2`), []byte(`"step":7`), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Check(t.Context(), s, c.client())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, d.Subject)
	}
	if want := []string{"run a", "run b", "run c", "run c", "run c", "run c"}; !slices.Equal(got, want) {
		t.Errorf("differences of %q, want %q", got, want)
	}
	if len(found) > 0 && !strings.Contains(found[0].String(), "a.log line 5") {
		t.Errorf("%s does not say where", found[0])
	}
}

// TestCheck shows the differences that Check finds.
func TestCheck(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	r := recorder{t, s}
	l := r.short("run", 3)
	r.create("empty")
	u, _ := c.uploader(s)
	if _, err := u.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.inSync(s)
	r.append(l, step(4))
	r.put(record.KindConfig, record.Train, []byte(`{"unsent":1}`))
	unread := r.put(record.KindConfig, record.Train, []byte(`{"unread":1}`))
	if err := os.Truncate(filepath.Join(s.Dir(), "artifacts", string(unread)+".json"), 10); err != nil {
		t.Fatal(err)
	}
	found, err := Check(t.Context(), s, c.client())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, d.String())
	}
	want := []string{
		"artifact " + string(canon.Sum([]byte(`{"unsent":1}`))) + ": held here, not acknowledged on the server",
		"artifact " + string(unread) + ": unreadable here, not acknowledged on the server",
		"run run, batches: 4 here, 3 on the server",
		"run run, seq: 7 here, 6 on the server",
		"run run, steps: 4 here, 3 on the server",
		"run run, tokens: 40 here, 30 on the server",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Check:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRun sends a run while it is recorded. The producer never waits, and
// everything is there at the end.
func TestRun(t *testing.T) {
	c, s := newCloud(t), newSpool(t)
	r := recorder{t, s}
	u, _ := c.uploader(s)
	idle := make(chan struct{})
	u.sleep = func(ctx context.Context, d time.Duration) error {
		if d != 2*time.Second {
			return ctx.Err() // a back-off
		}
		select {
		case idle <- struct{}{}: // there is nothing more to send
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	c.reset(func(n int, r *http.Request) behaviour {
		if n%5 == 0 {
			return behaviour{n%2 == 0, status(http.StatusServiceUnavailable)}
		}
		return through
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan Report)
	go func() {
		report, err := u.Run(ctx)
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		ended <- report
	}()
	l := r.short("run", 1)
	for n := uint64(2); n <= 50; n++ {
		r.append(l, step(n))
		if n%10 == 0 {
			<-idle
		}
	}
	r.append(l, event.RunCompleted{Status: event.Completed, Steps: 50, Tokens: 500, Batches: 50})
	<-idle
	<-idle
	cancel()
	if report := <-ended; report.Events != 54 || len(report.Refused) != 0 {
		t.Errorf("Run = %+v", report)
	}
	c.reset(nil)
	c.inSync(s)
}
