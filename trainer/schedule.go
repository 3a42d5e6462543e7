package trainer

import "math"

// Schedule is the learning rate over a run, as a share of its peak: a linear
// rise over the first Warm steps, then flat, then a linear fall over the last
// Cool steps toward a tenth, which the step after them would have. It is Kai's published schedule (hanzo-train cluster,
// revision f23d8ad6). The zero Schedule is constant.
type Schedule struct {
	Total, Warm, Cool int
}

// Span is the schedule of total steps of which the shares warmup and cool, both
// in [0, 1], rise and fall. At least one step rises, and none both rises and
// falls.
func Span(total int, warmup, cool float64) Schedule {
	warm := max(1, int(math.Floor(float64(total)*warmup)))
	fall := max(1, int(math.Floor(float64(total)*cool)))
	return Schedule{Total: total, Warm: warm, Cool: max(0, min(fall, total-warm))}
}

// Rate is the share of the peak rate at a step counted from 0. It is a pure
// function of the step: a resumed run cannot drift from it.
func (s Schedule) Rate(step int) float64 {
	if s.Total == 0 {
		return 1
	}
	if step < s.Warm {
		return float64(step+1) / float64(s.Warm)
	}
	stable := s.Total - s.Cool
	if step < stable {
		return 1
	}
	return 1 - 0.9*float64(step-stable)/float64(s.Total-stable)
}
