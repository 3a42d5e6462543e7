//go:build linux

package launcher

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Rate is how often something may happen: Burst times at once, and then once in
// every Every.
type Rate struct {
	Every time.Duration
	Burst int
}

// The rates that bound what an agent can make the launcher do, on however many
// connections. None is near what an agent that works needs; each keeps a flood under
// half a core, of the dearest packets there are (64 KiB of numbers, 7 ms).
var (
	defaultStarts = Rate{Every: time.Second, Burst: 30}            // starts, each of which builds a sandbox
	requestRate   = Rate{Every: 20 * time.Millisecond, Burst: 200} // packets
	connectRate   = Rate{Every: 500 * time.Millisecond, Burst: 20} // connections, each of which parks a stage
	logRate       = Rate{Every: 500 * time.Millisecond, Burst: 50} // lines that an agent causes
)

// bucket is a Rate's token bucket, on the monotonic clock. It may be used by
// several goroutines.
type bucket struct {
	rate Rate

	mu    sync.Mutex
	fresh time.Time // when the bucket is full again
}

func newBucket(r Rate) *bucket { return &bucket{rate: r} }

// take takes a token if there is one, or says after how long there will be.
func (b *bucket) take() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.fresh.Before(now) {
		b.fresh = now
	}
	// A token taken makes the bucket full that much later; it is empty when that
	// is Burst tokens away.
	full := time.Duration(b.rate.Burst) * b.rate.Every
	if wait := b.fresh.Add(b.rate.Every).Sub(now) - full; wait > 0 {
		return wait
	}
	b.fresh = b.fresh.Add(b.rate.Every)
	return 0
}

// wait takes a token, when there is one, or returns false at ctx's end.
func (b *bucket) wait(ctx context.Context) bool {
	for {
		d := b.take()
		if d == 0 {
			return ctx.Err() == nil
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// quiet logs what an agent can cause as often as it likes, at logRate at most. A
// line says how many were left out before it.
type quiet struct {
	log    *slog.Logger
	bucket *bucket

	mu      sync.Mutex
	dropped int
}

func newQuiet(log *slog.Logger) *quiet { return &quiet{log: log, bucket: newBucket(logRate)} }

func (q *quiet) info(message string, args ...any) { q.say(slog.LevelInfo, message, args) }
func (q *quiet) warn(message string, args ...any) { q.say(slog.LevelWarn, message, args) }

func (q *quiet) say(level slog.Level, message string, args []any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bucket.take() > 0 {
		q.dropped++
		return
	}
	if q.dropped > 0 {
		args = append(args, "left_out", q.dropped)
		q.dropped = 0
	}
	q.log.Log(context.Background(), level, message, args...)
}
