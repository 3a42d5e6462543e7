//go:build linux

package launcher

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(Rate{Every: time.Second, Burst: 3})
		check := func(want time.Duration) {
			t.Helper()
			if got := b.take(); got != want {
				t.Errorf("take() = %v, want %v", got, want)
			}
		}
		for range 3 {
			check(0)
		}
		check(time.Second)
		time.Sleep(400 * time.Millisecond)
		check(600 * time.Millisecond)
		time.Sleep(600 * time.Millisecond)
		check(0)
		check(time.Second)
		// However long nothing happened, no more than the burst is saved.
		time.Sleep(time.Hour)
		for range 3 {
			check(0)
		}
		check(time.Second)

		start := time.Now()
		if !b.wait(t.Context()) || time.Since(start) != time.Second {
			t.Errorf("wait took %v, want a second", time.Since(start))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if b.wait(ended) {
			t.Error("wait took a token after its context's end")
		}
	})
}

func TestLogOfAFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		q := newQuiet(slog.New(slog.NewTextHandler(&log, nil)))
		for range 1000 {
			q.warn("refused")
		}
		if n := strings.Count(log.String(), "refused"); n != logRate.Burst {
			t.Errorf("%d lines, want %d", n, logRate.Burst)
		}
		time.Sleep(time.Minute)
		q.warn("refused")
		if !strings.Contains(log.String(), "left_out=950") {
			t.Errorf("no word of what was left out:\n%s", log.String()[max(0, log.Len()-200):])
		}
	})
}
