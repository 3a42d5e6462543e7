package kai

import "github.com/hanzoai/link/trainer/decision"

// retrievalWeight is the weight of the retrieval loss beside the head's.
const retrievalWeight = 0.1

// Conversions to float64 around products, here and below, forbid the compiler
// to fuse them with the sum that follows: results are the same on every machine.

// crossEntropy returns -Σ target·log softmax(z) and adds scale times its
// gradient to dz. A logit of -Inf is outside the softmax; its target must be 0.
func crossEntropy(z, target []float64, scale float64, dz []float64) float64 {
	p, logSum := softmax(z, 1)
	loss, mass := 0.0, 0.0
	for i, y := range target {
		if y != 0 {
			loss += float64(y * (logSum - z[i]))
			mass += y // 1, but for the rounding of a target given in decimals
		}
	}
	for i, y := range target {
		dz[i] += float64(scale * (float64(mass*p[i]) - y))
	}
	return loss
}

// ranked returns the ranked probability score of softmax(z) against the target,
//
//	1/(n-1) Σ_k (Σ_{j≤k} p_j - Σ_{j≤k} target_j)²
//
// with the options in the order of their levels (Epstein, 1969), and adds scale
// times its gradient to dz. level[i] is option i's level.
func ranked(z, target []float64, level []int, scale float64, dz []float64) float64 {
	n := len(z)
	p, _ := softmax(z, 1)
	at := make([]int, n) // at[k]: the option of level k
	for i, k := range level {
		at[k] = i
	}
	// over[k] is the cumulative difference up to level k; the last is 0.
	loss, cum := 0.0, 0.0
	over := make([]float64, n)
	for k := range n - 1 {
		cum += p[at[k]] - target[at[k]]
		over[k] = cum
		loss += float64(cum * cum)
	}
	// dLoss/dp of level k is 2/(n-1) Σ_{j≥k} over[j]; then through the softmax.
	dp, tail, mean := make([]float64, n), 0.0, 0.0
	for k := n - 1; k >= 0; k-- {
		tail += over[k]
		dp[at[k]] = 2 * tail / float64(n-1)
	}
	for i := range p {
		mean += float64(p[i] * dp[i])
	}
	for i := range p {
		dz[i] += float64(scale * p[i] * (dp[i] - mean))
	}
	return loss / float64(n-1)
}

// headLoss is the loss of one question on the head's logits, -Inf for an option
// left out, and adds scale times its gradient to dz.
func headLoss(in *Input, z []float64, scale float64, dz []float64) (entropy, rps float64) {
	entropy = crossEntropy(z, in.Target, scale, dz)
	if in.Type == decision.Score {
		rps = ranked(z, in.Target, in.Order, scale, dz)
	}
	return entropy, rps
}
