package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hanzoai/link/spool/gate"
)

// A drawing is an SVG under construction. Colours are the page's CSS classes,
// so that a chart follows the reader's light or dark theme.
type drawing struct {
	strings.Builder
}

func draw(width, height int, label string) *drawing {
	d := &drawing{}
	fmt.Fprintf(d, `<svg viewBox="0 0 %d %d" style="max-width:%dpx" role="img" aria-label="%s">`, width, height, width, html.EscapeString(label))
	return d
}

func (d *drawing) done() template.HTML {
	d.WriteString("</svg>")
	return template.HTML(d.String())
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (d *drawing) rect(class string, x, y, w, h float64, title string) {
	fmt.Fprintf(d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`, class, x, y, w, h, html.EscapeString(title))
}

// text writes at an anchor: start, middle or end.
func (d *drawing) text(anchor string, x, y float64, s string) {
	fmt.Fprintf(d, `<text text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, anchor, x, y, html.EscapeString(s))
}

// lossChart is the loss by step, with a trailing mean over a twentieth of the
// run: single steps are noisy and the eye wants the trend.
func lossChart(steps []Step) template.HTML {
	const width, height, left, right, top, bottom = 720, 260, 48, 12, 12, 28
	if len(steps) < 2 {
		return "<p>Too few steps to draw.</p>"
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range steps {
		low, high = min(low, s.Loss), max(high, s.Loss)
	}
	low = min(low, 0)
	if high == low {
		high = low + 1
	}
	first, last := float64(steps[0].Step), float64(steps[len(steps)-1].Step)
	x := func(step uint64) float64 {
		return left + (float64(step)-first)/(last-first)*(width-left-right)
	}
	y := func(loss float64) float64 { return top + (high-loss)/(high-low)*(height-top-bottom) }

	d := draw(width, height, fmt.Sprintf("loss from %.3f to %.3f over %d steps", steps[0].Loss, steps[len(steps)-1].Loss, len(steps)))
	for _, tick := range ticks(low, high, 5) {
		d.line("grid", left, y(tick), width-right, y(tick))
		d.text("end", left-6, y(tick)+4, strconv.FormatFloat(tick, 'g', 4, 64))
	}
	for _, tick := range ticks(first, last, 6) {
		if tick != math.Trunc(tick) {
			continue // between two steps
		}
		d.text("middle", x(uint64(tick)), height-8, strconv.FormatFloat(tick, 'f', -1, 64))
	}
	window := max(1, len(steps)/20)
	var raw, mean strings.Builder
	stride := max(1, len(steps)/2000) // more points than pixels draw nothing more
	sum := 0.0
	for i, s := range steps {
		sum += s.Loss
		if i >= window {
			sum -= steps[i-window].Loss
		}
		if i%stride != 0 && i != len(steps)-1 {
			continue
		}
		fmt.Fprintf(&raw, "%.1f,%.1f ", x(s.Step), y(s.Loss))
		fmt.Fprintf(&mean, "%.1f,%.1f ", x(s.Step), y(sum/float64(min(i+1, window))))
	}
	fmt.Fprintf(d, `<polyline class="raw" points="%s"/><polyline class="mean" points="%s"/>`, raw.String(), mean.String())
	return d.done()
}

// suiteBars is each suite's accuracy before and after.
func suiteBars(suites []Suite) template.HTML {
	const width, row, left, right = 720, 46, 200, 60
	d := draw(width, row*len(suites)+24, "accuracy before and after, by suite")
	x := func(v float64) float64 { return left + v*(width-left-right) }
	bottom := float64(row * len(suites))
	for _, tick := range []float64{0, .25, .5, .75, 1} {
		d.line("grid", x(tick), 4, x(tick), bottom)
		d.text("middle", x(tick), bottom+16, fmt.Sprintf("%.0f %%", 100*tick))
	}
	for i, s := range suites {
		at := float64(i * row)
		d.text("end", left-10, at+row/2+2, shorten(s.Name, 26))
		if before, err := gate.Metric("accuracy", s.Before); err == nil {
			d.rect("before", left, at+8, x(before)-left, 13, fmt.Sprintf("%s before: %.1f %%", s.Name, 100*before))
		}
		after, err := gate.Metric("accuracy", s.After)
		if err != nil {
			continue
		}
		d.rect("after", left, at+23, x(after)-left, 13, fmt.Sprintf("%s after: %.1f %%", s.Name, 100*after))
		end := after // of what is drawn: the number stands behind it
		if s.Lo != nil && s.Hi != nil {
			if before, err := gate.Metric("accuracy", s.Before); err == nil {
				d.line("whisker", x(clamp(before+*s.Lo)), at+29.5, x(clamp(before+*s.Hi)), at+29.5)
				end = max(end, clamp(before+*s.Hi))
			}
		}
		d.text("start", x(end)+6, at+34, fmt.Sprintf("%.1f %%", 100*after))
	}
	return d.done()
}

// reliability is the share right against the confidence stated, in the 15 bins
// of the calibration error; a bin's bar is as dark as it is full.
func reliability(items []gate.Item) template.HTML {
	const size, left, right, bottom, bins = 300, 46, 22, 28, 15
	var n, correct, confidence [bins]float64
	for _, item := range items {
		if item.Confidence == nil || item.Correct == nil {
			continue
		}
		bin := clampInt(int(math.Ceil(*item.Confidence*bins))-1, 0, bins-1)
		n[bin]++
		confidence[bin] += *item.Confidence
		if *item.Correct {
			correct[bin]++
		}
	}
	fullest := slices.Max(n[:])
	if fullest == 0 {
		return "<p>No confidences to draw.</p>"
	}
	d := draw(size, size, "reliability: share right by confidence")
	x := func(v float64) float64 { return left + v*(size-left-right) }
	y := func(v float64) float64 { return 8 + (1-v)*(size-bottom-8) }
	for _, tick := range []float64{0, .5, 1} {
		d.line("grid", x(0), y(tick), x(1), y(tick))
		d.text("end", left-6, y(tick)+4, fmt.Sprintf("%.0f %%", 100*tick))
		d.text("middle", x(tick), size-8, fmt.Sprintf("%.0f %%", 100*tick))
	}
	for i := range bins {
		if n[i] == 0 {
			continue
		}
		share := correct[i] / n[i]
		fmt.Fprintf(d, `<g style="opacity:%.2f">`, .25+.75*n[i]/fullest)
		d.rect("after", x(float64(i)/bins)+1, y(share), x(1./bins)-x(0)-2, y(0)-y(share),
			fmt.Sprintf("%.0f rows, said %.1f %%, right %.1f %%", n[i], 100*confidence[i]/n[i], 100*share))
		d.WriteString("</g>")
	}
	d.line("ideal", x(0), y(0), x(1), y(1))
	return d.done()
}

// confusion is the matrix of gold against answer. Above 30 labels a matrix is
// not readable; then the pairs most often confused are listed.
func confusion(answers []Answer) template.HTML {
	counts := make(map[Answer]int)
	var labels []string
	seen := make(map[string]bool)
	for _, a := range answers {
		counts[a]++
		for _, label := range []string{a.Gold, a.Given} {
			if !seen[label] {
				seen[label] = true
				labels = append(labels, label)
			}
		}
	}
	slices.Sort(labels)
	if len(labels) == 0 {
		return ""
	}
	if len(labels) > 30 {
		return confusedPairs(counts)
	}
	cell := clampInt(420/len(labels), 12, 44)
	const left = 150
	size := cell * len(labels)
	d := draw(left+size+8, size+left, "confusion matrix: gold by row, answer by column")
	total := make(map[string]int)
	for a, n := range counts {
		total[a.Gold] += n
	}
	for i, gold := range labels {
		at := float64(i * cell)
		d.text("end", left-6, at+float64(cell)/2+4, shorten(gold, 20))
		fmt.Fprintf(d, `<text text-anchor="end" transform="translate(%.1f %d) rotate(-60)">%s</text>`,
			float64(left)+at+float64(cell)/2+4, size+12, html.EscapeString(shorten(gold, 20)))
		for j, given := range labels {
			n := counts[Answer{gold, given}]
			share := 0.
			if total[gold] > 0 {
				share = float64(n) / float64(total[gold])
			}
			class := "wrong"
			if i == j {
				class = "right"
			}
			fmt.Fprintf(d, `<g style="--share:%.3f">`, share)
			d.rect("cell "+class, float64(left+j*cell), at, float64(cell-1), float64(cell-1), fmt.Sprintf("%s answered %s: %d", gold, given, n))
			d.WriteString("</g>")
			if n > 0 && cell >= 24 {
				d.text("middle", float64(left+j*cell)+float64(cell)/2, at+float64(cell)/2+4, strconv.Itoa(n))
			}
		}
	}
	return d.done()
}

func confusedPairs(counts map[Answer]int) template.HTML {
	var wrong []Answer
	for a := range counts {
		if a.Gold != a.Given {
			wrong = append(wrong, a)
		}
	}
	sort.Slice(wrong, func(i, j int) bool {
		if counts[wrong[i]] != counts[wrong[j]] {
			return counts[wrong[i]] > counts[wrong[j]]
		}
		return wrong[i].Gold+"\x00"+wrong[i].Given < wrong[j].Gold+"\x00"+wrong[j].Given
	})
	var b strings.Builder
	b.WriteString("<table><tr><th>gold</th><th>answered</th><th>rows</th></tr>")
	for _, a := range wrong[:min(len(wrong), 15)] {
		fmt.Fprintf(&b, "<tr><td>%s</td><td>%s</td><td>%d</td></tr>", html.EscapeString(a.Gold), html.EscapeString(a.Given), counts[a])
	}
	b.WriteString("</table>")
	return template.HTML(b.String())
}

// ticks are about n round numbers within [low, high].
func ticks(low, high float64, n int) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (high-low)/(f*step) <= float64(n) {
			step *= f
			break
		}
	}
	var at []float64
	first := math.Ceil(low / step)
	for i := range n + 1 {
		if t := first + float64(i); t <= high/step+1e-9 {
			at = append(at, t*step)
		}
	}
	return at
}

func clamp(v float64) float64 { return max(0, min(1, v)) }

func clampInt(v, low, high int) int { return max(low, min(high, v)) }

// shorten cuts s to n characters, the last of them an ellipsis.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}
