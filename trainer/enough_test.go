package trainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/data"
)

// TestEnough refuses builds without rows to train on or to evaluate, and says
// how many rows there are.
func TestEnough(t *testing.T) {
	for _, tt := range []struct {
		name string
		rows []string // of text, queue and part
		want string   // "": enough
	}{
		{"both", []string{"a,x,train", "b,y,train", "c,x,test"}, ""},
		{"no test row", []string{"a,x,train", "b,y,train"}, "has no rows to evaluate: of its 2 rows 2 are to train on, 0 to select by and 0 to evaluate"},
		{"no train row", []string{"a,x,test", "b,y,test"}, "has no rows to train on: of its 2 rows 0 are to train on, 0 to select by and 2 to evaluate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "desk.csv")
			if err := os.WriteFile(file, []byte("text,queue,part\n"+strings.Join(tt.rows, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := data.Import(data.ImportConfig{File: file, Out: dir, Suite: "desk", Label: "queue", Split: "part"}); err != nil {
				t.Fatal(err)
			}
			report, err := data.Stage(data.StageConfig{
				Suites: dir, Builds: dir, Stage: "desk", Takes: []data.Take{{Suite: "desk", Times: 1}}, Fractions: data.Fractions{Train: 100},
			})
			if err != nil {
				t.Fatal(err)
			}
			build, err := data.OpenBuild(report.Dir)
			if err != nil {
				t.Fatal(err)
			}
			err = Stage{Evaluation: Evaluation{Suites: []string{"desk"}}}.Enough(build)
			if tt.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			for _, word := range []string{tt.want, "--split", "a stage file"} {
				if !errors.Is(err, ErrRows) || !strings.Contains(fmt.Sprint(err), word) {
					t.Errorf("%v: not ErrRows, or does not say %q", err, word)
				}
			}
		})
	}
}
