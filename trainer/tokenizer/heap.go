package tokenizer

// A heap is a slice whose first element goes before all others; push and pop
// keep it one. They are container/heap's without an allocation for every
// element.

type ordered[T any] interface{ before(T) bool }

func push[T ordered[T]](h []T, v T) []T {
	h = append(h, v)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	return h
}

func pop[T ordered[T]](h []T) ([]T, T) {
	top, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return h, top
}
