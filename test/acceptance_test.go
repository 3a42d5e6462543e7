package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// acceptance is hip-1172's list, but for the lines that need an engine, an overlay
// or a render backend, in its order and in short, and the tests that accept by each:
// a Go test as package:Name, a script by its file, a part of the test machine's
// TestLink by its name.
var acceptance = []struct {
	line string
	by   []string
}{
	{"hanzo link with any argument but --help exits non-zero, and so does hanzo link without root on Linux", []string{
		"test/script/hip1172_link_arguments.txt", "test/script/hip1172_link_root.txt",
		"TestLink/hanzo link with any argument exits non-zero, and so does hanzo link without root",
	}},
	{"sudo hanzo link on a host with no policy file writes A3's default, and the node's record shows offers: []", []string{
		"TestLink/sudo hanzo link writes the default policy, and the record shows offers none",
		"cmd/internal/linkcmd:TestLinkWritesTheDefaultPolicyAndOffersNothing",
	}},
	{"binaries and units are root's, the agent is hanzo-link, nothing new listens but the launcher's socket, and the agent holds no credential but the node's", []string{
		"TestLink/agent, launcher and units are root's, and nothing new listens but the launcher's socket",
		"control:TestAccess",
	}},
	{"with kinds: [] or a cap of 0, an enqueue of each kind answers 403 denied", []string{
		"TestLink/with kinds none, an enqueue of each kind answers 403 denied", "control/compute:TestMirror",
	}},
	{"an envelope handed to the agent anyway fails denied, with an audit line and a compute.workload.denied event", []string{
		"agent:TestEnvelopes", "control/compute:TestDeniedByNode",
	}},
	{"the policy is root's, 0644; the linking user, hanzo-link and hanzo-work cannot write it", []string{
		"TestLink/agent, launcher and units are root's, and nothing new listens but the launcher's socket",
		"policy:TestReadTrusted",
	}},
	{"removing a running workload's kind from it stops the workload within 5 s with reason policy", []string{
		"TestLink/removing a running workload's kind stops it with reason policy", "launcher:TestPolicyChangeStopsWork",
	}},
	{"re-running sudo hanzo link validates the policy and prints the kinds the host would offer", []string{
		"TestLink/linking again reinstalls nothing and prints the kinds the host would offer",
	}},
	{"on a host that cannot build the sandbox hanzo link registers with offers: [], creates no user, launcher or policy, and asks for no root", []string{
		"test/script/hip1172_link_hybrid.txt", "cmd/internal/linkcmd:TestPresenceRegistersANodeThatOffersNothing",
	}},
	{"a connection to the launcher from another than hanzo-link, or naming a command line, a path outside the store or an environment, is refused", []string{
		"test/vm/guest:TestImpostor", "test/vm/guest:TestCompromisedAgent",
	}},
	{"a wrong sha256 fails integrity; nothing from that pull is loaded or left outside the store's temporary area", []string{
		"agent/store:TestWrong", "agent:TestPullFails",
	}},
	{"a wrong input, and a .. segment, fails schema", []string{"agent:TestEnvelopes", "control/compute:TestBadInput"}},
	{"a node that does not claim is offline, and its workload stops within one claim of its return", []string{
		"control/compute:TestOffline", "agent:TestOffline",
	}},
	{"sudo hanzo unlink stops every workload, removes the node, revokes its credential and removes both services; policy, audit log and store remain", []string{
		"TestLink/sudo hanzo unlink stops every workload and leaves policy, audit log and store", "control/compute:TestRemoval",
	}},
	{"a workload sees no home, session bus, credential, key or policy file", []string{"test/vm/guest:TestSandboxCheck", "agent:TestSecrets"}},
	{"a member enqueues no engine.serve; another org's caller gets 404 reading or cancelling an activity", []string{
		"control/compute:TestWhoMayAsk", "control/compute:TestForeign",
	}},
	{"started, stopped, denied and failed are on the bus", []string{
		"TestLink/the events on the feed name every start, stop, denial and failure", "control/compute:TestFeed",
	}},
}

// TestHIP1172Acceptance finds each of them, so that none is lost by a renaming.
func TestHIP1172Acceptance(t *testing.T) {
	machine, err := os.ReadFile("vm/guest/link_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range acceptance {
		if len(a.by) == 0 {
			t.Errorf("%s: no test accepts by it", a.line)
		}
		for _, by := range a.by {
			found := false
			switch pkg, name, ok := strings.Cut(by, ":"); {
			case strings.HasPrefix(by, "test/script/"):
				_, err := os.Stat(filepath.Join("..", by))
				found = err == nil
			case strings.HasPrefix(by, "TestLink/"):
				found = strings.Contains(string(machine), `{"`+strings.TrimPrefix(by, "TestLink/")+`", `)
			case ok:
				found = declares(t, filepath.Join("..", pkg), name)
			}
			if !found {
				t.Errorf("%s: there is no %s", a.line, by)
			}
		}
	}
}

// declares reports whether a test of that name stands in a folder.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
