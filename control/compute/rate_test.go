package compute

import (
	"fmt"
	"testing"
	"time"
)

// TestLimiter: what was taken comes back with time and no further than the burst, a
// clock that goes back gives nothing, and callers who are full again are forgotten.
func TestLimiter(t *testing.T) {
	now := time.Date(2026, 10, 22, 17, 4, 5, 0, time.UTC)
	l := newLimiter(Rate{Burst: 2, PerSecond: 2}, func() time.Time { return now })
	for i, step := range []struct {
		pass time.Duration
		wait time.Duration
	}{
		{0, 0}, {0, 0}, {0, 500 * time.Millisecond},
		{250 * time.Millisecond, 250 * time.Millisecond},
		{250 * time.Millisecond, 0},
		{time.Hour, 0}, {0, 0}, {0, 500 * time.Millisecond},
		{-time.Hour, 500 * time.Millisecond},
	} {
		now = now.Add(step.pass)
		wait, ok := l.take("a")
		if wait != step.wait || ok != (step.wait == 0) {
			t.Errorf("step %d: wait %v, taken %v; want %v", i, wait, ok, step.wait)
		}
	}
	for i := range maxBuckets {
		l.take(fmt.Sprint(i))
	}
	now = now.Add(24 * time.Hour)
	l.take("another")
	if len(l.buckets) != 1 {
		t.Errorf("%d callers are remembered", len(l.buckets))
	}
}
