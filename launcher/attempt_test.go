//go:build linux

package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// What a compromised agent may try against the launcher, by the numbers of the
// design's list of attempts (sandbox.md, E3).

func TestAttempt81MalformedPackets(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	src, err := canon.Marshal(ipc.Request{Start: a.envelope(a.input("sleep", 0))})
	a.must(err)
	good := string(src)
	for name, c := range map[string]struct{ packet, words string }{
		"extra field":            {strings.Replace(good, `{"activity"`, `{"command":"sh","activity"`, 1), "command"},
		"extra request":          {strings.Replace(good, `{"start"`, `{"exec":{},"start"`, 1), "exec"},
		"wrong type":             {strings.Replace(good, `"kind":"train.fit"`, `"kind":7`, 1), "kind"},
		"missing field":          {strings.Replace(good, `"kind":"train.fit",`, ``, 1), "kind"},
		"missing input":          {`{"start":` + strings.Replace(good[len(`{"start":`):], `"input"`, `"output"`, 1), "output"},
		"duplicate key":          {strings.Replace(good, `"kind":`, `"kind":"fn.run","kind":`, 1), "duplicate"},
		"wrong case":             {strings.Replace(good, `"kind":`, `"Kind":`, 1), "Kind"},
		"two messages":           {good + good, ""},
		"truncated":              {good[:len(good)-2], ""},
		"NUL":                    {good + "\x00", ""},
		"NUL within":             {strings.Replace(good, "acme", "ac\x00me", 1), ""},
		"escaped NUL":            {strings.Replace(good, `"org":"acme"`, `"org":"ac\u0000me"`, 1), "org"},
		"invalid UTF-8":          {strings.Replace(good, "acme", "ac\xff\xfeme", 1), "UTF-8"},
		"lone surrogate":         {strings.Replace(good, `"org":"acme"`, `"org":"\ud800"`, 1), ""},
		"null":                   {"null", ""},
		"nothing asked":          {"{}", "start, stop or forget"},
		"both asked":             {strings.TrimSuffix(good, "}") + `,"stop":{"activity":"act_1","reason":"cancel"}}`, "not more"},
		"array":                  {"[" + good + "]", ""},
		"deep":                   {strings.Repeat("[", 10000), ""},
		"no JSON":                {"GET / HTTP/1.1\r\n\r\n", ""},
		"one byte":               {"{", ""},
		"longer than it may be":  {strings.Repeat(" ", 150_000), "longer"},
		"longer by one byte":     {strings.Repeat(" ", ipc.MaxPacket+1), "longer"},
		"whole, after its limit": {good + strings.Repeat(" ", ipc.MaxPacket), "longer"},
		"org of 300 bytes":       {strings.Replace(good, `"org":"acme"`, `"org":"`+strings.Repeat("a", 300)+`"`, 1), "org"},
		"control character":      {strings.Replace(good, `"org":"acme"`, `"org":"a\u001b[2Jb"`, 1), "org"},
		"reason unknown":         {`{"stop":{"activity":"act_1","reason":"because"}}`, "reason"},
	} {
		if _, err := a.raw.Write([]byte(c.packet)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := a.reply()
		a.refused(r, activity.Schema, c.words)
		if t.Failed() {
			t.Fatalf("at %q", name)
		}
	}
	if n := strings.Count(a.log.String(), "malformed packet"); n == 0 {
		t.Error("nothing was logged")
	}
	// The kernel does not take a hundred megabytes as one packet.
	if _, err := a.raw.Write(make([]byte, 100<<20)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("100 MB: %v, want EMSGSIZE", err)
	}
	// The connection has survived all that.
	a.start("sleep", 0)
}

func TestAttempt81AHundredMalformedPackets(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	s := a.start("sleep", 0)
	a.running(s)
	for i := range maxMalformed {
		if _, err := a.raw.Write([]byte("x")); err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		a.refused(a.reply(), activity.Schema, "")
	}
	a.closed()
	a.nothingRuns()
}

// An agent's descriptors are never in the launcher, which is this process.
func TestAttempt81DescriptorsAreNotTaken(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		a.must(err)
		return len(entries)
	}
	null, err := os.Open("/dev/null")
	a.must(err)
	defer null.Close()
	many := make([]int, 200)
	for i := range many {
		many[i] = int(null.Fd())
	}
	before := count()
	for range 50 {
		_, _, err := a.raw.WriteMsgUnix([]byte(`{"stop":{"activity":"act_0","reason":"cancel"}}`), unix.UnixRights(many...), nil)
		if errors.Is(err, unix.EPERM) {
			continue // Linux 6.16 does not send them here (SO_PASSRIGHTS)
		}
		a.must(err)
		a.refused(a.reply(), activity.Schema, "descriptors")
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// There is no field for an argument, an environment or a path, and a hash that is
// none becomes no path.
func TestAttempt82ArgumentsAndPaths(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	hash := a.tree("stage.json", `{"do":"sleep"}`)
	secret := filepath.Join(a.dir, "secret")
	a.must(os.Mkdir(secret, 0o700))
	other := strings.Repeat("a", 64)
	a.must(os.Symlink(secret, filepath.Join(a.Store, "trees", other)))
	fifo := strings.Repeat("b", 64)
	a.must(unix.Mkfifo(filepath.Join(a.Store, "trees", fifo), 0o666))
	file := strings.Repeat("c", 64)
	a.must(os.WriteFile(filepath.Join(a.Store, "trees", file), nil, 0o666))
	for name, c := range map[string]struct {
		field string
		value any
		code  activity.Code
	}{
		"arguments":            {"argv", []string{"sh"}, activity.Schema},
		"environment":          {"env", map[string]string{"LD_PRELOAD": "/tmp/x.so"}, activity.Schema},
		"an absolute path":     {"stage", secret, activity.Schema},
		"a path":               {"stage", "../../../secret", activity.Schema},
		"a path in the hash":   {"stage", hash + "/../" + other, activity.Schema},
		"an upper-case hash":   {"stage", strings.ToUpper(hash), activity.Schema},
		"a short hash":         {"stage", hash[:63], activity.Schema},
		"a NUL in the hash":    {"stage", hash[:63] + "\x00", activity.Schema},
		"an absent tree":       {"stage", strings.Repeat("0", 64), activity.Pull},
		"a tree that's a link": {"stage", other, activity.Pull},
		"a tree that's a FIFO": {"base", fifo, activity.Pull},
		"a tree that's a file": {"base", file, activity.Pull},
	} {
		input := a.input("sleep", 0)
		input[c.field] = c.value
		s := a.envelope(input)
		r := a.ask(s)
		if r.Refused == nil || r.Refused.Code != c.code {
			t.Errorf("%s: %+v %+v, want %s", name, r.Started, r.Refused, c.code)
		}
		if _, err := os.Stat(filepath.Join(a.Spool, s.Activity)); err == nil {
			t.Errorf("%s: a spool directory is left", name)
		}
	}
	// Nor does an activity's name become one.
	for _, id := range []string{"../act_1", "act_../../x", "act_", "act_a/b", "act_a b", "act_ä", ".", "act_" + strings.Repeat("x", 61), "act_a\n"} {
		s := a.envelope(a.input("sleep", 0))
		s.Activity = id
		src, err := canon.Marshal(map[string]any{"start": s})
		a.must(err)
		if _, err := a.raw.Write(src); err != nil {
			t.Fatal(err)
		}
		a.refused(a.reply(), activity.Schema, "activity")
	}
}

// The store's own directories may be links as little as its trees, and what was
// opened is what is used, whatever stands at the path afterwards.
func TestAttempt83SwapAfterTheCheck(t *testing.T) {
	r := newRig(t)
	hash := r.tree("stage.json", "checked")
	opened, err := openTree(r.Store, hash)
	r.must(err)
	defer opened.Close()
	trees := filepath.Join(r.Store, "trees")
	r.must(os.Rename(filepath.Join(trees, hash), filepath.Join(trees, "away")), os.Symlink("/etc", filepath.Join(trees, hash)))
	got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/stage.json", opened.Fd()))
	if err != nil || string(got) != "checked" {
		t.Errorf("after the swap the tree reads %q, %v", got, err)
	}
	if f, err := openTree(r.Store, hash); err == nil {
		f.Close()
		t.Error("a tree that is a link was opened")
	}
	r.must(os.Rename(trees, trees+"-away"), os.Symlink(trees+"-away", trees))
	if f, err := openTree(r.Store, hash); !errors.Is(err, unix.ELOOP) {
		if err == nil {
			f.Close()
		}
		t.Errorf("trees is a link: %v, want ELOOP", err)
	}
}

// An activity's spool directory is a new one, and nothing that the agent put there.
func TestAttempt83SpoolThatIsThere(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	for name, make := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o777) },
		"link":      func(path string) error { return os.Symlink("/etc", path) },
		"dangling":  func(path string) error { return os.Symlink("/nowhere", path) },
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o666) },
	} {
		s := a.envelope(a.input("sleep", 0))
		path := filepath.Join(a.Spool, s.Activity)
		a.must(make(path))
		before, err := os.Lstat(path)
		a.must(err)
		a.refused(a.ask(s), activity.StartFailed, "has run before")
		after, err := os.Lstat(path)
		a.must(err)
		if before.Mode() != after.Mode() {
			t.Errorf("%s: the mode was %v and is %v", name, before.Mode(), after.Mode())
		}
	}
	// And the agent itself can put nothing there.
	if got := a.try("mkdir", filepath.Join(a.Spool, "act_x"), ""); got != "EACCES" {
		t.Errorf("the agent makes a spool directory: %s", got)
	}
}

func TestAttempt86WhoConnects(t *testing.T) {
	r := newRig(t).serve()
	outside := "its control group is"
	for name, c := range map[string]struct {
		stranger
		words string
	}{
		"root":                            {stranger{User{0, 0}, "agent", 0}, "its user"},
		"the workloads' user":             {stranger{workUser, "agent", 0}, "its user"},
		"some user":                       {stranger{User{64013, 64013}, "agent", 0}, "its user"},
		"the agent's group":               {stranger{User{64013, agentUser.GID}, "agent", 0}, "its user"},
		"the agent's user, outside":       {stranger{agentUser, "/", 0}, outside},
		"the agent's user, in a pid ns":   {stranger{agentUser, "agent", unix.CLONE_NEWPID}, "another pid namespace"},
		"the agent's user, in a user ns":  {stranger{agentUser, "agent", unix.CLONE_NEWUSER}, "another user namespace"},
		"the agent's user, in both of it": {stranger{agentUser, "agent", unix.CLONE_NEWUSER | unix.CLONE_NEWPID}, "namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.connectAs(c.stranger)
			reply := a.reply()
			if reply.Refused == nil || reply.Refused.Code != activity.Denied || !strings.Contains(reply.Refused.Message, c.words) {
				t.Errorf("%+v %+v, want refused for %q", reply.Ready, reply.Refused, c.words)
			}
			a.closed()
		})
	}
	if !strings.Contains(r.log.String(), "connection refused") {
		t.Error("nothing was logged")
	}
	r.connect().offered()
}

// A group whose name only begins like the agent's is another.
func TestAttempt86GroupBeside(t *testing.T) {
	r := newRig(t)
	beside := r.Group + "-2"
	r.must(os.Mkdir(beside, 0o755))
	t.Cleanup(func() { r.until("the group beside is empty", func() bool { return unix.Rmdir(beside) == nil }) })
	r.serve()
	a := r.connectAs(stranger{agentUser, "../" + filepath.Base(beside), 0})
	a.refused(a.reply(), activity.Denied, "its control group is")
	a.end()
}

func TestAttempt87AboveThePolicy(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	a.policy(map[string]any{"concurrency": 2})
	for name, c := range map[string]struct {
		field string
		value any
		code  activity.Code
		words string
	}{
		"memory":        {"memory", 2 << 30, activity.Denied, "caps.memory"},
		"cpus":          {"cpus", 17, activity.Denied, "caps.cpus"},
		"disk":          {"disk", 1 << 40, activity.Denied, "caps.disk"},
		"vram":          {"vram", 1 << 30, activity.Schema, "gpus"},
		"no memory":     {"memory", 0, activity.Schema, "memory"},
		"negative":      {"memory", -1, activity.Schema, "memory"},
		"for two years": {"maxSec", 2 * 366 * 86400, activity.Schema, "maxSec"},
	} {
		input := a.input("sleep", 0)
		input[c.field] = c.value
		r := a.ask(a.envelope(input))
		if r.Refused == nil || r.Refused.Code != c.code || !strings.Contains(r.Refused.Message, c.words) {
			t.Errorf("%s: %+v %+v, want %s for %q", name, r.Started, r.Refused, c.code, c.words)
		}
	}
	for kind, code := range map[string]activity.Code{
		policy.FnRun: activity.Unsupported, policy.EngineServe: activity.Unsupported, policy.StudioRender: activity.Unsupported, "sh": activity.Unsupported,
	} {
		s := a.envelope(a.input("sleep", 0))
		s.Kind = kind
		a.refused(a.ask(s), code, kind)
	}
	s := a.envelope(a.input("sleep", 0))
	s.Org = "other"
	a.refused(a.ask(s), activity.Denied, "org")

	// An accelerator that this host does not have.
	a.policy(map[string]any{"caps": map[string]any{"vram": 1 << 40, "memory": 1 << 30, "cpus": 16, "disk": 64 << 20}})
	input := a.input("sleep", 0)
	input["vram"], input["gpus"] = 1<<30, []int{200}
	a.refused(a.ask(a.envelope(input)), activity.Denied, "GPU 200")

	// More at once than the policy says, and more together than it caps.
	a.policy(map[string]any{"concurrency": 2})
	a.start("sleep", 0)
	a.start("sleep", 0)
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Denied, "concurrency")
	a.policy(map[string]any{"caps": map[string]any{"memory": 300 << 20, "cpus": 16, "disk": 64 << 20}})
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Capacity, "capacity.memory")
}

// The policy is read again at each start, as it then is.
func TestAttempt88RaceThePolicy(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	a.policy(map[string]any{"orgs": []string{"other"}})
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Denied, "org")
	a.policy(nil)
	a.ended(a.start("exit", 0))
	// Changed and changed back, perhaps between two looks of the watch.
	a.policy(map[string]any{"orgs": []string{"other"}})
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Denied, "org")
	a.policy(nil)
	s := a.start("sleep", 0)
	a.policy(map[string]any{"orgs": []string{"other"}})
	if e := a.ended(s); e.Reason != activity.Policy {
		t.Errorf("ended as %+v", e)
	}
	a.policy(nil)
	// Root's own directory keeps the agent out, by every way to a file.
	for _, do := range []string{"write", "create", "chmod"} {
		if got := a.try(do, a.Policy, "{}"); got != "EACCES" && got != "EPERM" {
			t.Errorf("the agent's %s of the policy: %s", do, got)
		}
	}
	if got := a.try("rename", filepath.Join(a.dir, "state/store"), a.Policy); got == "done" {
		t.Error("the agent renamed something over the policy")
	}
	if got := a.try("create", filepath.Join(filepath.Dir(a.Policy), "other"), ""); got != "EACCES" {
		t.Errorf("the agent makes a file beside the policy: %s", got)
	}
	// Should it have been able to, the file would not be believed.
	a.must(os.Chown(a.Policy, int(agentUser.UID), int(agentUser.GID)))
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Denied, "policy.json")
}

func TestAttempt89ControlGroup(t *testing.T) {
	r := newRig(t)
	a := r.puppet(stranger{agentUser, "agent", 0})
	// Before it connects the group is the agent's: systemd gave it.
	control := filepath.Join(r.Group, "cgroup.subtree_control")
	if got := a.try("hold", control, ""); got != "done" {
		t.Fatalf("the agent opens its own group's subtree_control: %s", got)
	}
	r.serve()
	a.dial()
	a.offered()
	s := a.start("sleep", 0)
	a.running(s)
	groups, _ := filepath.Glob(filepath.Join(r.Group, workName, "*/cgroup.procs"))
	if len(groups) == 0 {
		t.Fatal("no workload's group")
	}
	work := filepath.Dir(groups[0])
	self := strconv.Itoa(a.cmd.Process.Pid)
	for _, c := range []deed{
		{"write", control, "-memory"},
		{"write", filepath.Join(r.Group, "cgroup.procs"), self},
		{"write", filepath.Join(r.Group, "cgroup.kill"), "1"},
		{"write", filepath.Join(r.Group, "cgroup.freeze"), "1"},
		{"write", filepath.Join(r.Group, workName, "cgroup.subtree_control"), "-memory"},
		{"write", filepath.Join(r.Group, workName, "cgroup.kill"), "1"},
		{"write", filepath.Join(work, "cgroup.procs"), self},
		{"write", filepath.Join(work, "cgroup.kill"), "1"},
		{"write", filepath.Join(work, "cgroup.freeze"), "1"},
		{"write", filepath.Join(work, "memory.max"), "max"},
		{"mkdir", filepath.Join(r.Group, "mine"), ""},
		{"mkdir", filepath.Join(r.Group, workName, "mine"), ""},
		{"mkdir", filepath.Join(work, "mine"), ""},
		{"rmdir", filepath.Join(r.Group, workName), ""},
		{"rmdir", work, ""},
		{"chmod", r.Group, ""},
	} {
		got := a.try(c.Do, c.Path, c.Data)
		if _, err := os.Stat(c.Path); c.Do == "write" && err != nil {
			continue // this host's group has no such file
		}
		if got != "EACCES" && got != "EPERM" {
			t.Errorf("the agent's %s %s %q: %s, want EACCES", c.Do, c.Path, c.Data, got)
		}
	}
	t.Run("by a descriptor from before", func(t *testing.T) {
		if r.Controllers != nil {
			t.Skip("this host has no controllers on v2 that could be disabled")
		}
		// The descriptor is good for writing. The kernel refuses, for the group of the
		// workloads holds the controllers.
		if got := a.try("write-held", control, "-memory"); got != "EBUSY" {
			t.Errorf("it writes -memory: %s, want EBUSY", got)
		}
		src, err := os.ReadFile(control)
		if err != nil || !strings.Contains(string(src), "memory") {
			t.Errorf("enabled are %q, %v", src, err)
		}
		max, err := os.ReadFile(filepath.Join(work, "memory.max"))
		if err != nil || strings.TrimSpace(string(max)) != strconv.Itoa(128<<20) {
			t.Errorf("the workload's memory.max is %q, %v", max, err)
		}
	})
	// What systemd gives the agent at a restart is seen before the next start.
	r.delegate(r.Group)
	a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.StartFailed, "not root's alone")
}

func TestAttempt92Twice(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	a.stop(&activity.Envelope{Activity: "act_unknown"}, activity.Cancel)
	a.refused(a.reply(), activity.Lost, "no such activity")

	s := a.start("sleep", 0)
	a.running(s)
	before := len(a.workers())
	a.started(a.ask(s), s) // the same one again
	if len(a.files) != 1 {
		t.Errorf("%d descriptors came with the second started, want the pidfd", len(a.files))
	}
	if after := len(a.workers()); after != before {
		t.Errorf("%d processes before the second start, %d after", before, after)
	}
	a.stop(s, activity.Cancel)
	a.ended(s)
	a.refused(a.ask(s), activity.StartFailed, "has run before")
}

func TestAttempt94SignalTheLauncher(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	for _, do := range []string{"signal", "ptrace"} {
		if got := a.try(do, strconv.Itoa(os.Getpid()), ""); got != "EPERM" {
			t.Errorf("the agent's %s: %s, want EPERM", do, got)
		}
	}
}

// A flood of connections takes nothing from the launcher but time, and not from
// the agent that is there.
func TestAttempt96FloodOfConnections(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		r.must(err)
		return len(entries)
	}
	b := r.puppet(stranger{agentUser, "agent", 0})
	before := count()
	for range 30 {
		b.dial()
		b.refused(b.reply(), activity.Denied, "one agent at a time")
		b.closed()
		b.raw.Close()
	}
	if after := count(); after > before+2 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	a.ended(a.start("exit", 0))
}

// Thousands of connections, hundreds of which were served and dozens had work, leave
// no descriptor, goroutine, memory or control group.
func TestAttempt96ThousandsOfConnectionsLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("connects two thousand times")
	}
	paced := connectRate
	t.Cleanup(func() { connectRate = paced }) // after the launcher has ended
	connectRate = Rate{Every: 1, Burst: 1 << 20}
	r := newRig(t, func(c *Config) { c.Starts = Rate{Every: 1, Burst: 1 << 20} }).serve()
	a := r.puppet(stranger{agentUser, "agent", 0})
	type counts struct{ files, goroutines, groups, heap int }
	count := func() (c counts) {
		files, err := os.ReadDir("/proc/self/fd")
		r.must(err)
		groups, err := filepath.Glob(filepath.Join(r.Group, workName, "*/cgroup.procs"))
		r.must(err)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return counts{len(files), runtime.NumGoroutine(), len(groups), int(m.HeapAlloc)}
	}
	said := func(conn *net.UnixConn) ipc.Reply {
		r.must(conn.SetDeadline(time.Now().Add(patience)))
		reply, files, err := ipc.NewConn(conn).ReadReply()
		r.must(err)
		for _, f := range files {
			f.Close()
		}
		return reply
	}
	// served connects, starts work where it is due, and closes.
	served := func(work bool) {
		conn := a.dialed()
		defer func() { conn.Close() }()
		// The launcher is this process, and a stage that it is about to execute has
		// the last connection open for a moment more.
		for said(conn).Ready == nil {
			conn.Close()
			conn = a.dialed()
		}
		if !work {
			return
		}
		r.must(ipc.NewConn(conn).WriteRequest(ipc.Request{Start: r.envelope(r.input("sleep", 0))}))
		if reply := said(conn); reply.Started == nil {
			t.Fatalf("%+v", reply.Refused)
		}
	}
	served(true)
	r.until("the first session is over", func() bool { return count().groups == 0 })
	before := count()
	for i := range 200 {
		served(i%10 == 0)
	}
	r.until("the last session is over", func() bool { return count().groups == 0 })
	first := r.connect().offered() // takes the place
	for range 2000 {
		conn := a.dialed()
		if said(conn).Refused == nil {
			t.Fatal("two agents at a time")
		}
		conn.Close()
	}
	first.end()
	first.raw.Close()
	var after counts
	r.until("nothing more is held than at first", func() bool {
		after = count()
		return after.files <= before.files && after.goroutines <= before.goroutines && after.groups == 0
	})
	if after.heap > before.heap+1<<20 {
		t.Errorf("%+v before, %+v after", before, after)
	}
}

// An agent that asks and does not read fills its own socket, and loses its work.
func TestAttempt96ReaderThatNeverReads(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	a.running(a.start("sleep", 0))
	long := []byte(`{"stop":{"activity":"act_unknown","reason":"cancel"}}`)
	for {
		if _, err := a.raw.Write(long); err != nil {
			if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("writing until the launcher gave up: %v", err)
			}
			break
		}
	}
	r.nothingRuns()
	r.connect().offered()
}

// What a flood of requests leaves behind in the launcher is nothing.
func TestAttempt96FloodOfRequestsLeavesMemoryFlat(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	inUse := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	refuse := func(n int) {
		for range n {
			s := a.envelope(a.input("sleep", 0))
			s.Org = "other"
			a.must(a.conn.WriteRequest(ipc.Request{Start: s}))
			if r, _, err := a.conn.ReadReply(); err != nil || r.Refused == nil {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	refuse(100)
	before := inUse()
	refuse(300)
	if after := inUse(); after > before+1<<20 {
		t.Errorf("%d bytes in use after 100 requests, %d after 400", before, after)
	}
}
