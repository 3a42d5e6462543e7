package trainer

import (
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/kai"
)

// TestChoose: auto is full where it fits and lora where it does not, says why, and
// stays what it was chosen to be.
func TestChoose(t *testing.T) {
	m, _, err := kai.Init(kai.InitConfig{Size: "nano", Seed: 1, Texts: []string{"a b c"}}, cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	auto := strings.Replace(triage, "{", `{"adaptation": {"mode": "auto"},`, 1)
	for _, tt := range []struct {
		available uint64
		mode, why string
	}{{0, Full, "full: every parameter"}, {1 << 40, Full, "full: every parameter"}, {1 << 20, LoRA, "lora: full takes "}} {
		src, err := Choose([]byte(auto), m, tt.available)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ParseStage(src)
		if err != nil {
			t.Fatal(err)
		}
		if s.Mode() != tt.mode || !strings.HasPrefix(s.Adaptation.Chose, tt.why) || s.Adaptation.Mode != Auto {
			t.Errorf("with %d bytes: %s, %q", tt.available, s.Mode(), s.Adaptation.Chose)
		}
		if tt.mode == LoRA && (s.Adaptation.Rank != 8 || s.LRHead != 5e-4) {
			t.Errorf("lora was chosen without its defaults: %+v", s.Adaptation)
		}
		again, err := Choose(src, m, 1)
		if err != nil || string(again) != string(src) {
			t.Errorf("chosen twice: %s (%v)", again, err)
		}
	}
	// What is frozen needs no more than its weight.
	frozen := strings.Replace(auto, "{", `{"frozen": ["encoder.", "head."],`, 1)
	if src, err := Choose([]byte(frozen), m, 5*uint64(m.Size())); err != nil || !strings.Contains(string(src), `"full: `) {
		t.Errorf("with everything frozen: %s (%v)", src, err)
	}
	if src, err := Choose([]byte(triage), m, 1); err != nil || string(src) != triage {
		t.Errorf("a stage that names its adaptation became %s (%v)", src, err)
	}
}
