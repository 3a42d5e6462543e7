package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/test/issuer"
)

// TestMain lets the test binary be hanzo-cloud, so that it can be killed.
func TestMain(m *testing.M) {
	if os.Getenv("HANZO_CLOUD_TEST_CHILD") != "" {
		main()
	}
	os.Exit(m.Run())
}

// A child is hanzo-cloud serve in a process of its own.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	output bytes.Buffer // stdout so far
	stderr bytes.Buffer
}

func serve(t *testing.T, data string, args ...string) *child {
	t.Helper()
	args = append([]string{"serve", "--addr", "127.0.0.1:0", "--data", data, "--addr-file", filepath.Join(data, "..", "addr")}, args...)
	c := &child{t: t, cmd: exec.Command(os.Args[0], args...)}
	c.cmd.Env = append(os.Environ(), "HANZO_CLOUD_TEST_CHILD=1")
	c.cmd.Stderr = &c.stderr
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	lines := bufio.NewScanner(io.TeeReader(stdout, &c.output))
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
			c.url = url
		}
		if strings.HasPrefix(lines.Text(), "export ") {
			return c
		}
	}
	t.Fatalf("serve ended: %s%s", c.output.Bytes(), c.stderr.Bytes())
	return nil
}

// kill ends the process as a power cut would, as far as the process can tell.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

func (c *child) client(data string) *api.Client {
	return &api.Client{Base: c.url, Token: api.TokenFile(filepath.Join(data, "token"))}
}

// TestServe starts, stops and starts again.
func TestServe(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	c := serve(t, data)
	info, err := os.Stat(filepath.Join(data, "token"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token file: %v, %v", info, err)
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := os.ReadFile(filepath.Join(data, "..", "addr")); err != nil || string(addr) != c.url+"\n" {
		t.Errorf("the address file holds %q, %v, want %s", addr, err, c.url)
	}
	if id, err := c.client(data).Whoami(t.Context()); err != nil || id.Owner != "local" {
		t.Errorf("Whoami = %+v, %v", id, err)
	}

	// A second org's token works at once, and its file is private too.
	var out bytes.Buffer
	status := program.Main(t.Context(), []string{"token", "--data", data, "--org", "globex", "--json"}, term.IO{Out: &out, Err: &out})
	if status != term.OK {
		t.Fatalf("token: %d %s", status, out.Bytes())
	}
	file := filepath.Join(data, "token-globex")
	if want := `{"admin":false,"file":"` + file + `","name":"hanzo-cloud","org":"globex"}` + "\n"; out.String() != want {
		t.Errorf("token --json prints %s, want %s", out.Bytes(), want)
	}
	second := &api.Client{Base: c.url, Token: api.TokenFile(file)}
	if id, err := second.Whoami(t.Context()); err != nil || id.Owner != "globex" {
		t.Errorf("Whoami of the second org = %+v, %v", id, err)
	} else if id.Admin || id.Name != "hanzo-cloud" {
		t.Errorf("a token made for nobody by name is of %+v", id)
	}

	// The server's owner is an admin; whom else they make one, they say.
	if id, err := c.client(data).Whoami(t.Context()); err != nil || !id.Admin {
		t.Errorf("the first token is of %+v, %v", id, err)
	}
	out.Reset()
	if status := program.Main(t.Context(), []string{"token", "--data", data, "--org", "globex", "--name", "alice", "--admin"}, term.IO{Out: &out, Err: &out}); status != term.OK {
		t.Fatalf("token --name: %d %s", status, out.Bytes())
	}
	alice := &api.Client{Base: c.url, Token: api.TokenFile(file + "-alice")}
	if id, err := alice.Whoami(t.Context()); err != nil || id.Owner != "globex" || id.Name != "alice" || !id.Admin {
		t.Errorf("Whoami of alice = %+v, %v", id, err)
	}
	if status := program.Main(t.Context(), []string{"token", "--data", data, "--org", "globex"}, term.IO{Out: io.Discard, Err: io.Discard}); status != term.Failed {
		t.Errorf("token over its own file: %d", status)
	}

	// Another server on the folder is refused.
	var busy bytes.Buffer
	if status := program.Main(t.Context(), []string{"serve", "--addr", "127.0.0.1:0", "--data", data}, term.IO{Out: io.Discard, Err: &busy}); status != term.Failed || !strings.Contains(busy.String(), "another hanzo-cloud") {
		t.Errorf("a second server: %d %s", status, busy.String())
	}

	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v %s", err, c.stderr.Bytes())
	}
	if printed := c.output.String() + c.stderr.String() + out.String(); strings.Contains(printed, strings.TrimSpace(string(token))) {
		t.Error("the token was printed")
	}
	again := serve(t, data)
	if held, err := os.ReadFile(filepath.Join(data, "token")); err != nil || !bytes.Equal(held, token) {
		t.Errorf("the second start changed the token, %v", err)
	}
	if _, err := again.client(data).Whoami(t.Context()); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// TestServeIssuer signs in elsewhere: a token of the issuer named on the command line
// speaks for who its claims say.
func TestServeIssuer(t *testing.T) {
	i := issuer.Start(t)
	c := serve(t, filepath.Join(t.TempDir(), "data"), "--issuer", i.URL, "--audience", issuer.Audience)
	token := i.Token(t, issuer.Person{Owner: "acme", Name: "alice", Project: "triage", Admin: true})
	alice := &api.Client{Base: c.url, Token: func() (string, error) { return token, nil }}
	id, err := alice.Whoami(t.Context())
	if err != nil || id.Owner != "acme" || id.Name != "alice" || id.Project != "triage" || !id.Admin {
		t.Errorf("Whoami = %+v, %v", id, err)
	}
	resp, err := http.Get(c.url + "/.well-known/openid-configuration")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != `{"issuer":"`+i.URL+`"}` {
		t.Errorf("the server says of its issuer %s, %v", body, err)
	}
}

// TestUsage gives arguments that serve must not take.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--addr", "0.0.0.0:0"}, {"serve", "--addr", "192.0.2.1:80"}, {"serve", "--addr", "8334"}, {"serve", "now"}, {"serve", "--org", "../x"},
		{"token"}, {"token", "--org", "../x"}, {"token", "--org", "globex", "--name", "a b"}, {"token", "--org", "globex", "--name", ""},
		{"serve", "--addr", "127.0.0.1:0", "--issuer", "https://iam.example"},
		{"serve", "--addr", "127.0.0.1:0", "--audience", "hanzo-cloud"},
		{"serve", "--addr", "127.0.0.1:0", "--audience", "hanzo-cloud", "--issuer", "http://iam.example"},
		{"serve", "--addr", "127.0.0.1:0", "--audience", "hanzo-cloud", "--issuer", "iam.example"},
		{"serve", "--addr", "127.0.0.1:0", "--audience", "hanzo-cloud", "--issuer", "https://u:p@iam.example"},
	} {
		args := append(args, "--data", t.TempDir())
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // should it serve after all, it stops at once
		if status := program.Main(ctx, args, term.IO{Out: &out, Err: &out}); status != term.Usage {
			t.Errorf("%v: %d %s", args, status, out.Bytes())
		}
	}
}

// TestServeMakesNothing where it cannot listen, and says whose a folder's token is.
func TestServeMakesNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data := filepath.Join(t.TempDir(), "data")
	try := func(args ...string) (term.Status, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // should it serve
		defer cancel()
		var out bytes.Buffer
		status := program.Main(ctx, append([]string{"serve", "--data", data}, args...), term.IO{Out: &out, Err: &out})
		return status, out.String()
	}
	if status, out := try("--addr", l.Addr().String()); status != term.Failed || !strings.Contains(out, "in use") {
		t.Errorf("%d %s", status, out)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made the folder: %v", err)
	}
	serve(t, data, "--org", "acme").kill()
	if status, out := try("--addr", "127.0.0.1:0", "--org", "globex"); status != term.Usage ||
		!strings.Contains(out, "is of org acme") || !strings.Contains(out, "hanzo-cloud token --org globex") {
		t.Errorf("%d %s", status, out)
	}
	for _, args := range [][]string{nil, {"--org", "acme"}} {
		c := serve(t, data, args...)
		if out := c.output.String(); !strings.Contains(out, "token of org acme") {
			t.Errorf("%v: %s", args, out)
		}
		c.kill()
	}
}

// TestTokenOfNoPlane names a folder that is none: nothing is made there.
func TestTokenOfNoPlane(t *testing.T) {
	for _, data := range []string{t.TempDir(), filepath.Join(t.TempDir(), "typo")} {
		var out bytes.Buffer
		status := program.Main(t.Context(), []string{"token", "--org", "globex", "--data", data}, term.IO{Out: &out, Err: &out})
		if status != term.Usage || !strings.Contains(out.String(), data+" holds no control plane") {
			t.Errorf("%s: %d %s", data, status, out.Bytes())
		}
		if left, _ := os.ReadDir(data); len(left) != 0 {
			t.Errorf("%s holds %v", data, left)
		}
	}
}

// TestKill kills the server with SIGKILL while a client writes, several times, and
// looks each time for everything that was acknowledged.
func TestKill(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	ctx := t.Context()
	c := serve(t, data)
	client := c.client(data)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	// Kill after each kind of write, and read it back.
	producer := record.Producer{Tool: "test"}
	put := func(kind record.Kind, content string) canon.SHA256 {
		t.Helper()
		got, err := client.RegisterArtifact(ctx, record.Artifact{
			Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: record.Train, Producer: producer,
		}, []byte(content))
		must(err)
		return got.Artifact.SHA256
	}
	restart := func() {
		t.Helper()
		c.kill()
		c = serve(t, data)
		client = c.client(data)
	}
	environment, config := put(record.KindEnvironment, `{}`), put(record.KindConfig, `{"a":1}`)
	restart()
	r, err := client.Artifact(ctx, config)
	must(err)
	if b, err := io.ReadAll(r); err != nil || string(b) != `{"a":1}` {
		t.Errorf("the artifact holds %q, %v", b, err)
	}
	r.Close()

	_, err = client.CreateDataset(ctx, record.Dataset{ID: "d", Purpose: record.Train, License: "unstated", Origin: "test"})
	must(err)
	restart()
	it, err := record.NewItem("d", record.Train, "i1", "test:i1", canon.Raw(`"x"`), canon.Raw(`{"state":"x"}`), nil)
	must(err)
	_, err = client.AppendItems(ctx, "d", []record.DatasetItem{it})
	must(err)
	restart()
	sealed, err := client.SealDataset(ctx, "d")
	must(err)
	restart()
	if d, err := client.Dataset(ctx, "d"); err != nil || d.SHA256 == nil || *d.SHA256 != *sealed.SHA256 || d.Items != 1 {
		t.Errorf("the dataset is %+v, %v", d, err)
	}

	// Kill at whatever a stream of appends is doing.
	var events []canon.Raw
	next := func(body event.Body) {
		e, err := event.New("r", uint64(len(events)+1), time.Unix(0, 0), body)
		must(err)
		events = append(events, canon.Raw(e.JSON()))
	}
	next(event.RunCreated{Kind: "train", EnvironmentArtifactSHA256: environment, ConfigSHA256: config, By: "test"})
	next(event.DatasetAttached{Dataset: "d", DatasetSHA256: *sealed.SHA256, Purpose: record.Train, Role: record.RoleTrain})
	next(event.TrainStarted{PlanSHA256: config, Batches: 1000, Tokens: 1000})
	for i := uint64(1); i <= 1000; i++ {
		next(event.StepRecorded{Step: i, Tokens: i, Loss: 1 / float64(i), BatchIDsHash: canon.HashOf([]byte(fmt.Sprint(i)))})
	}
	acked := 0
	for round := range 4 {
		acks := make(chan int)
		go func(client *api.Client) {
			defer close(acks)
			for at := acked; at < len(events); at++ {
				got, err := client.AppendEvents(context.Background(), "r", events[at:at+1])
				if err != nil {
					if p, refused := errors.AsType[*api.Problem](err); refused {
						t.Errorf("round %d: event %d was refused: %v", round, at+1, p)
					}
					return
				}
				acks <- int(got.Next) - 1
			}
		}(client)
		for n := range acks {
			acked = n
			if n >= (round+1)*20 && c.cmd.ProcessState == nil {
				go c.cmd.Process.Kill()
				for n := range acks {
					acked = n
				}
				break
			}
		}
		c.cmd.Wait()
		restart()
		log, err := client.Events(ctx, "r", 0, 0)
		must(err)
		view, err := client.Run(ctx, "r")
		must(err)
		if len(log) < acked || int(view.Seq) != len(log) {
			t.Fatalf("round %d: %d events were acknowledged, the log has %d and the view ends at %d", round, acked, len(log), view.Seq)
		}
		for i, e := range log {
			if !bytes.Equal(e, events[i]) {
				t.Fatalf("round %d: event %d is %s", round, i+1, e)
			}
		}
	}
	// Sending everything again completes it.
	for at := 0; at < len(events); at += api.MaxEvents {
		_, err := client.AppendEvents(ctx, "r", events[at:min(at+api.MaxEvents, len(events))])
		must(err)
	}
	if view, err := client.Run(ctx, "r"); err != nil || view.Steps != 1000 {
		t.Errorf("at the end the run has %d steps, %v", view.Steps, err)
	}
}
