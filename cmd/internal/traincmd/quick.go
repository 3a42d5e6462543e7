package traincmd

import (
	"flag"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/kai"
)

// quick are the flags of train fit FILE: enough to make a stage of one file of
// rows.
type quick struct {
	columns columns
	base    string
	encoder string
	mode    string
	epochs  int
	seed    uint64

	given string // one that was given, empty when none was
}

func (q *quick) flag(flags *flag.FlagSet) {
	q.columns.flag(flags)
	flags.StringVar(&q.base, "base", "", "start from the checkpoint in this `folder`")
	flags.StringVar(&q.encoder, "encoder", "", "start from a new checkpoint over the encoder in this `folder`")
	flags.StringVar(&q.mode, "mode", "readout", "readout: a small head over the frozen base, seconds; full: everything; lora: two small factors a layer, over a base that has learned something")
	term.Natural(flags, &q.epochs, "epochs", "pass this `number` of times over the rows; 0 is the mode's default")
	flags.Uint64Var(&q.seed, "seed", 1, "the `number` that the order of the rows and new weights come from")
}

// among is one of these flags that stood among those parsed.
func (*quick) among(parsed *flag.FlagSet) (name string) {
	own := flag.NewFlagSet("", flag.ContinueOnError)
	new(quick).flag(own)
	parsed.Visit(func(f *flag.Flag) {
		if own.Lookup(f.Name) != nil {
			name = "--" + f.Name
		}
	})
	return name
}

// stageBytes returns the stage document of file and the folder that its paths
// are relative to. A stage file is taken as it is. For a file of rows one is
// written; with --encoder its base is dir/base, which makeBase makes.
func (f *fitting) stageBytes(file, dir string) (src []byte, at string, err error) {
	if strings.EqualFold(filepath.Ext(file), ".json") {
		if f.quick.given != "" {
			return nil, "", term.Usagef("%s says everything about its run itself: leave %s out, and change the file", file, f.quick.given)
		}
		src, err = os.ReadFile(file)
		return src, filepath.Dir(file), err
	}
	q := f.quick
	if (q.base == "") == (q.encoder == "") {
		return nil, "", term.Usagef("say what to teach %s to: --encoder FOLDER (a Hugging Face encoder) or --base CHECKPOINT (made by train init)", file)
	}
	take, err := q.columns.take(file)
	if err != nil {
		return nil, "", err
	}
	base := q.base
	if q.encoder != "" {
		base = filepath.Join(dir, "base")
	}
	stage := map[string]any{
		"stage":      take.Suite,
		"init":       map[string]any{"dir": base},
		"takes":      []any{take},
		"adaptation": map[string]any{"mode": q.mode},
		"evaluation": map[string]any{"suites": []string{take.Suite}},
		"seed":       q.seed,
	}
	if q.epochs > 0 {
		stage["epochs"] = q.epochs
	}
	src, err = canon.Marshal(stage)
	return append(src, '\n'), ".", err
}

// makeBase makes the checkpoint that --encoder asks for, once the rows are known
// to be usable: it is large. What it returns is what is on disk, as a resumed run
// will read it.
func (f *fitting) makeBase(dir string) (*kai.Model, error) {
	model, _, err := kai.Init(kai.InitConfig{Encoder: f.quick.encoder, Seed: f.quick.seed}, f.machine.Device())
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := model.Save(dir); err != nil {
		return nil, err
	}
	return f.machine.Load(dir)
}
