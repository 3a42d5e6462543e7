package cpu

import (
	"fmt"

	"github.com/hanzoai/link/kernels"
)

// need panics unless m holds n values. what names the operation and operand.
func need(what string, m kernels.Mem, n int) {
	if m.Len != n || len(m.Host) != n {
		panic(fmt.Sprintf("cpu: %s has %d values (%d in host memory), not %d", what, m.Len, len(m.Host), n))
	}
}

func needGrad(op string, g *kernels.Grad, n int) {
	need(op+" Sum", g.Sum, n)
	need(op+" Open", g.Open, n)
	if g.Fill < 0 || g.Fill >= kernels.Block {
		panic(fmt.Sprintf("cpu: %s has Fill %d, not in [0, %d)", op, g.Fill, kernels.Block))
	}
}

func needLinear(y, x, w, bias kernels.Mem, t, in, out int) {
	need("Linear output", y, t*out)
	need("Linear input", x, t*in)
	need("Linear weight", w, out*in)
	if !bias.None() {
		need("Linear bias", bias, out)
	}
}

// needRows checks a move between packed rows and the rows of table that ids name.
func needRows(op string, packed, table kernels.Mem, ids []int32, d int) {
	need(op+" rows", packed, len(ids)*d)
	needIDs(op, table, ids, d)
}

func needIDs(op string, table kernels.Mem, ids []int32, d int) {
	need(op+" table", table, table.Len)
	for i, id := range ids {
		if id < 0 || (int(id)+1)*d > table.Len {
			panic(fmt.Sprintf("cpu: %s: id %d at %d is outside a table of %d values in rows of %d", op, id, i, table.Len, d))
		}
	}
}

func needNorm(y, stats, x, gamma kernels.Mem, t, d int) {
	need("LayerNorm output", y, t*d)
	need("LayerNorm stats", stats, 2*t)
	need("LayerNorm input", x, t*d)
	need("LayerNorm gamma", gamma, d)
}

func needRope(qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	need("Rope qkv", qkv, seg.Tokens()*3*a.Heads*a.Dim)
	if a.Dim%2 != 0 {
		panic(fmt.Sprintf("cpu: Rope of an odd head dimension %d", a.Dim))
	}
}

func needAttention(o, stats, qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	t := seg.Tokens()
	need("Attention output", o, t*a.Heads*a.Dim)
	need("Attention stats", stats, 2*t*a.Heads)
	need("Attention qkv", qkv, t*3*a.Heads*a.Dim)
}

func needProbe(y, cs, os kernels.Mem, ci, oi []int32, d int) {
	if len(ci) != len(oi) {
		panic(fmt.Sprintf("cpu: Probe of %d contexts and %d options", len(ci), len(oi)))
	}
	need("Probe output", y, 4*d*len(ci))
	needIDs("Probe contexts", cs, ci, d)
	needIDs("Probe options", os, oi, d)
}

func needAdamW(w, d, m, v, grad, base kernels.Mem) {
	need("AdamW m", m, d.Len)
	need("AdamW v", v, d.Len)
	need("AdamW grad", grad, d.Len)
	if w.None() != base.None() {
		panic("cpu: AdamW needs both w and base, or neither")
	}
	if !base.None() {
		need("AdamW base", base, d.Len)
		need("AdamW w", w, d.Len)
	}
}
