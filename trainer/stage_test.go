package trainer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const triage = `{
  "stage": "triage",
  "init": {"dir": "../base"},
  "takes": [{"suite": "tickets", "file": "tickets.csv", "state": ["text"], "label": "team", "instructions": "which team"},
            {"suite": "typed", "rows": 0}],
  "protect": {"suites": ["typed"], "budget": {"accuracy": 0.02, "ece": 0.03}},
  "evaluation": {"suites": ["tickets"]}
}`

// TestParseStage: what a file leaves out is filled in by its adaptation, and the
// config artifact reads back to an equal stage.
func TestParseStage(t *testing.T) {
	for _, tt := range []struct {
		mode   string
		lrHead float64
		decay  float64
		epochs int
	}{{"full", 2e-4, .01, 3}, {"auto", 2e-4, .01, 3}, {"lora", 5e-4, 0, 3}, {"readout", 1e-3, 0, 200}} {
		src := strings.Replace(triage, "{", `{"adaptation": {"mode": "`+tt.mode+`"},`, 1)
		s, err := ParseStage([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if s.LRHead != tt.lrHead || s.WeightDecay != tt.decay || s.Epochs != tt.epochs || s.Clip != 1 || s.Seed != 1 || s.Output.Name != "triage" {
			t.Errorf("%s: %+v, want the mode's defaults", tt.mode, s)
		}
		config, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseStage(config)
		if err != nil {
			t.Fatalf("reading the config back: %v", err)
		}
		if d := cmp.Diff(s, again, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: the config reads back differently:\n%s", tt.mode, d)
		}
	}
}

// TestPublishedStage: Kai's own published stage file is accepted as it stands,
// less the note of where it was found and the list
// of sources.
func TestPublishedStage(t *testing.T) {
	b, err := os.ReadFile("../test/vectors/kai-stage-spec.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseStage(b); err == nil || !strings.Contains(err.Error(), "_source") {
		t.Errorf("ParseStage = %v, want _source refused", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	delete(doc, "_source")
	delete(doc, "sources") // refused: a build here is made of its takes
	if b, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	s, err := ParseStage(b)
	if err != nil {
		t.Fatal(err)
	}
	if s.LREncoder != 1.5e-5 || s.LRHead != 5e-5 || s.Epochs != 1 || s.TopK != 160 || len(s.Takes) != 8 || s.Takes[1].Times != 2 || *s.Takes[3].Rows != 11000 {
		t.Errorf("ParseStage = %+v, want the published values", s)
	}
}

// TestStageRefuses: each refusal names the field and what to do.
func TestStageRefuses(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"misspelt", `"protect"`, `"protct"`, "did you mean protect?"},
		{"swapped letters", `"stage": "triage"`, `"satge": "triage"`, "did you mean stage?"},
		{"misspelt inside", `"accuracy"`, `"acuracy"`, "protect.budget.acuracy is not a field: did you mean accuracy?"},
		{"misspelt in a list", `"label"`, `"lable"`, "takes.lable is not a field: did you mean label?"},
		{"other case", `"stage": "triage"`, `"Stage": "triage"`, "did you mean stage?"},
		{"nothing like it", `"stage": "triage"`, `"wavelength": 3`, "known are"},
		{"twice", `"stage": "triage"`, `"stage": "triage", "stage": "b"`, "stage"},
		{"unpublished", `"stage"`, `"mixed": 0.1, "stage"`, "mixed: 0.1 is refused: its meaning is not published"},
		{"unpublished inside", `"stage"`, `"retrieval": {"wide": 2, "whole": 0.2}, "stage"`, "not published"},
		{"qlora", `"stage"`, `"adaptation": {"mode": "qlora"}, "stage"`, "adaptation.mode: qlora is not run here yet"},
		{"basis", `"stage"`, `"adaptation": {"mode": "basis"}, "stage"`, "adaptation.mode: basis is not run here yet"},
		{"rank of full", `"stage"`, `"adaptation": {"mode": "full", "rank": 8}, "stage"`, "adaptation.rank: rank, alpha and targets are lora's"},
		{"rank 0", `"stage"`, `"adaptation": {"mode": "lora", "rank": 0}, "stage"`, "adaptation.rank: 0: want at least 1"},
		{"rank below 0", `"stage"`, `"adaptation": {"mode": "lora", "rank": -4}, "stage"`, "adaptation.rank: -4"},
		{"alpha 0", `"stage"`, `"adaptation": {"mode": "lora", "alpha": 0}, "stage"`, "adaptation.alpha: 0: want above 0"},
		{"alpha true", `"stage"`, `"adaptation": {"mode": "lora", "alpha": true}, "stage"`, "alpha: want a number"},
		{"chosen by a person", `"stage"`, `"adaptation": {"mode": "auto", "chose": "basis"}, "stage"`, "adaptation.chose"},
		{"no such mode", `"stage"`, `"adaptation": {"mode": "ful"}, "stage"`, `"ful" is not an adaptation`},
		{"strength over 1", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"strength": 1.5}`, "protect.projection.strength: 1.5 is outside [0, 1]"},
		{"strength below 0", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"strength": -0.1}`, "protect.projection.strength: -0.1"},
		{"strength no number", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"strength": "NaN"}`, "strength: want a number"},
		{"energy", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"energy": 0}`, "protect.projection.energy"},
		{"cap", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"cap": 2}`, "protect.projection.cap"},
		{"one row", `"suites": ["typed"]`, `"suites": ["typed"], "projection": {"rows": 1}`, "protect.projection.rows: 1"},
		{"nothing to protect", `"suites": ["typed"], "budget": {"accuracy": 0.02, "ece": 0.03}`, `"projection": {"strength": 1}`, "there is nothing to protect"},
		{"nothing to preserve", `"suites": ["typed"], "budget": {"accuracy": 0.02, "ece": 0.03}`, `"distillation": true`, "there is nothing to preserve"},
		{"weight", `"suites": ["typed"]`, `"suites": ["typed"], "distillation": {"weight": -1}`, "protect.distillation.weight"},
		{"drift", `"suites": ["typed"]`, `"suites": ["typed"], "drift": 0`, "protect.drift"},
		{"capability's name", `"suites": ["typed"]`, `"suites": ["typed"], "capabilities": ["triage"]`, "protect.capabilities[0]"},
		{"suite twice", `"suites": ["typed"]`, `"suites": ["typed", "typed"]`, "protect.suites: typed is named twice"},
		{"no such term", `"stage"`, `"objective": {"terms": [{"kind": "margin", "weight": 1}]}, "stage"`, "is not a term"},
		{"term without weight", `"stage"`, `"objective": {"terms": [{"kind": "consistency"}]}, "stage"`, "objective.terms[0].weight"},
		{"consistency's margin", `"stage"`, `"objective": {"terms": [{"kind": "consistency", "weight": 1, "margin": 1}]}, "stage"`, "consistency has none"},
		{"margin without one", `"stage"`, `"objective": {"terms": [{"kind": "hard_margin", "weight": 1}]}, "stage"`, "objective.terms[0].margin"},
		{"lora of full", `"stage"`, `"output": {"kind": "lora"}, "stage"`, "output.kind: lora is what adaptation.mode lora makes"},
		{"type", `"stage"`, `"epochs": "3", "stage"`, "epochs: want a whole number"},
		{"fraction", `"stage"`, `"epochs": 1.5, "stage"`, "epochs: want a whole number"},
		{"range", `"stage"`, `"warmup": 1.5, "stage"`, "warmup: 1.5 is outside [0, 1]"},
		{"a readout's rate", `"stage"`, `"adaptation": {"mode": "readout"}, "lr_encoder": 0.001, "lr_head": 0, "stage"`, "lr_head: nothing is trained"},
		{"a choice of one", `"stage"`, `"top_k": 1, "stage"`, "top_k: 1 leaves nothing"},
		{"no room", `"stage"`, `"max_len": 7, "stage"`, "max_len: 7 holds no question"},
		{"negative seed", `"stage"`, `"seed": -1, "stage"`, "seed"},
		{"bad name", `"stage": "triage"`, `"stage": "Triage!"`, "stage:"},
		{"no takes", `"takes": [{`, `"takes": [], "x": [{`, "x is not a field"},
		{"protects what no take has", `"suites": ["typed"]`, `"suites": ["absent"]`, `"absent" is in no take`},
		{"both", `"suites": ["tickets"]`, `"suites": ["typed"]`, "must either hold or improve"},
		{"budget of nothing", `"suites": ["typed"], "budget"`, `"budget"`, "bounds nothing"},
		{"output", `"stage"`, `"output": {"kind": "merged"}, "stage"`, "output.kind: merged is not run here yet"},
		{"data elsewhere", `"stage"`, `"dataset": {"uri": "hf://a/b"}, "stage"`, "dataset.uri"},
		{"not an object", triage, `[]`, ""},
		{"not JSON", triage, `{"stage": `, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := strings.Replace(triage, tt.old, tt.new, 1)
			if src == triage {
				t.Fatalf("%q is not in the file", tt.old)
			}
			_, err := ParseStage([]byte(src))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "stage file: ") {
				t.Errorf("ParseStage = %v, want an error with %q", err, tt.want)
			}
		})
	}
	for _, ok := range []string{`"mixed": 0.05,`, `"retrieval": {"wide": 1.0, "whole": 0.2},`, `"lang": null,`} {
		if _, err := ParseStage([]byte(strings.Replace(triage, "{", "{"+ok, 1))); err != nil {
			t.Errorf("with %s: %v, want the published default accepted", ok, err)
		}
	}
}

// TestProtectDefaults: naming a suite is enough; what a file turns off is not there.
func TestProtectDefaults(t *testing.T) {
	on := Protect{
		Projection:   &Projection{Strength: 1, Energy: .99, Cap: .25, Rows: 512},
		Distillation: &Distillation{Weight: 1, Rows: 512},
	}
	for _, tt := range []struct {
		name, say string
		want      Protect
	}{
		{"left out", ``, on},
		{"true", `, "distillation": true`, on},
		{"off", `, "projection": {"strength": 0}, "distillation": false`, Protect{}},
		{"null", `, "projection": null, "distillation": null`, Protect{}},
		{"half", `, "projection": {"strength": 0.5}, "distillation": {"rows": 64}`, Protect{
			Projection:   &Projection{Strength: .5, Energy: .99, Cap: .25, Rows: 512},
			Distillation: &Distillation{Weight: 1, Rows: 64},
		}},
	} {
		s, err := ParseStage([]byte(strings.Replace(triage, `"suites": ["typed"]`, `"suites": ["typed"]`+tt.say, 1)))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if d := cmp.Diff(tt.want, Protect{Projection: s.Protect.Projection, Distillation: s.Protect.Distillation}); d != "" {
			t.Errorf("%s:\n%s", tt.name, d)
		}
	}
	for _, src := range []string{
		strings.Replace(triage, `"protect": {"suites": ["typed"], "budget": {"accuracy": 0.02, "ece": 0.03}},`, "", 1),
		strings.Replace(strings.Replace(triage, "{", `{"adaptation": {"mode": "readout"},`, 1), `"budget": {"acc`, `"drift": 0.1, "budget": {"acc`, 1),
	} {
		s, err := ParseStage([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if s.Protect.Projection != nil || s.Protect.Distillation != nil || s.Protect.Drift != nil {
			t.Errorf("a stage that needs no protection has %+v", s.Protect)
		}
	}
}

func FuzzParseStage(f *testing.F) {
	f.Add([]byte(triage))
	f.Add([]byte(`{"stage":"a","takes":[{"suite":"b"}],"protect":null,"adaptation":null,"budget":{"ctx":1}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := ParseStage(src)
		if err != nil {
			return
		}
		config, err := s.Config()
		if err != nil {
			t.Fatalf("Config of an accepted stage: %v", err)
		}
		if _, err := ParseStage(config); err != nil {
			t.Fatalf("the config of an accepted stage is refused: %v\n%s", err, config)
		}
	})
}
