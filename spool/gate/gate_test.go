package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
)

// example is HIP-1334 §9.1's gate kai.triage and its hash.
func example(t *testing.T) (Gate, canon.Raw, canon.Hash) {
	t.Helper()
	var v struct {
		Gate struct {
			Spec json.RawMessage
			Hash canon.Hash `json:"gate_spec_hash"`
		}
	}
	readVector(t, "hip1334-vectors.json", &v)
	var g Gate
	if err := canon.Unmarshal(v.Gate.Spec, &g); err != nil {
		t.Fatal(err)
	}
	return g, canon.Raw(v.Gate.Spec), v.Gate.Hash
}

func TestHash(t *testing.T) {
	g, _, want := example(t)
	if err := g.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
	if got, err := g.Hash(); got != want || err != nil {
		t.Errorf("Hash = %s, %v; want %s", got, err, want)
	}
}

// TestHIP1334Item11 is the part of item 11 that needs no server: a gate sent again
// is the same gate, and one changed threshold another, which has to follow.
func TestHIP1334Item11(t *testing.T) {
	g, spec, want := example(t)

	// Optional members that are absent count as null.
	for _, absent := range []string{"previous", "rules/0/test/interval"} {
		short := remove(t, spec, absent)
		var again Gate
		if err := canon.Unmarshal(short, &again); err != nil {
			t.Fatalf("without %s: %v", absent, err)
		}
		if got, err := again.Hash(); got != want || err != nil {
			t.Errorf("without %s: hash %s, %v; want %s", absent, got, err, want)
		}
	}

	changed, _, _ := example(t)
	changed.Rules[0].Test.Tolerance = 0.03
	if got, _ := changed.Hash(); got == want {
		t.Error("a changed tolerance kept the hash")
	}
	if err := changed.Follows(&g); !errors.Is(err, ErrVersion) {
		t.Errorf("a changed gate that does not follow: %v, want ErrVersion", err)
	}
	changed.Version = 2
	if err := changed.Follows(&g); !errors.Is(err, ErrVersion) {
		t.Errorf("version 2 without previous: %v, want ErrVersion", err)
	}
	changed.Previous = ptr(canon.HashOf(nil))
	if err := changed.Follows(&g); !errors.Is(err, ErrVersion) {
		t.Errorf("version 2 after another gate: %v, want ErrVersion", err)
	}
	changed.Previous = &want
	if err := errors.Join(changed.Follows(&g), changed.Validate()); err != nil {
		t.Errorf("version 2 of the gate: %v", err)
	}
	if err := changed.Follows(nil); !errors.Is(err, ErrVersion) {
		t.Errorf("version 2 of no gate: %v, want ErrVersion", err)
	}
	if err := g.Follows(nil); err != nil {
		t.Errorf("the first version: %v", err)
	}
}

// remove cuts a null member out of a JSON text: "/" walks objects and lists.
func remove(t *testing.T, text canon.Raw, path string) canon.Raw {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	names := strings.Split(path, "/")
	at := v
	for _, name := range names[:len(names)-1] {
		if list, ok := at.([]any); ok {
			at = list[name[0]-'0']
			continue
		}
		at = at.(map[string]any)[name]
	}
	object := at.(map[string]any)
	last := names[len(names)-1]
	if was, ok := object[last]; !ok || was != nil {
		t.Fatalf("%s is not a null", path)
	}
	delete(object, last)
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestShapes writes and reads each variant: the members of its kind, all of them.
func TestShapes(t *testing.T) {
	boot := Interval{Kind: ByBootstrap, Draws: 1000, Level: 0.95, Seed: 13, Unit: UnitGroup}
	tests := []struct {
		v    Test
		want string
	}{
		{Test{Kind: Hold, Tolerance: 0.02}, `{"interval":null,"kind":"hold","tolerance":0.02}`},
		{Test{Kind: Hold, Interval: &boot}, `{"interval":{"draws":1000,"kind":"bootstrap","level":0.95,"seed":13,"unit":"group"},"kind":"hold","tolerance":0}`},
		{Test{Kind: Improve, Margin: 0.5, Interval: &Interval{Kind: ByMcNemar, Alpha: 0.05}}, `{"interval":{"alpha":0.05,"kind":"mcnemar"},"kind":"improve","margin":0.5}`},
		{Test{Kind: Floor, Value: 0.9}, `{"kind":"floor","strict":false,"value":0.9}`},
		{Test{Kind: Ceiling, Value: -1, Strict: true}, `{"kind":"ceiling","strict":true,"value":-1}`},
	}
	for _, tt := range tests {
		got, err := canon.Marshal(tt.v)
		if err != nil || string(got) != tt.want {
			t.Errorf("Marshal = %s, %v; want %s", got, err, tt.want)
		}
		var back Test
		if err := canon.Unmarshal(got, &back); err != nil {
			t.Errorf("Unmarshal(%s): %v", got, err)
		}
		if diff := cmp.Diff(tt.v, back); diff != "" {
			t.Errorf("Unmarshal(%s) (-want +got):\n%s", got, diff)
		}
	}
	for text, want := range map[string]string{
		`{"kind":"hold","tolerance":0.1,"margin":0.1}`: "/margin: unknown member",
		`{"kind":"hold"}`:                          "/tolerance: member is missing",
		`{"kind":"floor","value":1}`:               "/strict: member is missing",
		`{"kind":"equal","value":1,"strict":true}`: `/kind: "equal" is not a gate.TestKind`,
		`{"value":1}`:                              "/kind: member is missing",
		`{"kind":"hold","tolerance":1,"interval":{"kind":"t-test"}}`:                                                   "/interval/kind",
		`{"kind":"hold","tolerance":1,"interval":{"kind":"bootstrap","draws":1.0,"level":0.9,"seed":1,"unit":"item"}}`: "/interval/draws: 1.0 is not an integer",
	} {
		var v Test
		if err := canon.Unmarshal([]byte(text), &v); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Unmarshal(%s): %v, want %s", text, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	rule := func(change func(*Rule)) func(*Gate) { return func(g *Gate) { change(&g.Rules[0]) } }
	boot := func(change func(*Interval)) func(*Gate) {
		return rule(func(r *Rule) {
			in := Interval{Kind: ByBootstrap, Draws: 10, Level: 0.95, Unit: UnitItem}
			change(&in)
			r.Test.Interval = &in
		})
	}
	hash := canon.HashOf(nil)
	tests := []struct {
		name   string
		change func(*Gate)
		want   string // "" is accepted
	}{
		{"as it is", func(*Gate) {}, ""},
		{"name", func(g *Gate) { g.Name = "Kai" }, "/name: "},
		{"version 0", func(g *Gate) { g.Version = 0 }, "/version: "},
		{"version 1 with previous", func(g *Gate) { g.Previous = &hash }, "/previous: "},
		{"version 2 without previous", func(g *Gate) { g.Version = 2 }, "/previous: "},
		{"previous is no hash", func(g *Gate) { g.Version, g.Previous = 2, ptr(canon.Hash("x")) }, "/previous: "},
		{"no rules", func(g *Gate) { g.Rules = nil }, "/rules: "},
		{"hold without a baseline", func(g *Gate) { g.Baseline = nil }, "/rules/0/test/kind: "},
		{"floor without a baseline", func(g *Gate) {
			g.Baseline = nil
			g.Rules = []Rule{g.Rules[0]}
			g.Rules[0].Test = Test{Kind: Floor, Value: 0.5}
		}, ""},
		{"dataset", rule(func(r *Rule) { r.Dataset = "" }), "/rules/0/dataset: "},
		{"address", rule(func(r *Rule) { r.DatasetSHA256 = "" }), "/rules/0/dataset_sha256: "},
		{"metric", rule(func(r *Rule) { r.Metric = "" }), "/rules/0/metric: "},
		{"no category", rule(func(r *Rule) { r.Metric, r.Category = "f1", "" }), "/rules/0/category: "},
		{"slice of a computed metric", rule(func(r *Rule) { r.Category = "billing" }), "/rules/0/category: "},
		{"slice of a measure", rule(func(r *Rule) { r.Metric, r.Category = "f1", "billing" }), ""},
		{"negative tolerance", rule(func(r *Rule) { r.Test.Tolerance = -1 }), "/rules/0/test/tolerance: "},
		{"negative margin", rule(func(r *Rule) { r.Test = Test{Kind: Improve, Margin: -1} }), "/rules/0/test/margin: "},
		{"kind of test", rule(func(r *Rule) { r.Test.Kind = "" }), "/rules/0/test/kind: "},
		{"bootstrap", boot(func(*Interval) {}), ""},
		{"kind of interval", boot(func(in *Interval) { in.Kind = "" }), "/rules/0/test/interval/kind: "},
		{"no draws", boot(func(in *Interval) { in.Draws = 0 }), "/rules/0/test/interval/draws: "},
		{"too many draws", boot(func(in *Interval) { in.Draws = 1e9 }), "/rules/0/test/interval/draws: "},
		{"level in percent", boot(func(in *Interval) { in.Level = 95 }), "/rules/0/test/interval/level: "},
		{"level 1", boot(func(in *Interval) { in.Level = 1 }), "/rules/0/test/interval/level: "},
		{"unit", boot(func(in *Interval) { in.Unit = "row" }), "/rules/0/test/interval/unit: "},
		{"alpha", boot(func(in *Interval) { *in = Interval{Kind: ByMcNemar} }), "/rules/0/test/interval/alpha: "},
		{"interval on a measure", func(g *Gate) {
			boot(func(*Interval) {})(g)
			g.Rules[0].Metric = "f1"
		}, "/rules/0/test/interval: "},
		{"McNemar on ece", func(g *Gate) {
			boot(func(in *Interval) { *in = Interval{Kind: ByMcNemar, Alpha: 0.05} })(g)
			g.Rules[0].Metric = ECE
		}, "/rules/0/test/interval: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, _, _ := example(t)
			tt.change(&g)
			err := g.Validate()
			if tt.want == "" {
				if err != nil {
					t.Errorf("Validate: %v", err)
				}
				return
			}
			var at *canon.Error
			if !errors.As(err, &at) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("Validate: %v, want %s", err, tt.want)
			}
		})
	}
}

func FuzzGate(f *testing.F) {
	f.Add([]byte(`{"name":"a","version":1,"previous":null,"baseline":"b","rules":[{"dataset":"d","dataset_sha256":"` + strings.Repeat("0", 64) +
		`","category":"all","metric":"accuracy","higher":true,"test":{"kind":"hold","tolerance":0.02,"interval":{"kind":"mcnemar","alpha":0.05}}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Gate
		if canon.Unmarshal(b, &g) != nil {
			return
		}
		hash, err := g.Hash()
		if err != nil {
			t.Fatalf("Hash of what Unmarshal read from %q: %v", b, err)
		}
		out, _ := canon.Marshal(g)
		var again Gate
		if err := canon.Unmarshal(out, &again); err != nil {
			t.Fatalf("Unmarshal(%s): %v", out, err)
		}
		if h, _ := again.Hash(); h != hash {
			t.Fatalf("%s hashes to %s and then to %s", out, hash, h)
		}
		if g.Validate() == nil {
			g.Evaluate(nil, nil)
		}
	})
}

func TestItems(t *testing.T) {
	const line = `{"brier":0.0478,"confidence":0.83,"correct":true,"group":"tdv:0017","item":"tdv:0017","p_gold":0.83,"question":"priority"}`
	items, err := ParseItems(strings.NewReader(line + "\n"))
	if err != nil || len(items) != 1 || items[0].Label != nil || *items[0].PGold != 0.83 {
		t.Fatalf("ParseItems = %+v, %v", items, err)
	}
	out, sha, err := ItemsNDJSON(items)
	if err != nil || string(out) != line+"\n" || sha != canon.Sum(out) {
		t.Errorf("ItemsNDJSON = %s, %s, %v", out, sha, err)
	}
	// By item, then question, by code point.
	a, b, c := Item{Item: "i10", Question: "x"}, Item{Item: "i2", Question: "a"}, Item{Item: "i2", Question: "b"}
	sorted, _, err := ItemsNDJSON([]Item{c, b, a})
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseItems(strings.NewReader(string(sorted)))
	if diff := cmp.Diff([]Item{a, b, c}, back); err != nil || diff != "" {
		t.Errorf("ParseItems: %v (-want +got):\n%s", err, diff)
	}
	if _, _, err := ItemsNDJSON([]Item{a, b, a}); err == nil {
		t.Error("two rows for one question were accepted")
	}
	lines := strings.SplitAfter(string(sorted), "\n")
	for name, text := range map[string]string{
		"line 2: ": lines[1] + lines[0],
		"line 3: ": lines[0] + lines[1] + lines[1],
		"line 1: ": `{"item":"a","question":"q","correct":1}`,
		"line 4: ": string(sorted) + `{"item":"z","question":"q","extra":1}`,
	} {
		if _, err := ParseItems(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("ParseItems(%q): %v, want %s", text, err, name)
		}
	}

	p := Prediction{Item: "a", Question: "q", Answer: "yes", Probabilities: []float64{0.75, 0.25}}
	out, _, err = PredictionsNDJSON([]Prediction{p})
	if want := `{"answer":"yes","item":"a","probabilities":[0.75,0.25],"question":"q"}` + "\n"; err != nil || string(out) != want {
		t.Errorf("PredictionsNDJSON = %s, %v; want %s", out, err, want)
	}
	if got, err := ParsePredictions(strings.NewReader(string(out))); err != nil || cmp.Diff([]Prediction{p}, got) != "" {
		t.Errorf("ParsePredictions = %+v, %v", got, err)
	}
}

func show(r RuleResult) string {
	b, err := canon.Marshal(r)
	return fmt.Sprintf("%s %v", b, err)
}
