package trainer

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
)

// TestEnvironment: a build's commit stands in the record, and a build without
// one says so.
func TestEnvironment(t *testing.T) {
	commit := strings.Repeat("ab", 20)
	setting := func(kv ...string) []debug.BuildSetting {
		var list []debug.BuildSetting
		for i := 0; i < len(kv); i += 2 {
			list = append(list, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return list
	}
	for _, tt := range []struct {
		name     string
		settings []debug.BuildSetting
		commit   string
		dirty    bool
	}{
		{"clean", setting("vcs.revision", commit, "vcs.modified", "false"), commit, false},
		{"changed", setting("vcs.revision", commit, "vcs.modified", "true"), commit, true},
		{"nothing known of changes", setting("vcs.revision", commit), commit, true},
		{"no version control", setting("CGO_ENABLED", "0"), "", true},
		{"another system's revision", setting("vcs.revision", "r123", "vcs.modified", "false"), "", true},
	} {
		e, err := environment(&debug.BuildInfo{GoVersion: "go1.26.8", Settings: tt.settings}, cpu.New(1))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if e.GitSHA != tt.commit || e.Dirty != tt.dirty || e.ML != tt.commit || e.Kernels != tt.commit {
			t.Errorf("%s: commit %q, dirty %v; want %q, %v", tt.name, e.GitSHA, e.Dirty, tt.commit, tt.dirty)
		}
	}
	one, err := environment(&debug.BuildInfo{Settings: setting("GOAMD64", "v1", "vcs", "git", "CGO_ENABLED", "0", "-tags", "")}, cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	two, err := environment(&debug.BuildInfo{Deps: []*debug.Module{{Path: "a", Version: "v1", Sum: "h1:x"}}}, cpu.New(4))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(one.CompilerFlags, []string{"CGO_ENABLED=0", "GOAMD64=v1"}) {
		t.Errorf("compiler flags = %v, want them sorted, without version control and empty ones", one.CompilerFlags)
	}
	if one.KernelPlanHash != two.KernelPlanHash {
		t.Error("the number of threads changes the kernel plan")
	}
	if one.LockfileHash == two.LockfileHash {
		t.Error("another module leaves the lockfile's hash")
	}
}
