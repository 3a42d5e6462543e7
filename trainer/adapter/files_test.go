package adapter

import (
	"encoding/json"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/safetensors"
)

var update = flag.Bool("update", false, "write testdata/*/ours, for golden.py to check with PEFT")

var families = []string{"bert", "modernbert"}

// open is a family's base, with a head from a seed.
func open(t *testing.T, family string) *kai.Model {
	t.Helper()
	m, _, err := kai.Init(kai.InitConfig{Encoder: filepath.Join("testdata", family, "base"), Seed: 3, HeadLayers: 1, RetrievalDim: 8}, cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// state is what golden.py keeps of one context's final states.
type state struct {
	Mean  []float64 `json:"mean"`
	First []float64 `json:"first"`
}

type golden struct {
	Contexts [][]int32 `json:"contexts"`
	Base     []state   `json:"base"`
	PEFT     []state   `json:"peft"`
	Ours     []state   `json:"ours"`
}

func readGolden(t *testing.T, family string) golden {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("testdata", family, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(src, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// distance is the largest difference of m's final states from those of a file.
func (g golden) distance(m *kai.Model, states []state) float64 {
	var inputs []kai.Input
	for _, c := range g.Contexts {
		inputs = append(inputs, kai.Input{Context: c})
	}
	worst := 0.0
	for i, f := range m.NewPredictor().Features(inputs) {
		for j, want := range slices.Concat(states[i].Mean, states[i].First) {
			worst = max(worst, math.Abs(float64(f[j])-want))
		}
	}
	return worst
}

// TestReadsPEFT gives the outputs of an adapter that PEFT made, with patterns and
// use_rslora too.
func TestReadsPEFT(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g, m := readGolden(t, family), open(t, family)
			list, err := Read(filepath.Join("testdata", family, "peft"), m.Linears())
			if err != nil {
				t.Fatal(err)
			}
			if d := g.distance(m, g.Base); !(d < 1e-5) {
				t.Errorf("the base is off by %.2g", d)
			}
			if d := g.distance(m, g.PEFT); !(d > 0.1) {
				t.Errorf("the adapter changes outputs by %.2g only: the test shows nothing", d)
			}
			apply(m, list)
			d := g.distance(m, g.PEFT)
			t.Logf("off by %.2g", d)
			if !(d < 1e-5) {
				t.Errorf("with the adapter, outputs are off by %.2g from PEFT's", d)
			}
		})
	}
}

// ours is an adapter of every kind of linear, some of another rank and scale.
func ours(m *kai.Model) (PEFTConfig, []Factors) {
	dev := m.Device()
	targets, err := Targets(m.Linears(), nil)
	if err != nil {
		panic(err)
	}
	cfg := PEFTConfig{Base: "base", Rank: 2, Alpha: 3, BaseSHA256: m.SHA256}
	var list []Factors
	for i, p := range targets {
		c := Config{Rank: cfg.Rank, Alpha: cfg.Alpha}
		switch i {
		case 1:
			c.Rank = 3
		case 2:
			c.Rank, c.Alpha = 4, 1.5
		}
		l := New(dev, p, c, nil, 5)
		dev.Write(l.B, uniform(l.B.Len, 0.5, 5, p.Name+".lora_B"))
		list = append(list, l.Factors())
	}
	return cfg, list
}

// files reads a folder's files by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, e := range entries {
		src, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(src)
	}
	return all
}

// TestPEFTReadsOurs holds what Write writes to the files that golden.py loaded
// with PEFT, and our outputs to those that PEFT gave.
func TestPEFTReadsOurs(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g, m := readGolden(t, family), open(t, family)
			want := filepath.Join("testdata", family, "ours")
			cfg, list := ours(m)
			if *update {
				if err := os.RemoveAll(want); err != nil {
					t.Fatal(err)
				}
				if err := Write(want, cfg, list); err != nil {
					t.Fatal(err)
				}
			}
			dir := filepath.Join(t.TempDir(), "adapter")
			backward := slices.Clone(list)
			slices.Reverse(backward)
			if err := Write(dir, cfg, backward); err != nil {
				t.Fatal(err)
			}
			if got := files(t, dir); !maps.Equal(got, files(t, want)) {
				t.Error("Write makes other bytes than those that PEFT was checked with: run golden.py again")
			}
			apply(m, list)
			if len(g.Ours) == 0 {
				t.Fatal("golden.json has no outputs of ours: run golden.py again")
			}
			d := g.distance(m, g.Ours)
			t.Logf("off by %.2g", d)
			if !(d < 1e-5) {
				t.Errorf("PEFT's outputs of our adapter are off by %.2g", d)
			}
			if d := g.distance(m, g.Base); !(d > 0.1) {
				t.Errorf("the adapter changes outputs by %.2g only: the test shows nothing", d)
			}
		})
	}
}

func TestReadIsWhatWasWritten(t *testing.T) {
	for _, family := range families {
		m := open(t, family)
		m.SHA256 = strings.Repeat("ab", 32)
		cfg, list := ours(m)
		dir := filepath.Join(t.TempDir(), "adapter")
		if err := Write(dir, cfg, list); err != nil {
			t.Fatal(err)
		}
		got, err := Read(dir, m.Linears())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, list) {
			t.Errorf("%s: what is read is not what was written", family)
		}
		if c, err := ReadConfig(dir); err != nil || c != cfg {
			t.Errorf("%s: the config is %+v, %v; want %+v", family, c, err, cfg)
		}
	}
}

// TestHeadAlone is an adapter that has nothing for PEFT.
func TestHeadAlone(t *testing.T) {
	m := open(t, "bert")
	cfg, list := ours(m)
	list = slices.DeleteFunc(list, func(f Factors) bool { return strings.HasPrefix(f.Name, "encoder.") })
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := Write(dir, cfg, list); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir, m.Linears())
	if err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("what is read is not what was written: %v", err)
	}
}

// apply makes W = fl(W + D) of every parameter of the list.
func apply(m *kai.Model, list []Factors) {
	for _, p := range m.Params() {
		for _, f := range list {
			if f.Name == p.Name {
				m.Device().Add(p.W, p.W, f.Delta(m.Device()))
			}
		}
	}
	m.Changed()
}

// TestFileHasTheBitsOfTraining is §B.4 (f2) of an adapter: base and file make
// the weights that training had.
func TestFileHasTheBitsOfTraining(t *testing.T) {
	trained, base := open(t, "bert"), open(t, "bert")
	dev := trained.Device()
	targets, err := Targets(trained.Linears(), []string{"query", "intermediate.dense"})
	if err != nil {
		t.Fatal(err)
	}
	var list []Factors
	for _, p := range targets {
		b := basis(p.Shape[1], 3)
		l := New(dev, p, Config{Rank: 5, Alpha: 1}, b.On(dev, 1), 9)
		dev.Write(l.B, noise(l.B.Len, 4))
		l.Fold(b)
		d := dev.Alloc(p.W.Len)
		l.Delta(d)
		dev.Add(p.W, p.W, d)
		list = append(list, l.Factors())
	}
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := Write(dir, PEFTConfig{Rank: 5, Alpha: 1}, list); err != nil {
		t.Fatal(err)
	}
	if list, err = Read(dir, base.Linears()); err != nil {
		t.Fatal(err)
	}
	apply(base, list)
	for i, p := range base.Params() {
		if !slices.Equal(values(base.Device(), p.W), values(dev, trained.Params()[i].W)) {
			t.Errorf("%s has other bits than in training", p.Name)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	m := open(t, "bert")
	cfg, list := ours(m)
	change := func(f func(*Factors)) []Factors {
		l := slices.Clone(list)
		l[0].A, l[0].B = slices.Clone(l[0].A), slices.Clone(l[0].B)
		f(&l[0])
		return l
	}
	for _, tt := range []struct {
		name string
		list []Factors
		says string
	}{
		{"nothing", nil, "no factors"},
		{"a NaN", change(func(f *Factors) { f.B[3] = float32(math.NaN()) }), "value 3 of a factor is NaN"},
		{"an infinite scale", change(func(f *Factors) { f.Scale = math.Inf(1) }), "scale is +Inf"},
		{"a short factor", change(func(f *Factors) { f.A = f.A[1:] }), "no factors of"},
		{"a factor twice", append(slices.Clone(list), list[0]), "is there twice"},
		{"a bias", change(func(f *Factors) { f.Name = "encoder.embeddings.LayerNorm.bias" }), "no module's weight"},
		{"another part", change(func(f *Factors) { f.Name = "decoder.weight" }), "neither the encoder nor the head"},
	} {
		parent := t.TempDir()
		err := Write(filepath.Join(parent, "adapter"), cfg, tt.list)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
		if left := files(t, parent); len(left) > 0 {
			t.Errorf("%s: left %v", tt.name, left)
		}
	}
}

func TestWriteReplacesNothing(t *testing.T) {
	m := open(t, "bert")
	cfg, list := ours(m)
	parent := t.TempDir()
	dir := filepath.Join(parent, "adapter")
	partial := filepath.Join(parent, ".adapter.partial") // of a write that was cut short
	if err := os.MkdirAll(partial, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(partial, "stale"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, cfg, list); err != nil {
		t.Fatal(err)
	}
	first := files(t, dir)
	if want := []string{configFile, weightsFile, headFile}; !slices.Equal(slices.Sorted(maps.Keys(first)), want) {
		t.Errorf("it wrote %v, want %v", slices.Sorted(maps.Keys(first)), want)
	}
	if _, err := os.Stat(partial); err == nil {
		t.Error("the partial folder is still there")
	}
	if err := Write(dir, cfg, list[:1]); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("writing over an adapter: %v", err)
	}
	if !maps.Equal(files(t, dir), first) {
		t.Error("a refused write changed the adapter")
	}
}

// altered copies a family's PEFT adapter with another config or other tensors,
// or without some of them.
func altered(t *testing.T, family string, config func(map[string]any), tensors func(map[string]safetensors.Tensor)) string {
	t.Helper()
	from, dir := filepath.Join("testdata", family, "peft"), t.TempDir()
	src, err := os.ReadFile(filepath.Join(from, configFile))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(src, &fields); err != nil {
		t.Fatal(err)
	}
	if config != nil {
		config(fields)
	}
	if src, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), src, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(filepath.Join(from, weightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := make(map[string]safetensors.Tensor)
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		v, err := f.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = safetensors.Tensor{Name: name, Shape: info.Shape, Data: v}
	}
	if tensors != nil {
		tensors(all)
	}
	if err := safetensors.Write(filepath.Join(dir, weightsFile), slices.Collect(maps.Values(all)), f.Metadata()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// put adds a tensor of one value.
func put(name string, value float32, shape ...int) func(map[string]safetensors.Tensor) {
	return func(all map[string]safetensors.Tensor) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = value
		}
		all[name] = safetensors.Tensor{Name: name, Shape: shape, Data: data}
	}
}

func TestReadRefuses(t *testing.T) {
	const query = "base_model.model.encoder.layer.0.attention.self.query"
	set := func(name string, v any) func(map[string]any) { return func(c map[string]any) { c[name] = v } }
	for _, tt := range []struct {
		name    string
		config  func(map[string]any)
		tensors func(map[string]safetensors.Tensor)
		says    string
	}{
		{"another kind", set("peft_type", "IA3"), nil, `peft_type is "IA3"`},
		{"no kind", func(c map[string]any) { delete(c, "peft_type") }, nil, "peft_type is missing"},
		{"no rank", func(c map[string]any) { delete(c, "r") }, nil, "r is missing"},
		{"a rank of true", set("r", true), nil, "r: "},
		{"rank 0", set("r", 0), nil, "rank: 0"},
		{"a negative rank", set("r", -4), nil, "rank: -4"},
		{"another rank", set("r", 5), nil, "another base or rank"},
		{"alpha 0", set("lora_alpha", 0), nil, "alpha: 0"},
		{"alpha of true", set("lora_alpha", true), nil, "lora_alpha: "},
		{"DoRA", set("use_dora", true), nil, "use_dora is true"},
		{"a trained bias", set("bias", "lora_only"), nil, `bias is "lora_only"`},
		{"a bias of B", set("lora_bias", true), nil, "lora_bias is true"},
		{"whole modules", set("modules_to_save", []string{"classifier"}), nil, `modules_to_save is ["classifier"]`},
		{"parameters", set("target_parameters", []string{"experts.w"}), nil, "target_parameters is"},
		{"token rows", set("trainable_token_indices", []int{3}), nil, "trainable_token_indices is [3]"},
		{"layers twice", set("layer_replication", [][]int{{0, 2}}), nil, "layer_replication is"},
		{"Conv1D", set("fan_in_fan_out", true), nil, "fan_in_fan_out is true"},
		{"a field of tomorrow", set("use_tomorrow", 1), nil, "use_tomorrow is 1"},
		{"PiSSA", set("init_lora_weights", "pissa_niter_4"), nil, `init_lora_weights is "pissa_niter_4"`},
		{"OLoRA", set("init_lora_weights", "olora"), nil, `init_lora_weights is "olora"`},
		{"patterns at odds", set("alpha_pattern", map[string]int{"query": 3, "self.query": 4}), nil, "do not agree"},
		{"no pattern", set("rank_pattern", map[string]int{"(": 3}), nil, "rank_pattern or alpha_pattern"},

		{"no B", nil, func(all map[string]safetensors.Tensor) { delete(all, query+suffixB) }, "lora_A and no lora_B"},
		{"no A", nil, func(all map[string]safetensors.Tensor) { delete(all, query+suffixA) }, "lora_B and no lora_A"},
		{"a module less", nil, func(all map[string]safetensors.Tensor) { delete(all, query+suffixA); delete(all, query+suffixB) },
			"there are no factors of encoder.layer.0.attention.self.query"},
		{"DoRA's magnitude", nil, put(query+".lora_magnitude_vector", 1, 16), "lora_magnitude_vector"},
		{"an embedding's", nil, put("base_model.model.embeddings.word_embeddings.lora_embedding_A", 1, 4, 40), "lora_embedding_A"},
		{"another program's name", nil, put("encoder.layer.0.lora_A.weight", 1, 4, 16), `does not begin with "base_model.model."`},
		{"a wider base", nil, put(query+suffixA, 1, 4, 32), "another base or rank"},
		{"a layer more", nil, func(all map[string]safetensors.Tensor) {
			put("base_model.model.encoder.layer.2.attention.self.query"+suffixA, 1, 4, 16)(all)
			put("base_model.model.encoder.layer.2.attention.self.query"+suffixB, 1, 16, 4)(all)
		}, "it adapts encoder.layer.2.attention.self.query, and the model has no linear layer of that name; its nearest is encoder.layer.0.attention.self.query"},
		{"a NaN", nil, put(query+suffixB, float32(math.NaN()), 16, 4), "is NaN"},
	} {
		dir := altered(t, "bert", tt.config, tt.tensors)
		list, err := Read(dir, open(t, "bert").Linears())
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %d factors, %v; want an error that says %q", tt.name, len(list), err, tt.says)
		} else if !strings.HasPrefix(err.Error(), "adapter "+dir) {
			t.Errorf("%s: %v does not name the folder", tt.name, err)
		}
	}
}

func TestReadRefusesAnotherFamily(t *testing.T) {
	_, err := Read(filepath.Join("testdata", "modernbert", "peft"), open(t, "bert").Linears())
	if err == nil || !strings.Contains(err.Error(), "it adapts layers.0.attn.Wo") {
		t.Errorf("ModernBERT's adapter on BERT: %v", err)
	}
}

func TestReadRefusesAFolderThatIsNone(t *testing.T) {
	linears := open(t, "bert").Linears()
	if _, err := Read(t.TempDir(), linears); err == nil || !strings.Contains(err.Error(), "has no adapter_config.json") {
		t.Errorf("an empty folder: %v", err)
	}
	dir := altered(t, "bert", nil, nil)
	if err := os.Rename(filepath.Join(dir, weightsFile), filepath.Join(dir, "adapter_model.bin")); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, linears); err == nil || !strings.Contains(err.Error(), "is a pickle") {
		t.Errorf("a pickle: %v", err)
	}
	if _, err := ReadConfig(dir); err == nil || !strings.Contains(err.Error(), "is a pickle") {
		t.Errorf("the config of a pickle: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), []byte(`{"r":1,"r":2}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, linears); err == nil || !strings.Contains(err.Error(), configFile) {
		t.Errorf("a member twice: %v", err)
	}
}

// TestReadTakesWhatChangesNothing reads adapters that differ in what a trained
// adapter does not compute.
func TestReadTakesWhatChangesNothing(t *testing.T) {
	m := open(t, "bert")
	want, err := Read(filepath.Join("testdata", "bert", "peft"), m.Linears())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		config  func(map[string]any)
		tensors func(map[string]safetensors.Tensor)
	}{
		{"a pooler that learned nothing", nil, func(all map[string]safetensors.Tensor) {
			put("base_model.model.pooler.dense"+suffixA, 1, 4, 16)(all)
			put("base_model.model.pooler.dense"+suffixB, 0, 16, 4)(all)
		}},
		{"a wrapper", nil, func(all map[string]safetensors.Tensor) {
			for _, name := range slices.Collect(maps.Keys(all)) {
				s := all[name]
				delete(all, name)
				s.Name = strings.Replace(name, peftPrefix, peftPrefix+"bert.", 1)
				all[s.Name] = s
			}
		}},
		{"half the fields", func(c map[string]any) {
			for name := range c {
				if !slices.Contains([]string{"peft_type", "r", "lora_alpha"}, name) {
					delete(c, name)
				}
			}
		}, nil},
		{"dropout and a seed's way", func(c map[string]any) { c["lora_dropout"], c["init_lora_weights"] = 0.1, "gaussian" }, nil},
		{"every linear", func(c map[string]any) { c["target_modules"] = "all-linear" }, nil},
	} {
		got, err := Read(altered(t, "bert", tt.config, tt.tensors), m.Linears())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d factors, %v; want the %d of the file as PEFT made it", tt.name, len(got), err, len(want))
		}
	}
}

// TestSomeLayers reads an adapter that layers_to_transform kept to one layer.
func TestSomeLayers(t *testing.T) {
	dir := altered(t, "bert", func(c map[string]any) { c["layers_to_transform"] = []int{1} }, func(all map[string]safetensors.Tensor) {
		for name := range all {
			if strings.Contains(name, "layer.0") {
				delete(all, name)
			}
		}
	})
	list, err := Read(dir, open(t, "bert").Linears())
	if err != nil || len(list) != 5 {
		t.Errorf("%d factors, %v; want the 5 of layer 1", len(list), err)
	}
}
