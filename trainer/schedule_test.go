package trainer

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

// TestSchedule holds the schedule to Kai's published vectors.
func TestSchedule(t *testing.T) {
	var vectors struct {
		Rate []struct {
			Step, Warm, Cool, Total int
			Rate                    float64
		}
		Span []struct {
			Total        int
			Warmup, Cool float64
			Warm         int
			CoolSteps    int `json:"cool_steps"`
		}
	}
	b, err := os.ReadFile("../test/vectors/kai-trainer-schedule.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors.Rate {
		s := Schedule{Total: v.Total, Warm: v.Warm, Cool: v.Cool}
		if got := s.Rate(v.Step); got != v.Rate {
			t.Errorf("%+v.Rate(%d) = %v, want %v", s, v.Step, got, v.Rate)
		}
	}
	for _, v := range vectors.Span {
		want := Schedule{Total: v.Total, Warm: v.Warm, Cool: v.CoolSteps}
		if got := Span(v.Total, v.Warmup, v.Cool); got != want {
			t.Errorf("Span(%d, %v, %v) = %+v, want %+v", v.Total, v.Warmup, v.Cool, got, want)
		}
	}
}

// TestRateRange: whatever the length and the shares, every step's rate is
// positive and at most the peak.
func TestRateRange(t *testing.T) {
	for total := 1; total <= 40; total++ {
		for _, share := range [][2]float64{{0, 0}, {1, 1}, {.03, .3}, {.5, .5}, {0, 1}} {
			s := Span(total, share[0], share[1])
			for step := range total {
				if r := s.Rate(step); !(r > 0 && r <= 1) || math.IsNaN(r) {
					t.Errorf("Span(%d, %v).Rate(%d) = %v, want in (0, 1]", total, share, step, r)
				}
			}
		}
	}
	if r := (Schedule{}).Rate(12345); r != 1 {
		t.Errorf("zero Schedule's rate = %v, want 1", r)
	}
}
