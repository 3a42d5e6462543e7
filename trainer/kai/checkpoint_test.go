package kai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/safetensors"
)

// sentences is text for a vocabulary.
func sentences() []string {
	var list []string
	for i := range 60 {
		list = append(list, fmt.Sprintf("the card was charged %d times, and the shop in street %d will not pay it back", i, i*7))
	}
	return list
}

// nano is a model from nothing with a small head, so that tests are quick.
func nano(t testing.TB, seed uint64) *Model {
	t.Helper()
	m, _, err := Init(InitConfig{Size: "nano", Texts: sentences(), Seed: seed, HeadLayers: 1, RetrievalDim: 16, MaxLen: 64}, cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func question(t testing.TB, kind decision.Type, labels ...string) decision.Question {
	t.Helper()
	var list []decision.Criterion
	for _, l := range labels {
		list = append(list, decision.Criterion{Label: l})
	}
	q, err := decision.New(kind, "what is it about?", list)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func asking(state string, list ...decision.Question) decision.Row {
	row := decision.Row{ID: "r", State: state}
	for i, q := range list {
		row.Asked = append(row.Asked, decision.Asked{Key: fmt.Sprintf("q%d", i), Question: q})
	}
	return row
}

// files reads a folder's files by their path in it.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		src, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(name)] = string(src)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSaveLoad(t *testing.T) {
	dir := t.TempDir()
	m := nano(t, 1)
	m.Config.Temperature["choice:3-5"] = 1.25
	m.Config.Provenance["steps"] = json.RawMessage("12")
	q := question(t, decision.Choice, "card", "shop", "street")
	row := asking("the card was charged twice", q)
	want, err := m.NewPredictor().Answer(row)
	if err != nil {
		t.Fatal(err)
	}
	if m.SHA256 != "" {
		t.Errorf("a model that was never saved has SHA256 %s", m.SHA256)
	}
	if err := m.Save(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(filepath.Join(dir, "a"), cpu.New(2))
	if err != nil {
		t.Fatal(err)
	}
	if loaded.SHA256 != m.SHA256 || len(m.SHA256) != 64 {
		t.Errorf("SHA256 is %s after Load, %s after Save", loaded.SHA256, m.SHA256)
	}
	got, err := loaded.NewPredictor().Answer(row)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got[0].Probabilities) != fmt.Sprint(want[0].Probabilities) {
		t.Errorf("loaded answers %v, saved %v", got[0].Probabilities, want[0].Probabilities)
	}
	if err := loaded.Save(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	a, b := files(t, filepath.Join(dir, "a")), files(t, filepath.Join(dir, "b"))
	if len(a) != 3 || len(b) != len(a) {
		t.Errorf("a checkpoint has %d files, saved again %d; want 3", len(a), len(b))
	}
	for name := range a {
		if a[name] != b[name] {
			t.Errorf("%s differs when saved again", name)
		}
	}
	if err := m.Save(filepath.Join(dir, "a")); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("saving over a checkpoint: %v", err)
	}
	list, _ := os.ReadDir(dir)
	if len(list) != 2 {
		t.Errorf("saving left %v", list)
	}
}

// TestSaveFails: when the folder cannot be made complete, nothing is at its name.
func TestSaveFails(t *testing.T) {
	m, dir := nano(t, 1), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(filepath.Join(dir, "file", "c")); err == nil {
		t.Error("saving under a file went well")
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("a failed save left %v", list)
	}
}

func TestInitBytes(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		seed uint64
	}{{"a", 1}, {"b", 1}, {"c", 2}} {
		if err := nano(t, c.seed).Save(filepath.Join(dir, c.name)); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c := files(t, filepath.Join(dir, "a")), files(t, filepath.Join(dir, "b")), files(t, filepath.Join(dir, "c"))
	for name := range a {
		if a[name] != b[name] {
			t.Errorf("%s differs between two inits of one seed", name)
		}
	}
	if a[weightsFile] == c[weightsFile] {
		t.Error("another seed gives the same weights")
	}
}

func TestTruncatedNormal(t *testing.T) {
	v := make([]float32, 100_000)
	truncatedNormal(v, 1, "a")
	var sum, squares float64
	for _, x := range v {
		if x < -2*deviation || x >= 2*deviation {
			t.Fatalf("%v is outside two deviations", x)
		}
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	n := float64(len(v))
	near(t, "mean", sum/n, 0, deviation, .01)
	// The variance of a normal cut at ±2 is 1 - 4·φ(2)/(Φ(2)-Φ(-2)) = .7737.
	near(t, "variance", squares/n, .7737*deviation*deviation, deviation*deviation, .01)
	w := make([]float32, 4)
	truncatedNormal(w, 1, "b")
	if slices.Equal(w, v[:4]) {
		t.Error("two names draw the same values")
	}
	// Fixed for ever: a checkpoint's init can be drawn again.
	if got := fmt.Sprintf("%.6g", v[:3]); got != "[0.000246873 0.0123075 0.00340806]" {
		t.Errorf("the first values of seed 1 are %s", got)
	}
}

// tamper changes a saved tensor list and writes it back.
func tamper(t *testing.T, dir string, change func(list []safetensors.Tensor) []safetensors.Tensor) {
	t.Helper()
	path := filepath.Join(dir, weightsFile)
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Tensor
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		v, err := f.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, safetensors.Tensor{Name: name, Shape: info.Shape, Data: v})
	}
	f.Close()
	if err := safetensors.Write(path, change(list), nil); err != nil {
		t.Fatal(err)
	}
}

func TestLoadRefuses(t *testing.T) {
	edit := func(old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, configFile)
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(src, []byte(old)) {
				t.Fatalf("kai.json has no %s: %s", old, src)
			}
			if err := os.WriteFile(path, bytes.Replace(src, []byte(old), []byte(new), 1), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	whole := filepath.Join(t.TempDir(), "c")
	if err := nano(t, 1).Save(whole); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		damage     func(t *testing.T, dir string)
	}{
		{"newer format", "format 2", edit(`"format":1`, `"format":2`)},
		{"no head_layers", "head_layers is missing", edit(`"head_layers":1,`, ``)},
		{"top_k of nothing", "top_k is 0", edit(`"top_k":160`, `"top_k":0`)},
		{"text for a number", "top_k", edit(`"top_k":160`, `"top_k":"many"`)},
		{"twice the same member", "format", edit(`"format":1`, `"format":1,"format":1`)},
		{"another meaning", "shared is true", edit(`"format":1`, `"format":1,"shared":true`)},
		{"a temperature of 0", "score:*", edit(`"temperature":{}`, `"temperature":{"score:*":0}`)},
		{"another model", `model_type "gpt2"`, edit(`"model_type":"modernbert"`, `"model_type":"gpt2"`)},
		{"another activation", "hidden_activation gelu_new", edit(`"hidden_activation":"gelu"`, `"hidden_activation":"gelu_new"`)},
		{"longer than the encoder", "positions", edit(`"max_len":64`, `"max_len":9000`)},
		{"a smaller vocabulary", "do not belong together", func(t *testing.T, dir string) {
			var fields, encoder map[string]json.RawMessage
			src, _ := os.ReadFile(filepath.Join(dir, configFile))
			json.Unmarshal(src, &fields)
			json.Unmarshal(fields["encoder"], &encoder)
			edit(`"vocab_size":`+string(encoder["vocab_size"]), `"vocab_size":100`)(t, dir)
		}},
		{"more memory than the file", "the config asks for [200000 128]", edit(`"intermediate_size":192`, `"intermediate_size":100000`)},
		{"another shape", "the config asks for [64]", edit(`"hidden_size":128`, `"hidden_size":64`)},
		{"a missing tensor", "lack head.score.out.bias", func(t *testing.T, dir string) {
			tamper(t, dir, func(list []safetensors.Tensor) []safetensors.Tensor {
				return slices.DeleteFunc(list, func(x safetensors.Tensor) bool { return x.Name == "head.score.out.bias" })
			})
		}},
		{"an unexpected tensor", "head.more", func(t *testing.T, dir string) {
			tamper(t, dir, func(list []safetensors.Tensor) []safetensors.Tensor {
				return append(list, safetensors.Tensor{Name: "head.more", Shape: []int{1}, Data: []float32{1}})
			})
		}},
		{"a value that is not a number", "head.score.out.bias", func(t *testing.T, dir string) {
			tamper(t, dir, func(list []safetensors.Tensor) []safetensors.Tensor {
				for _, x := range list {
					if x.Name == "head.score.out.bias" {
						x.Data[0] = float32(nan())
					}
				}
				return list
			})
		}},
		{"truncated weights", "truncated", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, weightsFile), 5000); err != nil {
				t.Fatal(err)
			}
		}},
		{"no weights", "safetensors", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, weightsFile)) }},
		{"no tokenizer", "tokenizer", func(t *testing.T, dir string) { os.RemoveAll(filepath.Join(dir, tokenizerDir)) }},
		{"no kai.json", "kai.json", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, configFile)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			c.damage(t, dir)
			if _, err := Load(dir, cpu.New(1)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: %v, want an error with %q", err, c.want)
			}
		})
	}
}

func nan() float64 { var zero float64; return zero / zero }

// TestPublishedConfig loads the published kai.json, and keeps what it says.
func TestPublishedConfig(t *testing.T) {
	src, err := os.ReadFile("../../test/vectors/kai-config.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(src)
	if err != nil {
		t.Fatal(err)
	}
	hf, err := parseHF(c.Encoder)
	if err != nil {
		t.Fatal(err)
	}
	if hf.Layers != 22 || hf.Width != 768 || hf.Inner != 1152 || !hf.global(21) || hf.global(20) || hf.theta(false) != 160000 || hf.Local != 128 {
		t.Errorf("encoder %+v", hf)
	}
	if c.TopK != 160 || c.Temperature["choice:3-5"] != 1.588041023963288 {
		t.Errorf("config %+v", c)
	}
	// The published counts of parameters: 110,331,648 and the embeddings.
	var ps params
	newEncoder(hf, &ps)
	total, table := 0, 0
	for _, p := range ps.list {
		total += p.size()
		if p.Name == embeddings["modernbert"] {
			table = p.size()
		}
	}
	if table != 196_608_000 || total-table != 110_331_648 {
		t.Errorf("%d parameters, %d of them embeddings", total, table)
	}

	written, err := c.json()
	if err != nil {
		t.Fatal(err)
	}
	var before, after map[string]any
	json.Unmarshal(src, &before)
	json.Unmarshal(written, &after)
	delete(after, "format")
	if a, b := fmt.Sprint(before), fmt.Sprint(after); a != b {
		t.Errorf("kai.json changed:\n%s\n%s", a, b)
	}
}

// folder writes a Hugging Face encoder folder from a golden model, with its
// tensors renamed.
func folder(t *testing.T, family string, rename func(name string) string, more ...safetensors.Tensor) string {
	t.Helper()
	g, dir := readGolden(t, family), t.TempDir()
	f, err := safetensors.Open(filepath.Join(g.dir, "weights.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := more
	for _, name := range f.Names() {
		base, ok := strings.CutPrefix(name, "encoder.")
		if !ok {
			continue
		}
		info, _ := f.Info(name)
		v, err := f.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		if rename(base) != "" {
			list = append(list, safetensors.Tensor{Name: rename(base), Shape: info.Shape, Data: v})
		}
	}
	if err := safetensors.Write(filepath.Join(dir, weightsFile), list, nil); err != nil {
		t.Fatal(err)
	}
	tok := `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[
		{"id":1,"content":"[CLS]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
		{"id":2,"content":"[SEP]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
		"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
		"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
		"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
		"vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"card":3,"shop":4,":":5,"question":6,"choice":7,"what":8,"is":9}}}`
	for name, src := range map[string]string{"config.json": string(g.Encoder), "tokenizer.json": tok} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInitFromFolder(t *testing.T) {
	plain := func(name string) string { return name }
	ignored := safetensors.Tensor{Shape: []int{1}, Data: []float32{1}}
	named := func(name string) safetensors.Tensor { x := ignored; x.Name = name; return x }
	for _, c := range []struct {
		name, family string
		rename       func(string) string
		more         []safetensors.Tensor
		want         string   // in the error
		unused       []string // or these
	}{
		{"bert", "bert", plain, nil, "", nil},
		{"bert with a prefix and legacy norms", "bert", func(name string) string {
			name = strings.Replace(name, "LayerNorm.weight", "LayerNorm.gamma", 1)
			return "bert." + strings.Replace(name, "LayerNorm.bias", "LayerNorm.beta", 1)
		}, []safetensors.Tensor{named("bert.pooler.dense.bias"), named("cls.predictions.bias"), named("bert.embeddings.position_ids")}, "",
			[]string{"bert.embeddings.position_ids", "bert.pooler.dense.bias", "cls.predictions.bias"}},
		{"modernbert", "modernbert", plain, nil, "", nil},
		{"modernbert with a prefix", "modernbert", func(name string) string { return "model." + name },
			[]safetensors.Tensor{named("decoder.bias"), named("head.dense.weight")}, "", []string{"decoder.bias", "head.dense.weight"}},
		{"missing", "modernbert", func(name string) string {
			if name == "layers.1.attn_norm.weight" {
				return ""
			}
			return name
		}, nil, "lack encoder.layers.1.attn_norm.weight", nil},
		{"unexpected", "modernbert", plain, []safetensors.Tensor{named("layers.0.attn_norm.weight")}, "layers.0.attn_norm.weight", nil},
		{"twice", "bert", plain, []safetensors.Tensor{named("bert.embeddings.LayerNorm.weight")}, "are both", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, c.family, c.rename, c.more...)
			m, unused, err := Init(InitConfig{Encoder: dir, Seed: 3, RetrievalDim: 8}, cpu.New(1))
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("Init: %v, want an error with %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(unused, c.unused) {
				t.Errorf("unused %v, want %v", unused, c.unused)
			}
			want := readGolden(t, c.family).model(t, 1)
			for i, p := range m.Params() {
				if p.Group == "encoder" {
					sameBits(t, p.Name, values(p.W), values(want.Params()[i].W))
				}
			}
			if m.Frozen("head.probe.weight") || !m.Frozen(embeddings[c.family]) {
				t.Error("the token embeddings, and they alone, stay as they are")
			}
			out := filepath.Join(t.TempDir(), "c")
			if err := m.Save(out); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(out, cpu.New(1)); err != nil {
				t.Error(err)
			}
		})
	}
	if m := nano(t, 1); m.Frozen(embeddings["modernbert"]) {
		t.Error("a model from nothing must learn its embeddings")
	}
	for _, c := range []InitConfig{{}, {Size: "nano", Encoder: "x"}, {Size: "huge", Texts: []string{"a"}}, {Size: "nano"}, {Encoder: t.TempDir()}} {
		if _, _, err := Init(c, cpu.New(1)); err == nil {
			t.Errorf("Init(%+v) went well", c)
		}
	}
}

func values(m kernels.Mem) []float32 { return m.Host }
