package test

import (
	"bufio"
	"debug/buildinfo"
	"debug/elf"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hanzoai/link/"

// layers are the import rules, lowest first. A package on the left may import
// the packages on the right and whatever those may import. What is not named
// may not be imported. cmd/* and test may import anything; _test.go files are
// exempt, for the tests of one side start the real other side.
const layers = `
spool/canon:
spool/durable:
spool/durable/durabletest: spool/durable
spool/record spool/gate: spool/canon
spool/event: spool/canon spool/record spool/gate
spool: spool/event spool/gate spool/record spool/durable

activity: spool/canon
control/api: activity spool/event spool/gate spool/record
spool/upload: control/api spool

kernels:
kernels/cpu kernels/kerneltest: kernels

trainer/nearest:
trainer/decision: spool/canon
trainer/safetensors: spool/durable
trainer/tokenizer:
trainer/data: spool/record trainer/decision trainer/nearest spool/durable
trainer/kai: kernels trainer/safetensors trainer/tokenizer trainer/decision
trainer/project: kernels
trainer/adapter: trainer/kai trainer/project trainer/safetensors trainer/nearest spool/durable
trainer/eval: trainer/kai trainer/data spool/gate
trainer: trainer/eval trainer/adapter spool/event spool/record spool/durable

policy: spool/canon
launcher/ipc: activity
sandbox/attempt:
sandbox/filter:
sandbox/landlock:
sandbox/stage: sandbox/filter sandbox/landlock
sandbox: sandbox/stage
launcher: launcher/ipc policy sandbox
systemd: spool/durable

agent/facts: control/api
agent/store: activity policy spool/durable
agent: agent/facts agent/store policy launcher/ipc spool/upload

control/db: control/api spool/durable
control/route: control/db
control/research: control/route
control/compute: control/route policy
control: control/research control/compute
`

// doors names the only packages that may import a heavy or subtle module
// directly, so that its quirks are handled in one place.
var doors = map[string][]string{
	"github.com/go-json-experiment/json":     {"spool/canon"},
	"modernc.org/sqlite":                     {"control/db"},
	"github.com/cilium/ebpf":                 {"sandbox"},
	"github.com/containerd/cgroups/v3":       {"sandbox"},
	"github.com/opencontainers/runtime-spec": {"sandbox"},
	"github.com/coreos/go-systemd/v22":       {"launcher", "cmd/hanzo-link"},
	"github.com/coreos/go-oidc/v3":           {"control"},
	"golang.org/x/oauth2":                    {"cmd/internal/logincmd"},
	"github.com/NVIDIA/go-nvml":              {"cmd/hanzo-gpu"},
	"github.com/danielgtaylor/huma/v2":       {"control", "control/route", "control/research", "control/compute"},
	"golang.org/x/text":                      {"trainer/tokenizer", "trainer/decision"},
}

// budgets bounds the third-party modules linked into each binary, by the
// command's name; others may link 20.
var budgets = map[string]int{
	"hanzo-launcher": 10, "hanzo-stage": 10,
	"hanzo": 20, "hanzo-link": 20, "train": 20, "bench": 20,
	"hanzo-cloud": 60,
}

// source is one package's non-test code as the layering sees it.
type source struct {
	doc     bool
	imports map[string]string // import path -> a file that has it
}

// packages parses every non-test Go file of the module, by folder.
func packages(t *testing.T) map[string]*source {
	t.Helper()
	found := make(map[string]*source)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == "testdata" || name == "vectors" || strings.HasPrefix(name, ".") && name != ".." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), ".."+string(filepath.Separator)))
		pkg := found[dir]
		if pkg == nil {
			pkg = &source{imports: make(map[string]string)}
			found[dir] = pkg
		}
		pkg.doc = pkg.doc || documented(file)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			pkg.imports[imported] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func documented(file *ast.File) bool {
	return file.Doc != nil && len(strings.TrimSpace(file.Doc.Text())) > 0
}

// allowed expands the layers to every import each package may make.
func allowed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	rules := make(map[string]map[string]bool)
	scanner := bufio.NewScanner(strings.NewReader(layers))
	for scanner.Scan() {
		left, right, found := strings.Cut(scanner.Text(), ":")
		if !found {
			continue
		}
		for _, pkg := range strings.Fields(left) {
			rules[pkg] = make(map[string]bool)
			for _, dep := range strings.Fields(right) {
				lower, known := rules[dep]
				if !known {
					t.Fatalf("layers: %s may import %s, which is not named above it", pkg, dep)
				}
				rules[pkg][dep] = true
				for d := range lower {
					rules[pkg][d] = true
				}
			}
		}
	}
	return rules
}

func TestLayers(t *testing.T) {
	rules := allowed(t)
	for dir, pkg := range packages(t) {
		if !pkg.doc {
			t.Errorf("%s: no package comment: say what it is, what a caller may rely on, and what it is not", dir)
		}
		for path, file := range pkg.imports {
			for heavy, owners := range doors {
				if (path == heavy || strings.HasPrefix(path, heavy+"/")) && !slices.Contains(owners, dir) && !generator(dir) {
					t.Errorf("%s imports %s, whose only doors are %v", file, path, owners)
				}
			}
			dep, ours := strings.CutPrefix(path, module)
			if !ours || unruled(dir) {
				continue
			}
			if strings.HasPrefix(dir, "cmd/internal/") {
				if strings.HasPrefix(dep, "cmd/") && !strings.HasPrefix(dep, "cmd/internal/") {
					t.Errorf("%s: what commands share may not import a command (%s)", file, dep)
				}
				continue
			}
			rule, named := rules[dir]
			if !named {
				t.Errorf("%s is in no layer: add it to the rules in %s", dir, "test/layers_test.go")
				break
			}
			if !rule[dep] {
				t.Errorf("%s: %s may not import %s", file, dir, dep)
			}
		}
	}
}

// unruled reports whether a folder's imports are free: the commands, this
// folder, and programs that generate code.
func unruled(dir string) bool {
	return dir == "test" || strings.HasPrefix(dir, "test/") || generator(dir) ||
		strings.HasPrefix(dir, "cmd/") && !strings.HasPrefix(dir, "cmd/internal/")
}

func generator(dir string) bool { return strings.HasSuffix(dir, "/gen") }

// launcherSize bounds the root daemon's binary, stripped. What root runs should be
// small enough to be looked at.
const launcherSize = 9 << 20

// TestLauncherIsSmallAndStatic builds the two binaries that root runs as they are
// installed.
func TestLauncherIsSmallAndStatic(t *testing.T) {
	packages(t)
	for _, name := range []string{"hanzo-launcher", "hanzo-stage"} {
		binary := filepath.Join(t.TempDir(), name)
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "../cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, out)
		}
		info, err := os.Stat(binary)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= launcherSize {
			t.Errorf("%s is %d bytes, and its bound is %d", name, info.Size(), launcherSize)
		}
		file, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s is not static: it has a %v segment", name, p.Type)
			}
		}
		t.Logf("%s: %d bytes", name, info.Size())
	}
}

// TestModuleBudgets builds every command without cgo and counts the modules
// that the linker kept.
func TestModuleBudgets(t *testing.T) {
	packages(t) // opens every source file, so that a cached result is a current one
	commands, err := filepath.Glob("../cmd/*/main.go")
	if err != nil || len(commands) == 0 {
		t.Fatalf("no commands found: %v", err)
	}
	for _, main := range commands {
		dir := filepath.Dir(main)
		name := filepath.Base(dir)
		binary := filepath.Join(t.TempDir(), name)
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Dir = dir
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("building %s without cgo: %v\n%s", name, err, out)
			continue
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		budget, named := budgets[name]
		if !named {
			budget = 20
		}
		if got := len(info.Deps); got > budget {
			t.Errorf("%s links %d third-party modules, its budget is %d", name, got, budget)
		}
		for _, dep := range info.Deps {
			if name != "hanzo-cloud" && (dep.Path == "modernc.org/sqlite" || strings.HasPrefix(dep.Path, "github.com/danielgtaylor/huma")) {
				t.Errorf("%s links %s: only hanzo-cloud holds a server and a database", name, dep.Path)
			}
		}
	}
}
