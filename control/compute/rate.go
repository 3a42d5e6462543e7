package compute

import (
	"sync"
	"time"
)

// A Rate is how often something may be done: Burst times at once, and then
// PerSecond.
type Rate struct {
	Burst     int
	PerSecond float64
}

// maxBuckets bounds the callers remembered. One whose bucket is full again need not
// be.
const maxBuckets = 10_000

// A limiter counts for each of many callers. It may be used concurrently.
type limiter struct {
	rate Rate
	now  func() time.Time

	mu      sync.Mutex // guards buckets
	buckets map[string]bucket
}

// A bucket is how much was left at an instant.
type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(r Rate, now func() time.Time) *limiter {
	return &limiter{rate: r, now: now, buckets: make(map[string]bucket)}
}

// take takes one from a caller's bucket, or says how long until there is one.
func (l *limiter) take(caller string) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if len(l.buckets) >= maxBuckets {
		for name, b := range l.buckets {
			if l.fill(b, now) >= float64(l.rate.Burst) {
				delete(l.buckets, name)
			}
		}
	}
	left := float64(l.rate.Burst)
	if b, held := l.buckets[caller]; held {
		left = l.fill(b, now)
	}
	if left < 1 {
		return time.Duration((1 - left) / l.rate.PerSecond * float64(time.Second)), false
	}
	l.buckets[caller] = bucket{left - 1, now}
	return 0, true
}

// fill is what b has come to by now. A clock that went back fills nothing.
func (l *limiter) fill(b bucket, now time.Time) float64 {
	gained := max(0, now.Sub(b.at).Seconds()) * l.rate.PerSecond
	return min(float64(l.rate.Burst), b.left+gained)
}
