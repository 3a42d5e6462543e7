package cpu

import "github.com/hanzoai/link/kernels"

func (d *Device) Linear(y, x, w, bias kernels.Mem, t, in, out int) {
	needLinear(y, x, w, bias, t, in, out)
	var after func(i, m, j, n int)
	if !bias.None() {
		after = func(i, m, j, n int) {
			for ; m > 0; i, m = i+1, m-1 {
				row := y.Host[i*out+j:][:n]
				d.table.add(row, row, bias.Host[j:j+n])
			}
		}
	}
	d.product(y.Host, out, t, out, in, view{x.Host, in, 1}, view{w.Host, in, 1}, fresh, after)
}

func (d *Device) LinearInput(dx, dy, w kernels.Mem, t, in, out int, add bool) {
	needLinear(dy, dx, w, kernels.Mem{}, t, in, out)
	how := fresh
	if add {
		how = chain
	}
	d.product(dx.Host, in, t, in, out, view{dy.Host, out, 1}, view{w.Host, 1, in}, how, nil)
}

func (d *Device) LinearWeight(g *kernels.Grad, dy, x kernels.Mem, t, in, out int) {
	needGrad("LinearWeight", g, out*in)
	need("LinearWeight dy", dy, t*out)
	need("LinearWeight x", x, t*in)
	for at := 0; at < t; {
		n := min(kernels.Block-g.Fill, t-at)
		a, b := view{dy.Host[at*out:], 1, out}, view{x.Host[at*in:], 1, in}
		at += n
		if n == kernels.Block {
			// A whole block goes from the registers to the sum.
			d.product(g.Sum.Host, in, out, in, n, a, b, total, nil)
			continue
		}
		how := chain
		if g.Fill == 0 {
			how = fresh
		}
		d.product(g.Open.Host, in, out, in, n, a, b, how, nil)
		if g.Fill += n; g.Fill == kernels.Block {
			d.Close(g)
		}
	}
}

func (d *Device) Close(g *kernels.Grad) {
	if g.Fill > 0 {
		d.Add(g.Sum, g.Sum, g.Open)
		g.Fill = 0
	}
}

// columns cuts d columns over the threads, for sums that run down them.
func (d *Device) columns(t, n, cost int, f func(w *worker, from, to int)) {
	per := panels(panels(n, len(d.workers)), lanes) * lanes
	d.span(n, max(per, lanes), t*cost, f)
}

// sums runs add over t tokens by the block rule, for the columns of g: add takes
// token i into columns [from, to) of g.Open.
func (d *Device) sums(g *kernels.Grad, t, n, cost int, add func(w *worker, i, from, to int)) {
	fill := g.Fill
	d.columns(t, n, cost, func(w *worker, from, to int) {
		open, sum := g.Open.Host[from:to], g.Sum.Host[from:to]
		at := fill
		for i := range t {
			if at == 0 {
				clear(open)
			}
			add(w, i, from, to)
			if at++; at == kernels.Block {
				w.t.add(sum, sum, open)
				at = 0
			}
		}
	})
	g.Fill = (fill + t) % kernels.Block
}

func (d *Device) ColumnSum(g *kernels.Grad, dy kernels.Mem, t, n int) {
	needGrad("ColumnSum", g, n)
	need("ColumnSum dy", dy, t*n)
	d.sums(g, t, n, moveCost, func(w *worker, i, from, to int) {
		open := g.Open.Host[from:to]
		w.t.add(open, open, dy.Host[i*n+from:i*n+to])
	})
}

func (d *Device) LayerNorm(y, stats, x, gamma, beta kernels.Mem, t, n int, eps float32) {
	needNorm(y, stats, x, gamma, t, n)
	if !beta.None() {
		need("LayerNorm beta", beta, n)
	}
	d.span(t, rows(n), n*normCost, func(w *worker, from, to int) {
		for i := from; i < to; i++ {
			stats.Host[2*i], stats.Host[2*i+1] = w.t.norm(y.Host[i*n:(i+1)*n], x.Host[i*n:(i+1)*n], gamma.Host, beta.Host, eps)
		}
	})
}

func (d *Device) LayerNormBack(dx kernels.Mem, dgamma, dbeta *kernels.Grad, dy, x, stats, gamma kernels.Mem, t, n int, add bool) {
	needNorm(dx, stats, x, gamma, t, n)
	need("LayerNormBack dy", dy, t*n)
	// The parameters first: dx may be dy.
	if dgamma != nil {
		needGrad("LayerNormBack dgamma", dgamma, n)
		d.sums(dgamma, t, n, normCost, func(w *worker, i, from, to int) {
			w.t.normGrad(dgamma.Open.Host[from:to], dy.Host[i*n+from:i*n+to], x.Host[i*n+from:i*n+to], stats.Host[2*i], stats.Host[2*i+1])
		})
	}
	if dbeta != nil {
		d.ColumnSum(dbeta, dy, t, n)
	}
	d.span(t, rows(n), n*normCost, func(w *worker, from, to int) {
		for i := from; i < to; i++ {
			w.t.normBack(dx.Host[i*n:(i+1)*n], dy.Host[i*n:(i+1)*n], x.Host[i*n:(i+1)*n], gamma.Host, stats.Host[2*i], stats.Host[2*i+1], add)
		}
	})
}
