package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// banking77 measures a readout on banking77: how long train fit takes from a CSV
// file to an evaluated checkpoint, how often it is right on the authors' test
// split, and whether a logistic regression on the same features of the same rows
// does better.
func banking77(b bench) error {
	if err := writeCSV(filepath.Join(b.data, "banking77", "banking77.jsonl"), filepath.Join(b.dir, "banking77.csv")); err != nil {
		return err
	}
	fit, err := b.train("fit", "banking77.csv", "--state", "text", "--label", "label", "--split", "split",
		"--instructions", "what does the customer want", "--encoder", b.encoder, "--run", "b77")
	if err != nil {
		return err
	}
	fmt.Printf("\nCSV to evaluated checkpoint: %s\n", fit)
	return compare(b.dir)
}

// compare trains the logistic regression on the rows that trained the readout,
// its penalty chosen on those that stopped it, and tests both on the same rows.
func compare(dir string) error {
	builds, err := filepath.Glob(filepath.Join(dir, "builds", "*"))
	if err != nil || len(builds) != 1 {
		return fmt.Errorf("found builds %v", builds)
	}
	build, err := data.OpenBuild(builds[0])
	if err != nil {
		return err
	}
	model, err := kai.Load(filepath.Join(dir, "runs", "b77", "base"), cpu.New(0))
	if err != nil {
		return err
	}
	sets := map[record.Role]features{}
	for _, role := range []record.Role{record.RoleTrain, record.RoleSelect, record.RoleEvaluate} {
		set, ok := build.Find("banking77", role)
		if !ok {
			return fmt.Errorf("the build has no %s rows", role)
		}
		rows, err := set.Rows()
		if err != nil {
			return err
		}
		if sets[role], err = featuresOf(model, rows); err != nil {
			return err
		}
	}
	trained := sets[record.RoleTrain]
	mean, scale := trained.moments()
	dev := model.Device()
	k := len(trained.question.Options)
	l := logistic{dev: dev, n: len(trained.labels), d: len(mean) + 1, k: k, y: trained.labels, x: trained.matrix(dev, mean, scale)}
	var best []float32
	bestRight, bestL2 := -1, 0.0
	held := sets[record.RoleSelect]
	for _, l2 := range []float64{1e-4, 3e-4, 1e-3, 3e-3, 1e-2} {
		w := l.fit(l2)
		right := agree(predict(dev, w, held.matrix(dev, mean, scale), len(held.labels), l.d, k), held.labels)
		if right > bestRight {
			best, bestRight, bestL2 = w, right, l2
		}
	}
	tested := sets[record.RoleEvaluate]
	answers := predict(dev, best, tested.matrix(dev, mean, scale), len(tested.labels), l.d, k)

	readout, err := readoutItems(dir)
	if err != nil {
		return err
	}
	var onlyReadout, onlyLogistic uint64
	readoutRight, logisticRight := 0, 0
	for i, id := range tested.ids {
		r, lr := readout[id], answers[i] == tested.labels[i]
		if r {
			readoutRight++
		}
		if lr {
			logisticRight++
		}
		switch {
		case r && !lr:
			onlyReadout++
		case lr && !r:
			onlyLogistic++
		}
	}
	n := float64(len(tested.ids))
	fmt.Printf("on %d test rows: readout %.4f, logistic regression on the same features %.4f (penalty %g)\n", len(tested.ids), float64(readoutRight)/n, float64(logisticRight)/n, bestL2)
	fmt.Printf("right only by the readout %d, only by the regression %d: McNemar p = %.4f\n", onlyReadout, onlyLogistic, gate.McNemar(onlyReadout, onlyLogistic))
	return nil
}

// features are the frozen base's features of rows and the rows' answers.
type features struct {
	question decision.Question
	ids      []string
	x        [][]float32
	labels   []int
}

func featuresOf(m *kai.Model, rows []decision.Row) (features, error) {
	f := features{question: rows[0].Asked[0].Question}
	encoder := m.Encoder()
	var inputs []kai.Input
	for _, row := range rows {
		in, err := encoder.Encode(row)
		if err != nil {
			return f, err
		}
		inputs = append(inputs, in...)
		f.ids = append(f.ids, row.ID)
		target := row.Asked[0].Target
		f.labels = append(f.labels, slices.Index(target, slices.Max(target)))
	}
	f.x = m.NewPredictor().Features(inputs)
	return f, nil
}

// moments are each feature's mean and inverse deviation.
func (f features) moments() (mean, scale []float64) {
	d := len(f.x[0])
	mean, scale = make([]float64, d), make([]float64, d)
	for _, row := range f.x {
		for j, v := range row {
			mean[j] += float64(v) / float64(len(f.x))
		}
	}
	for _, row := range f.x {
		for j, v := range row {
			scale[j] += (float64(v) - mean[j]) * (float64(v) - mean[j]) / float64(len(f.x))
		}
	}
	for j, v := range scale {
		scale[j] = 1 / math.Sqrt(v+1e-12)
	}
	return mean, scale
}

// matrix is the rows, standardised, with a last column of ones.
func (f features) matrix(dev kernels.Device, mean, scale []float64) kernels.Mem {
	d := len(mean) + 1
	x := make([]float32, len(f.x)*d)
	for i, row := range f.x {
		for j, v := range row {
			x[i*d+j] = float32((float64(v) - mean[j]) * scale[j])
		}
		x[i*d+d-1] = 1
	}
	m := dev.Alloc(len(x))
	dev.Write(m, x)
	return m
}

func agree(a, b []int) int {
	n := 0
	for i := range a {
		if a[i] == b[i] {
			n++
		}
	}
	return n
}

// readoutItems are the run's scored items: which rows it got right.
func readoutItems(dir string) (map[string]bool, error) {
	s, err := spool.Open(filepath.Join(dir, "spool"), "", "")
	if err != nil {
		return nil, err
	}
	fold, err := s.Fold("b77")
	if err != nil {
		return nil, err
	}
	right := make(map[string]bool)
	for _, e := range fold.Evaluations() {
		f, err := s.OpenArtifact(*e.ItemsSHA256)
		if err != nil {
			return nil, err
		}
		items, err := gate.ParseItems(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			right[item.Item] = *item.Correct
		}
	}
	return right, nil
}

// writeCSV writes the JSON Lines of src as a CSV file with a header.
func writeCSV(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	defer out.Close()
	w := csv.NewWriter(out)
	if err := w.Write([]string{"text", "label", "split"}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var row struct{ Text, Label, Split string }
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return err
		}
		if err := w.Write([]string{row.Text, row.Label, row.Split}); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	return out.Close()
}
