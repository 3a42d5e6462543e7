package kai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/safetensors"
)

// readoutWidth is the width of a readout's hidden layer.
const readoutWidth = 256

// Readout is a small head for one question over the frozen model's features:
// LayerNorm, Linear 256, GELU, Linear to one logit (noul) or one output an
// option. Its own question (type, instructions and option texts, in whatever
// order a caller lists them) is answered by it, every other one by the base as
// if it were not there.
type Readout struct {
	Name        string // also its folder's: [a-z0-9][a-z0-9._-]{0,63}
	Question    decision.Question
	Temperature float64
	Base        string                     // the SHA-256 of the base's model.safetensors
	Provenance  map[string]json.RawMessage // what trained it: evaluation, rows, seed…

	m          *Model
	version    int        // of the model's weights that it was trained over
	hash       canon.Hash // of the question
	sorted     []int      // the question's options in text order
	params     params
	norm       *norm
	dense, out linear
}

var readoutName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// NewReadout returns an untrained readout over m. The same seed gives the same
// bytes.
func (m *Model) NewReadout(name string, q decision.Question, seed uint64) (*Readout, error) {
	r, err := m.newReadout(name, q)
	if err != nil {
		return nil, err
	}
	r.params.alloc(m.dev)
	draw(m.dev, r.params.list, seed)
	r.params.train(m.dev, func(string) bool { return false })
	return r, nil
}

func (m *Model) newReadout(name string, q decision.Question) (*Readout, error) {
	if !readoutName.MatchString(name) {
		return nil, fmt.Errorf("readout name %q: want lower-case letters, digits, dot, dash and underscore, at most 64", name)
	}
	// The order of the outputs is that in which the question is stored.
	stored, _ := q.JSON()
	q, err := decision.ParseQuestion(stored)
	if err != nil {
		return nil, fmt.Errorf("readout %s: %w", name, err)
	}
	r := &Readout{Name: name, Question: q, Temperature: 1, Base: m.SHA256, m: m, version: m.version,
		hash: q.Hash(), sorted: q.Sorted()}
	width, outputs := 2*m.encoder.d, len(q.Options)
	if q.Type == decision.Noul {
		outputs = 1
	}
	ps := &r.params
	ps.group = "head"
	r.norm = &norm{gamma: ps.vector("norm.weight", width), beta: ps.vector("norm.bias", width), d: width, eps: 1e-5}
	r.dense = linear{w: ps.matrix("dense.weight", readoutWidth, width), b: ps.vector("dense.bias", readoutWidth), in: width, out: readoutWidth}
	r.out = linear{w: ps.matrix("out.weight", outputs, readoutWidth), b: ps.vector("out.bias", outputs), in: readoutWidth, out: outputs}
	ps.sort()
	return r, nil
}

// Params returns the readout's parameters, sorted by name, with gradients.
func (r *Readout) Params() []*Param { return r.params.list }

// Example is one row for a readout: its features, and its target by
// Input.Options.
type Example struct {
	Features []float32
	Target   []float64
	Weight   float64
}

// Step leaves the gradient of the mean loss, by weight, in the parameters and
// returns that loss in nats: cross is its cross-entropy, to which a score adds the
// ranked probability score.
func (r *Readout) Step(batch []Example) (loss, cross float64) {
	a, dev, n, out := &r.m.arena, r.m.dev, len(batch), r.out.out
	features := make([][]float32, n)
	weight := 0.0
	for i, e := range batch {
		features[i] = e.Features
		weight += e.Weight
	}
	r.params.begin(dev)
	x, s := r.forward(features)
	logits := a.read(s.logits)
	dlogits := make([]float32, len(logits))
	for i, e := range batch {
		z := r.byText(logits[i*out:][:out])
		dz := make([]float64, len(z))
		in := Input{Type: r.Question.Type, Order: r.sorted, Target: e.Target}
		entropy, rps := headLoss(&in, z, e.Weight/weight, dz)
		loss += float64((entropy + rps) * e.Weight)
		cross += float64(entropy * e.Weight)
		for j, o := range r.sorted {
			if out > 1 {
				dlogits[i*out+o] = float32(dz[j])
			} else if o == r.yes() {
				dlogits[i] = float32(dz[j])
			}
		}
	}
	dl, dh, dn := a.write(dlogits), a.take(n*readoutWidth), a.take(x.Len)
	r.out.weights(dev, dl, s.act, n)
	r.out.input(dev, dh, dl, n, false)
	dev.GELUBack(dh, dh, s.dense)
	r.dense.weights(dev, dh, s.normed, n)
	r.dense.input(dev, dn, dh, n, false)
	r.norm.backward(dev, dn, dn, x, s.stats, n, false)
	r.params.end(dev)
	return loss / weight, cross / weight
}

// yes is the option of a noul that its one logit is for.
func (r *Readout) yes() int {
	return slices.IndexFunc(r.Question.Options, func(o decision.Option) bool { return o.Key == "true" })
}

// readoutPass is what a readout computed for n rows.
type readoutPass struct {
	normed, stats, dense, act, logits kernels.Mem
}

func (r *Readout) forward(features [][]float32) (x kernels.Mem, s readoutPass) {
	a, dev, n := &r.m.arena, r.m.dev, len(features)
	a.release(mark{})
	x = a.write(slices.Concat(features...))
	s = readoutPass{a.take(x.Len), a.take(2 * n), a.take(n * readoutWidth), a.take(n * readoutWidth), a.take(n * r.out.out)}
	r.norm.forward(dev, s.normed, s.stats, x, n)
	r.dense.forward(dev, s.dense, s.normed, n)
	dev.GELU(s.act, s.dense)
	r.out.forward(dev, s.logits, s.act, n)
	return x, s
}

// byText puts outputs in the order of the options' text. A noul's one output is
// the logit of true against 0.
func (r *Readout) byText(outputs []float32) []float64 {
	z := make([]float64, len(r.sorted))
	for j, o := range r.sorted {
		if len(outputs) > 1 {
			z[j] = float64(outputs[o])
		} else if o == r.yes() {
			z[j] = float64(outputs[0])
		}
	}
	return z
}

// Logits returns each row's logits by Input.Options. A noul's are 0 and its
// logit.
func (r *Readout) Logits(features [][]float32) [][]float64 {
	logits := make([][]float64, 0, len(features))
	for rows := range slices.Chunk(features, 1024) {
		_, s := r.forward(rows)
		v, n := r.m.arena.read(s.logits), r.out.out
		for i := range rows {
			logits = append(logits, r.byText(v[i*n:][:n]))
		}
	}
	return logits
}

// Attach makes m answer the readout's question with it, replacing one of the
// same name. It fails when the readout was trained over other weights, or when
// another one answers the question.
func (m *Model) Attach(r *Readout) error {
	if r.m != m || r.version != m.version || r.Base != m.SHA256 {
		return fmt.Errorf("readout %s was trained over other weights than this model's", r.Name)
	}
	for _, other := range m.Readouts() {
		if other.Name != r.Name && other.hash == r.hash {
			return fmt.Errorf("readouts %s and %s answer the same question", other.Name, r.Name)
		}
	}
	m.readouts[r.Name] = r
	return nil
}

// Readouts returns the attached readouts, sorted by name.
func (m *Model) Readouts() []*Readout {
	var list []*Readout
	for _, name := range slices.Sorted(maps.Keys(m.readouts)) {
		list = append(list, m.readouts[name])
	}
	return list
}

// readoutFor is the name of the readout that answers q, or "".
func (m *Model) readoutFor(q decision.Question) string {
	if len(m.readouts) == 0 {
		return ""
	}
	hash := q.Hash()
	for name, r := range m.readouts {
		if r.hash == hash {
			return name
		}
	}
	return ""
}

// The files of a readout, a capability of form "head" (HIP-1333 §6).
const (
	capabilityFile = "capability.json"
	readoutFile    = "head.safetensors"
)

// capability is capability.json.
type capability struct {
	Format      int                        `json:"format"`
	Name        string                     `json:"name"`
	Form        string                     `json:"form"` // "head"
	Base        string                     `json:"base_sha256"`
	Question    json.RawMessage            `json:"question"`
	Temperature float64                    `json:"temperature"`
	Provenance  map[string]json.RawMessage `json:"provenance"`
}

// save writes the readout's two files into a new folder, as trained over the base
// whose weights have that address.
func (r *Readout) save(dir, base string) error {
	question, _ := r.Question.JSON()
	src, err := canon.Marshal(capability{Format, r.Name, "head", base, json.RawMessage(question), r.Temperature, r.Provenance})
	if err != nil {
		return fmt.Errorf("readout %s: %w", r.Name, err)
	}
	if err := durable.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := r.params.write(r.m.dev, filepath.Join(dir, readoutFile)); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, capabilityFile), append(src, '\n'), 0o644)
}

// loadReadout reads a readout that was trained over m's weights. It does not
// attach it.
func (m *Model) loadReadout(dir string) (*Readout, error) {
	src, err := os.ReadFile(filepath.Join(dir, capabilityFile))
	if err != nil {
		return nil, err
	}
	var c capability
	if err := canon.Unmarshal(src, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", capabilityFile, err)
	}
	switch {
	case c.Format < 1 || c.Format > Format:
		return nil, fmt.Errorf("%s: format %d is not one this program reads (1 to %d): use a newer one", capabilityFile, c.Format, Format)
	case c.Form != "head":
		return nil, fmt.Errorf("%s: form is %q; a readout's is head", capabilityFile, c.Form)
	case c.Base != m.SHA256:
		return nil, fmt.Errorf("%s: it belongs to a base with SHA-256 %s, not to this one, %s", capabilityFile, c.Base, m.SHA256)
	case !(c.Temperature > 0) || math.IsInf(c.Temperature, 0):
		return nil, fmt.Errorf("%s: temperature is %v; want a positive number", capabilityFile, c.Temperature)
	}
	q, err := decision.ParseQuestion(canon.Raw(c.Question))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", capabilityFile, err)
	}
	r, err := m.newReadout(c.Name, q)
	if err != nil {
		return nil, err
	}
	r.Temperature, r.Provenance = c.Temperature, c.Provenance
	f, err := safetensors.Open(filepath.Join(dir, readoutFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := r.params.load(m.dev, f, r.params.list, same(f)); err != nil {
		return nil, err
	}
	r.params.train(m.dev, func(string) bool { return false })
	return r, nil
}

// loadReadouts attaches every readout in a checkpoint's folder.
func (m *Model) loadReadouts(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		r, err := m.loadReadout(filepath.Join(dir, e.Name()))
		if err == nil && r.Name != e.Name() {
			err = fmt.Errorf("%s names it %s, and a readout has its folder's name", capabilityFile, r.Name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(readoutsDir, e.Name()), err)
		}
		if err := m.Attach(r); err != nil {
			return err
		}
	}
	return nil
}
