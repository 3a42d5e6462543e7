package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestScript runs every script of script/: what a person types, and what they
// see.
func TestScript(t *testing.T) {
	if testing.Short() {
		t.Skip("scripts train models")
	}
	packages(t) // opens every source file, so that a cached result is a current one
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the commands: %v\n%s", err, out)
	}
	// Some commands are run as somebody else, who is to find them.
	for _, dir := range []string{filepath.Dir(bin), bin} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir:       "script",
		Condition: condition,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("HANZO_SPOOL", filepath.Join(env.WorkDir, "spool"))
			env.Setenv("HANZO_TOKEN_FILE", filepath.Join(env.WorkDir, "cloud", "token"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"waitfile":  waitfile,
			"waitsteps": waitsteps,
			"envfile":   envfile,
			"status":    status,
			"spoil":     spoil,
			"host":      host,
			"present":   present,
			"online":    online,
		},
	})
}

// condition is [linkable]: this process may make a host of its own, with other mounts
// and other users, and nothing of hanzo link is on the real one.
func condition(name string) (bool, error) {
	if name != "linkable" {
		return false, fmt.Errorf("unknown condition %s", name)
	}
	for _, path := range []string{"/etc/hanzo", "/usr/local/lib/hanzo", "/var/lib/hanzo"} {
		if _, err := os.Lstat(path); err == nil {
			return false, nil
		}
	}
	return exec.Command("unshare", "--mount", "true").Run() == nil, nil
}

// nobody is the user of that name.
const nobody = 65534

// home is nobody's, with a token of their own; it is gone after the script.
func home(ts *testscript.TestScript) string {
	if dir := ts.Getenv("NOBODY"); dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp("", "nobody-*")
	ts.Check(err)
	ts.Defer(func() { os.RemoveAll(dir) })
	token, err := os.ReadFile(ts.Getenv("HANZO_TOKEN_FILE"))
	if err == nil {
		ts.Check(os.WriteFile(filepath.Join(dir, "token"), token, 0o600))
		ts.Check(os.Chown(filepath.Join(dir, "token"), nobody, nobody))
	}
	ts.Check(os.Chown(dir, nobody, nobody))
	ts.Setenv("NOBODY", dir)
	return dir
}

// asNobody is a command that nobody runs, at home.
func asNobody(ts *testscript.TestScript, args []string) []string {
	dir := home(ts)
	return append([]string{"setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups", "env", "--chdir=" + dir,
		"HOME=" + dir, "HANZO_TOKEN_FILE=" + filepath.Join(dir, "token"), "XDG_RUNTIME_DIR=", "SUDO_USER="}, args...)
}

// host GROUPS USER N COMMAND... runs a command as root or nobody, on a host without
// systemd whose control groups are hybrid or v2, that must exit with status N.
func host(ts *testscript.TestScript, neg bool, args []string) {
	mounts := map[string]string{"hybrid": "mount -t tmpfs none /sys/fs/cgroup", "v2": "mount -t cgroup2 none /sys/fs/cgroup"}
	if neg || len(args) < 4 || mounts[args[0]] == "" || args[1] != "root" && args[1] != "nobody" {
		ts.Fatalf("usage: host hybrid|v2 root|nobody STATUS COMMAND ARGS...")
	}
	command := args[3:]
	if args[1] == "nobody" {
		command = asNobody(ts, command)
	}
	line := []string{args[2], "unshare", "--mount", "sh", "-c", mounts[args[0]] + ` &&
		if test -d /run/systemd; then mount -t tmpfs none /run/systemd; fi && exec "$@"`, "sh"}
	status(ts, false, append(line, command...))
}

// present COMMAND... runs a command as nobody until the script is over, or until it
// ends by itself.
func present(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: present COMMAND ARGS...")
	}
	line := asNobody(ts, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH")}
	ts.Check(cmd.Start())
	ts.Defer(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
}

// online waits until the org's one node is online, and offers nothing; with ! before
// it, until the org has none.
func online(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 0 {
		ts.Fatalf("usage: [!] online")
	}
	client := &api.Client{Base: ts.Getenv("HANZO_API"), Token: api.TokenFile(ts.Getenv("HANZO_TOKEN_FILE"))}
	until(ts, "the org's nodes are as they should be", func() bool {
		all, err := client.Workers(context.Background())
		ts.Check(err)
		if neg || len(all) == 0 {
			return neg && len(all) == 0
		}
		if len(all) > 1 || len(all[0].Offers) > 0 {
			ts.Fatalf("the org has %+v", all)
		}
		return all[0].Status == api.Online
	})
}

// waitfile FILE waits until FILE exists and is not empty.
func waitfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	until(ts, args[0]+" appears", func() bool {
		info, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil && info.Size() > 0
	})
}

// waitsteps RUN N waits until N steps of RUN are recorded.
func waitsteps(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[len(args)-1])
	if neg || len(args) != 2 || err != nil {
		ts.Fatalf("usage: waitsteps RUN N")
	}
	log := filepath.Join(ts.Getenv("HANZO_SPOOL"), "local", "default", "runs", args[0]+".log")
	until(ts, fmt.Sprintf("%d steps of %s are recorded", n, args[0]), func() bool {
		b, err := os.ReadFile(log)
		return err == nil && bytes.Count(b, []byte("STEP_RECORDED")) >= n
	})
}

// until waits for a condition that another process brings about.
func until(ts *testscript.TestScript, what string, met func() bool) {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if met() {
			return
		}
	}
	ts.Fatalf("waited two minutes until %s", what)
}

// spoil BUILDS changes the purpose of one row of a training shard to eval_only.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: spoil BUILDS")
	}
	shards, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*", "*.train.*.ndjson"))
	ts.Check(err)
	if len(shards) != 1 {
		ts.Fatalf("found %d training shards, want 1", len(shards))
	}
	b, err := os.ReadFile(shards[0])
	ts.Check(err)
	spoiled := bytes.Replace(b, []byte(`"purpose":"train"`), []byte(`"purpose":"eval_only"`), 1)
	if bytes.Equal(b, spoiled) {
		ts.Fatalf("%s has no row of purpose train", shards[0])
	}
	ts.Check(os.WriteFile(shards[0], spoiled, 0o644))
}

// envfile NAME FILE sets a variable to a file's text.
func envfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: envfile NAME FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// status N COMMAND... runs a command that must exit with status N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("running %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("%s exited with status %d, want %s", args[1], got, args[0])
	}
}
