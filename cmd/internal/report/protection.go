package report

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hanzoai/link/trainer"
)

// Share is a step of a run's metrics: of each layer's gradient, the share of its
// square that lay in the protected directions and was removed, in [0, 1].
type Share struct {
	Step  uint64             `json:"step"`
	Layer map[string]float64 `json:"share"`
}

// Flips is a part of a run's metrics: of the rows of an evaluation that were asked
// again with their options in another order, how many were answered otherwise.
type Flips struct {
	Evaluation string `json:"evaluation"`
	Asked      int    `json:"asked"`
	Changed    int    `json:"changed"`
}

// A Guard is one suite or capability that a run protects.
type Guard struct {
	Name   string
	Rows   int      // kept of it, to hold the model to the base's answers
	Energy *float64 // of its gradients, what the protected directions hold; nil where nothing was projected
}

// guarded reports whether the run protected anything.
func (r Report) guarded() bool {
	p := r.Protection
	return len(r.Shares) > 0 || p != nil && (p.Subspace != "" || len(p.Rows) > 0)
}

// guards lists what is protected, by name.
func guards(p *trainer.Protection) []Guard {
	var list []Guard
	names := slices.Concat(slices.Collect(maps.Keys(p.Energy)), slices.Collect(maps.Keys(p.Rows)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		g := Guard{Name: name, Rows: p.Rows[name]}
		if energy, ok := p.Energy[name]; ok {
			g.Energy = &energy
		}
		list = append(list, g)
	}
	return list
}

// rounding is the leak that a page still calls rounding. One rounding to float32
// leaves at most 2^-24; a change written as two factors is rounded once a product.
const rounding = 0x1p-20

// guarantee says in one sentence what the protection promises and what not, as far
// as it was measured.
func guarantee(p *trainer.Protection) string {
	const who = "the gate decides about accuracy"
	switch {
	case p == nil:
		return "What the protection came to was not recorded; " + who + "."
	case p.Subspace == "":
		return "The base's answers to the protected suites were part of the loss, which promises nothing about them; " + who + "."
	case p.Norm == 0:
		return "Nothing changed, so nothing of the change lies in the protected directions; " + who + "."
	case p.Strength < 1:
		return fmt.Sprintf("A strength of %g weakens each step in the protected directions and bounds nothing, and %s of the change lies in them; %s.", p.Strength, share(p.Leak), who)
	case p.Leak > rounding:
		return fmt.Sprintf("Of the change, %s lies in the protected directions, which is more than rounding; %s.", share(p.Leak), who)
	}
	return "Nothing of the change lies in the protected directions, beyond rounding; what it does outside them may still move the protected answers, so " + who + "."
}

// share is a fraction as per cent, "83.1 %", with more digits the smaller it is.
func share(v float64) string {
	if v != 0 && math.Abs(v) < .001 {
		return fmt.Sprintf("%.1e", v)
	}
	return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
}

// nats is a divergence, to three digits.
func nats(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// pValue is a probability, "= 0.0313" or "< 0.0001".
func pValue(p float64) string {
	if p < .0001 {
		return "< 0.0001"
	}
	return "= " + strconv.FormatFloat(p, 'f', 4, 64)
}

// A mapRow is one layer on the map of what was removed.
type mapRow struct {
	layer string
	label string
	block string // rows of one block stand together
	of    *trainer.LayerProtection
	share []float64 // by column; NaN where nothing was said
	mean  float64   // of the steps that say something; NaN where none does
}

// mapColumns is the most columns of the map: more steps share a column.
const mapColumns = 56

// layerMap draws, for each layer, the share of its gradient that was removed, step
// by step, and how much of its directions are protected. It is empty when neither
// is known.
func layerMap(r Report) template.HTML {
	const row, strip, top = 15, 350, 24
	groups := mapGroups(r)
	if len(groups) == 0 {
		return ""
	}
	left, right := 194., 194.+strip
	if len(r.Shares) == 0 {
		right = left // an adapter's gradients are not projected
	}
	width, height := int(right)+246, top+30
	for _, g := range groups {
		height += 26 + row*len(g) + 4*blocks(g)
	}
	d := draw(width, height, "share of each layer's gradient that was removed, by step")
	if len(r.Shares) > 0 {
		d.text("end", right+70, 12, "removed")
	}
	if r.Protection != nil && len(r.Protection.Layers) > 0 {
		d.text("end", right+168, 12, "directions")
		d.text("end", right+240, 12, "energy")
	}

	columns := min(len(r.Shares), mapColumns)
	var shades [21]strings.Builder // a path for each shade, in steps of 5 %
	y := float64(top)
	for _, g := range groups {
		name, _, _ := strings.Cut(g[0].layer, ".")
		fmt.Fprintf(d, `<text class="strong" x="0" y="%.1f">%s</text>`, y+12, html.EscapeString(shorten(name, 26)))
		y += 22
		for i, l := range g {
			if i > 0 && l.block != g[i-1].block {
				y += 4
			}
			d.text("end", left-10, y+11, l.label)
			for from := 0; from < len(l.share); {
				to := from + 1
				for to < len(l.share) && shade(l.share[to]) == shade(l.share[from]) {
					to++
				}
				if s := shade(l.share[from]); s >= 0 {
					x0, x1 := left+strip*float64(from)/float64(columns), left+strip*float64(to)/float64(columns)
					fmt.Fprintf(&shades[s], "M%.1f %.1fH%.1fv%dH%.1fz", x0, y, x1, row-1, x0)
				}
				from = to
			}
			title := l.layer
			if !math.IsNaN(l.mean) {
				d.text("end", right+70, y+11, share(l.mean))
				title += ": " + share(l.mean) + " removed"
			}
			if l.of != nil {
				d.text("end", right+168, y+11, fmt.Sprintf("%d of %d", l.of.Rank, l.of.In))
				d.text("end", right+240, y+11, share(l.of.Kept))
				title += fmt.Sprintf("; %d of %d directions protected, which hold %s of the energy; leak %s", l.of.Rank, l.of.In, share(l.of.Kept), share(l.of.Leak))
			}
			d.rect("over", 0, y, float64(width), row, title)
			y += row
		}
		y += 4
	}
	for s := range shades {
		if shades[s].Len() > 0 {
			// A share of 0 is faint, so that it differs from one that nobody gave.
			fmt.Fprintf(d, `<path class="after" fill-opacity="%.3f" d="%s"/>`, .06+.94*float64(s)/20, shades[s].String())
		}
	}
	if columns > 0 {
		first, last := r.Shares[0].Step, r.Shares[len(r.Shares)-1].Step
		d.text("start", left, y+14, fmt.Sprintf("step %d", first))
		if last != first {
			d.text("end", right, y+14, fmt.Sprint(last))
		}
		x := right + 70.
		for s := range shades {
			fmt.Fprintf(d, `<path class="after" fill-opacity="%.3f" d="M%.1f %.1fh4v8h-4z"/>`, .06+.94*float64(s)/20, x+float64(4*s), y+6)
		}
		d.text("end", x-6, y+14, "0 %")
		d.text("start", x+90, y+14, "100 %")
	}
	return d.done()
}

// shade is a share's place among the map's 21, -1 for one that nobody gave.
func shade(v float64) int {
	if math.IsNaN(v) {
		return -1
	}
	return int(math.Round(20 * v))
}

// blocks counts the places where one block ends and another begins.
func blocks(g []mapRow) int {
	n := 0
	for i := 1; i < len(g); i++ {
		if g[i].block != g[i-1].block {
			n++
		}
	}
	return n
}

// mapGroups are the map's rows, by the first part of their layers' names: encoder,
// then head.
func mapGroups(r Report) [][]mapRow {
	known := map[string]*trainer.LayerProtection{}
	if r.Protection != nil {
		for i := range r.Protection.Layers {
			known[r.Protection.Layers[i].Layer] = &r.Protection.Layers[i]
		}
	}
	all := map[string]bool{}
	for name := range known {
		all[name] = true
	}
	for _, s := range r.Shares {
		for name := range s.Layer {
			all[name] = true
		}
	}
	names := slices.SortedFunc(maps.Keys(all), byNumber)

	var groups [][]mapRow
	for len(names) > 0 {
		group, _, _ := strings.Cut(names[0], ".")
		n := 1
		for n < len(names) && strings.HasPrefix(names[n], group+".") {
			n++
		}
		var rows []mapRow
		prefix := commonParts(names[:n])
		for _, name := range names[:n] {
			label := strings.TrimPrefix(name, prefix)
			row := mapRow{layer: name, label: tail(label, 28), block: blockOf(label), of: known[name]}
			row.share, row.mean = columnsOf(r.Shares, name)
			rows = append(rows, row)
		}
		groups, names = append(groups, rows), names[n:]
	}
	return groups
}

// columnsOf is a layer's share by column of the map, the mean of the steps in it,
// and the mean of all steps.
func columnsOf(steps []Share, layer string) (columns []float64, mean float64) {
	n := min(len(steps), mapColumns)
	total, seen := 0.0, 0
	for c := range n {
		sum, said := 0.0, 0
		for _, s := range steps[c*len(steps)/n : (c+1)*len(steps)/n] {
			if v, ok := s.Layer[layer]; ok {
				sum, said = sum+clamp(v), said+1
			}
		}
		columns = append(columns, sum/float64(said)) // NaN of none
		total, seen = total+sum, seen+said
	}
	return columns, total / float64(seen)
}

// byNumber orders names part by part, and parts that are numbers as numbers:
// layer.2 stands before layer.10.
func byNumber(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, errM := strconv.Atoi(x[i])
		n, errN := strconv.Atoi(y[i])
		c := strings.Compare(x[i], y[i])
		if errM == nil && errN == nil {
			c = cmp.Compare(m, n)
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// commonParts is the longest run of whole parts, with its dot, that all of the
// names begin with and go on after.
func commonParts(names []string) string {
	prefix := names[0][:strings.LastIndexByte(names[0], '.')+1]
	for _, name := range names[1:] {
		for !strings.HasPrefix(name, prefix) {
			prefix = prefix[:strings.LastIndexByte(prefix[:len(prefix)-1], '.')+1]
		}
	}
	return prefix
}

// blockOf is a label up to its first number: the layers of one block of a model.
func blockOf(label string) string {
	parts := strings.Split(label, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return ""
}

// tail cuts s to its last n characters, the first of them an ellipsis.
func tail(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return "…" + string(runes[len(runes)-n+1:])
}
