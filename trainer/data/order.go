package data

import "math/bits"

// An order is a permutation of [0, n) computed index by index, so that the place
// of a row in an epoch is a pure function of (seed, epoch, index) and a resumed
// run needs no state to find it.
//
// It is a balanced Feistel network over the smallest even number of bits that
// holds n, at least 8 (a smaller one has too few permutations to look random),
// walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002). Its round function and keys are SplitMix64's finalizer
// (Steele, Lea and Flood, 2014). It shuffles; it does not hide anything.
type order struct {
	n    uint64
	half uint
	mask uint64
	keys [rounds]uint64
}

// rounds is twice what Luby and Rackoff need for a random-looking permutation
// with ideal rounds; ours are not ideal.
const rounds = 8

func newOrder(seed, epoch uint64, n int) order {
	half := uint(max(4, (bits.Len64(uint64(max(n, 1)-1))+1)/2))
	o := order{n: uint64(n), half: half, mask: 1<<half - 1}
	state := mix(seed ^ mix(epoch+golden))
	for r := range o.keys {
		state += golden
		o.keys[r] = mix(state)
	}
	return o
}

// at is the element at place i, 0 ≤ i < n.
func (o order) at(i int) int {
	x := uint64(i)
	for {
		left, right := x>>o.half, x&o.mask
		for _, k := range o.keys {
			left, right = right, left^mix(right^k)&o.mask
		}
		if x = left<<o.half | right; x < o.n {
			return int(x)
		}
	}
}

// A Cycle is an endless walk over n things, one permutation of them after
// another, so that n steps in a row from a multiple of n read each once. Where it
// stands is a pure function of the seed and the place: a resumed run needs no
// state to find it.
type Cycle struct {
	seed uint64
	n    int
}

// NewCycle is the walk over n things, 1 or more, that a seed names.
func NewCycle(seed uint64, n int) Cycle { return Cycle{seed, n} }

// At is the element at place i ≥ 0, in [0, n).
func (c Cycle) At(i int) int {
	return newOrder(c.seed, uint64(i/c.n), c.n).at(i % c.n)
}

// golden is SplitMix64's increment, 2^64 over the golden ratio.
const golden = 0x9e3779b97f4a7c15

// mix is SplitMix64's finalizer, a bijection.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
