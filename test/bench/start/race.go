//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// result is what one contender needed over all rounds.
type result struct {
	contender contender
	starts    []time.Duration // request to main, one a round
}

// race starts every contender once a round, so that whatever else the machine
// does falls on all of them alike. Each round begins with the next contender. A
// round before the first warms caches and is not counted; a contender that fails
// in it cannot run here, and one that fails later is an error of the benchmark.
func race(ctx context.Context, contenders []contender, rounds int) ([]result, error) {
	results := make([]result, len(contenders))
	for i, c := range contenders {
		results[i].contender = c
	}
	for round := range rounds + 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range results {
			r := &results[(i+round)%len(results)]
			if r.contender.why != "" {
				continue
			}
			start, err := once(r.contender)
			switch {
			case err != nil && round == 0:
				r.contender.why = err.Error()
			case err != nil:
				return nil, fmt.Errorf("round %d, %s: %w", round, r.contender.name, err)
			case round > 0:
				r.starts = append(r.starts, start)
			}
		}
	}
	return results, nil
}

func once(c contender) (time.Duration, error) {
	if c.ready != nil {
		if err := c.ready(); err != nil {
			return 0, err
		}
	}
	return c.start()
}

// quantile is the smallest sample that at least the fraction q of them do not
// exceed (nearest rank). There must be a sample.
func quantile(samples []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(q * float64(len(sorted)))
	if float64(rank) < q*float64(len(sorted)) {
		rank++
	}
	return sorted[max(rank, 1)-1]
}
