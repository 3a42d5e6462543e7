package gate

import (
	"math"
	"math/big"
	"slices"
)

// splitMix64 is Steele, Lea and Flood's generator (2014), as HIP-1334 §9.2 has it.
type splitMix64 struct{ state uint64 }

func (r *splitMix64) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns an unbiased number under n by rejection.
func (r *splitMix64) below(n uint64) uint64 {
	zone := uint64(math.MaxUint64) - math.MaxUint64%n
	for {
		if z := r.next(); z < zone {
			return z % n
		}
	}
}

// Bootstrap returns the percentile interval of a statistic: draws times, it draws
// units numbers under units, with replacement, and computes the statistic of them.
// One stream seeded with seed serves all draws. level is in (0, 1); units and draws
// are at least 1. The slice given to statistic is reused.
//
// The interval's ends are ranks computed in float64: α = 1 − level, ⌊α/2·draws⌋ and
// ⌈(1 − α/2)·draws⌉ − 1, from 0.
func Bootstrap(units int, draws uint32, level float64, seed uint64, statistic func(drawn []int) float64) (lo, hi float64) {
	r := splitMix64{seed}
	drawn := make([]int, units)
	values := make([]float64, draws)
	for i := range values {
		for j := range drawn {
			drawn[j] = int(r.below(uint64(units)))
		}
		values[i] = statistic(drawn)
	}
	slices.Sort(values)
	// Variables: as constants 1-0.9 would be exact, and another rank.
	alpha := 1 - level
	n := float64(draws)
	first := int(math.Floor(alpha / 2 * n))
	last := int(math.Ceil((1-alpha/2)*n)) - 1
	return values[first], values[last]
}

// McNemar returns the exact two-sided p-value for b and c discordant pairs: the
// chance of a split at least as uneven if both sides were equally likely.
//
// The binomial terms need more exponent than a float64 has from some 2,000 pairs
// on, and are summed in 256 bits.
func McNemar(b, c uint64) float64 {
	n, least := b+c, min(b, c)
	if n == 0 {
		return 1
	}
	precise := func() *big.Float { return new(big.Float).SetPrec(256) }
	term := precise().SetMantExp(precise().SetInt64(1), -int(n)) // C(n, 0) / 2ⁿ
	sum := precise()
	for k := uint64(0); ; k++ {
		sum.Add(sum, term)
		if k == least {
			break
		}
		term.Mul(term, precise().SetUint64(n-k))
		term.Quo(term, precise().SetUint64(k+1))
	}
	p, _ := sum.Float64()
	return min(1, 2*p)
}
