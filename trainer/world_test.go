package trainer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/safetensors"
)

// world is what a run needs, small enough to train in milliseconds: a base of
// one layer 16 wide, and two suites whose answer stands in the state.
type world struct {
	dir   string
	dev   kernels.Device
	base  string // a Kai checkpoint's folder
	stage Stage
	build *data.Build

	store    *memory // holds the base's evaluation
	baseline *Evaluated
}

var (
	colors  = []string{"red", "green", "blue"}
	animals = []string{"cat", "dog"}
	filler  = []string{"the", "a", "old", "new", "big", "small", "house", "tree", "car", "on", "in"}
)

// rows writes a file of n labelled rows whose label stands among filler words.
// The first rows train, then come dev's and test's.
func rows(t *testing.T, name string, seed uint64, labels []string, train, dev, test int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	var b strings.Builder
	for i := range train + dev + test {
		label, words := labels[i%len(labels)], []string{}
		for range 3 + r.IntN(4) {
			words = append(words, filler[r.IntN(len(filler))])
		}
		words[r.IntN(len(words))] = label
		split := "train"
		switch {
		case i >= train+dev:
			split = "test"
		case i >= train:
			split = "validation"
		}
		fmt.Fprintf(&b, `{"text":"%s %d","label":"%s","split":"%s"}`+"\n", strings.Join(words, " "), i, label, split)
	}
	write(t, name, b.String())
	return name
}

// tempDir is t.TempDir in memory, where there is such a place: these tests sync
// thousands of files, and none of them cuts the power.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "trainer-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newWorld makes a world. edit changes the stage file.
func newWorld(t *testing.T, edit func(stage map[string]any)) *world {
	t.Helper()
	w := &world{dir: tempDir(t), dev: cpu.New(1)}
	rows(t, filepath.Join(w.dir, "colors.jsonl"), 1, colors, 24, 9, 9)
	rows(t, filepath.Join(w.dir, "animals.jsonl"), 2, animals, 12, 4, 6)
	doc := map[string]any{
		"stage": "tiny", "init": map[string]any{"dir": "base"},
		"takes": []any{
			map[string]any{"suite": "colors", "file": "colors.jsonl", "label": "label", "split": "split", "instructions": "which color"},
			map[string]any{"suite": "animals", "file": "animals.jsonl", "label": "label", "split": "split", "instructions": "which animal"},
		},
		"protect": map[string]any{
			"suites": []any{"animals"}, "budget": map[string]any{"accuracy": 1.0, "ece": 1.0},
			"projection": map[string]any{"strength": 0}, "distillation": false,
		},
		"evaluation":   map[string]any{"suites": []any{"colors"}},
		"batch_tokens": 100, "epochs": 2, "lr_encoder": 1e-3, "lr_head": 1e-3,
	}
	if edit != nil {
		edit(doc)
	}
	src, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if w.stage, err = ParseStage(src); err != nil {
		t.Fatal(err)
	}
	for _, take := range w.stage.Takes {
		report, err := data.Import(take.Import(w.dir, filepath.Join(w.dir, "suites")))
		if err != nil {
			t.Fatalf("%v (refused %v)", err, report.Refused)
		}
	}
	staged, err := data.Stage(data.StageConfig{
		Suites: filepath.Join(w.dir, "suites"), Builds: filepath.Join(w.dir, "builds"),
		Stage: w.stage.Stage, Takes: w.stage.Data(), Seed: w.stage.Seed,
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.build, err = data.OpenBuild(staged.Dir); err != nil {
		t.Fatal(err)
	}
	w.base = filepath.Join(w.dir, "base")
	model, _, err := kai.Init(kai.InitConfig{
		Encoder: encoder(t, filepath.Join(w.dir, "encoder")), Seed: 3,
		HeadLayers: 1, RetrievalDim: 8, MaxLen: 32, OptionLen: 8,
	}, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Save(w.base); err != nil {
		t.Fatal(err)
	}
	return w
}

// protected is the world with everything on that protects: animals only judge, and
// their training rows are kept for it.
func protected(stage map[string]any) {
	stage["takes"].([]any)[1].(map[string]any)["rows"] = 0
	stage["protect"] = map[string]any{
		"suites": []any{"animals"}, "budget": map[string]any{"accuracy": 1.0, "ece": 1.0}, "drift": 10.0,
	}
}

// adapted is the protected world, trained by an adapter.
func adapted(stage map[string]any) {
	protected(stage)
	stage["adaptation"] = map[string]any{"mode": "lora", "rank": 4, "alpha": 8}
}

// config is a run of the world over its base, loaded anew.
func (w *world) config(t *testing.T, m *memory, dir string) Config {
	t.Helper()
	model, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	base, err := PutCheckpoint(m, w.base, "train init")
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Run: m.run, Stage: w.stage, Build: w.build, Model: model, Base: base, Device: w.dev,
		Recorder: m, Dir: dir, By: "a test",
	}
}

// start is a run's record, which holds the base and its evaluation, and its
// config, ready to fit.
func (w *world) start(t *testing.T) (*memory, Config) {
	t.Helper()
	if w.store == nil {
		w.store = newMemory("base")
		c := w.config(t, w.store, "")
		e, err := Evaluate(t.Context(), EvalConfig{
			Run: "base", Build: w.build, Model: c.Model, Subject: c.Base, Device: w.dev, Recorder: w.store, By: "a test",
		})
		if err != nil {
			t.Fatal(err)
		}
		w.baseline = &e
	}
	m := w.store.another("run")
	c := w.config(t, m, filepath.Join(tempDir(t), "run"))
	c.Baseline = w.baseline
	return m, c
}

// weights are the bytes of a checkpoint's tensors.
func weights(t *testing.T, dir string) canon.SHA256 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return canon.Sum(b)
}

// encoder writes a BERT of one layer 16 wide with random weights and a
// vocabulary of whole words.
func encoder(t *testing.T, dir string) string {
	t.Helper()
	const d, inner, positions = 16, 32, 48
	vocab := map[string]int{}
	for _, list := range [][]string{{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, colors, animals, filler, {"which", "color", "animal", "choice", "question", ":"}} {
		for _, word := range list {
			vocab[word] = len(vocab)
		}
	}
	r := rand.New(rand.NewPCG(5, 5))
	var tensors []safetensors.Tensor
	add := func(name string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		values := make([]float32, n)
		for i := range values {
			switch {
			case strings.HasSuffix(name, "LayerNorm.weight"):
				values[i] = 1
			case strings.HasSuffix(name, "weight"):
				values[i] = float32(r.NormFloat64()) * .2
			}
		}
		tensors = append(tensors, safetensors.Tensor{Name: name, Shape: shape, Data: values})
	}
	linear := func(name string, out, in int) { add(name+".weight", out, in); add(name+".bias", out) }
	norm := func(name string) { add(name+".weight", d); add(name+".bias", d) }
	add("embeddings.word_embeddings.weight", len(vocab), d)
	add("embeddings.position_embeddings.weight", positions, d)
	add("embeddings.token_type_embeddings.weight", 2, d)
	norm("embeddings.LayerNorm")
	for _, name := range []string{"query", "key", "value"} {
		linear("encoder.layer.0.attention.self."+name, d, d)
	}
	linear("encoder.layer.0.attention.output.dense", d, d)
	norm("encoder.layer.0.attention.output.LayerNorm")
	linear("encoder.layer.0.intermediate.dense", inner, d)
	linear("encoder.layer.0.output.dense", d, inner)
	norm("encoder.layer.0.output.LayerNorm")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil); err != nil {
		t.Fatal(err)
	}
	marshal := func(name string, v any) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(b))
	}
	marshal("config.json", map[string]any{
		"model_type": "bert", "vocab_size": len(vocab), "hidden_size": d, "intermediate_size": inner,
		"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": positions,
	})
	special := func(id int, content string) map[string]any {
		return map[string]any{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	}
	marshal("tokenizer.json", map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil,
		"added_tokens":   []any{special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"), special(3, "[SEP]"), special(4, "[MASK]")},
		"normalizer":     map[string]any{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": nil, "lowercase": true},
		"pre_tokenizer":  map[string]any{"type": "BertPreTokenizer"},
		"post_processor": nil, "decoder": map[string]any{"type": "WordPiece", "prefix": "##", "cleanup": true},
		"model": map[string]any{
			"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab,
		},
	})
	return dir
}
