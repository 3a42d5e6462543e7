package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// ErrProjection ends a resumed Fit whose protected subspace is not the one that
// its state was trained under.
var ErrProjection = errors.New("projection_mismatch")

// rivals is how many options of a question the subspace's gradients are of: the
// gold one and those that the base finds next. All options of a question with 150
// would cost ten times the rest of the row, and those far from the answer do not
// move it.
const rivals = 16

// subspace is what the protected suites and capabilities span at the base: read
// from the cache where it stands there, or else built.
func (f *fit) subspace(ctx context.Context, enc *kai.Encoder, k *keeper) (*project.Subspace, error) {
	key, err := f.subspaceKey()
	if err != nil {
		return nil, err
	}
	file := ""
	if f.Cache != "" {
		file = filepath.Join(f.Cache, key)
		if s, err := readSubspace(file); err == nil {
			return s, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("trainer: the cached subspace %s: %w: delete it, and it is built again", file, err)
		}
	}
	p := f.Stage.Protect
	layers := make([]project.Layer, len(k.linears))
	for i, l := range k.linears {
		layers[i] = project.Layer{Name: l.Name, In: l.In, Out: l.Out}
	}
	b := project.NewBuilder(f.Device, layers)
	for _, suite := range p.Suites {
		done, seen := 0, map[string]bool{} // a row that is there twice would weigh twice
		for i, in := range k.inputs {
			if k.suites[i] != suite || done == p.Projection.Rows {
				continue
			}
			if done%16 == 0 {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				f.report(Progress{Phase: Protecting, Suite: suite, Done: done, Rows: p.Projection.Rows})
			}
			for _, q := range in {
				if key := fmt.Sprint(q.Context, q.Options, q.Target); q.Target != nil && !seen[key] {
					seen[key] = true
					f.Model.Sensitivity(enc.Texts, q.Hardest(q.Teacher.P, rivals), b.Tap)
					b.Row()
				}
			}
			done++
		}
		if err := b.Suite(suite); err != nil {
			return nil, fmt.Errorf("trainer: protect.suites: %w", err)
		}
	}
	for _, address := range p.Capabilities {
		if err := f.addCapability(b, k, canon.SHA256(address)); err != nil {
			return nil, err
		}
	}
	s, err := b.Build(p.Projection.subspace())
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	if file == "" {
		return s, nil
	}
	return s, writeSubspace(f.disk, file, s)
}

// subspace is what a layer's directions are bounded by.
func (p Projection) subspace() project.Config { return project.Config{Energy: p.Energy, Cap: p.Cap} }

// subspaceVersion changes with how a subspace is built.
const subspaceVersion = 1

// subspaceKey names a subspace by what it is built from.
func (f *fit) subspaceKey() (string, error) {
	var sets []canon.SHA256
	for _, s := range f.Build.Keep() {
		sets = append(sets, *s.Dataset.SHA256)
	}
	h, err := canon.Of(struct {
		Version      int            `json:"version"`
		Base         string         `json:"base"`    // of the weights
		Encoder      canon.SHA256   `json:"encoder"` // of what the encoder's config says beside them
		Tokenizer    canon.SHA256   `json:"tokenizer"`
		Sets         []canon.SHA256 `json:"sets"`
		Suites       []string       `json:"suites"`
		Capabilities []string       `json:"capabilities"`
		Projection   Projection     `json:"projection"`
		MaxLen       int            `json:"max_len"`
		OptionLen    int            `json:"option_len"`
		TopK         int            `json:"top_k"`
		Rivals       int            `json:"rivals"`
	}{subspaceVersion, f.weights, canon.Sum(f.Model.Config.Encoder), canon.Sum(f.Model.Tokenizer().Bytes()),
		sets, f.Stage.Protect.Suites, f.Stage.Protect.Capabilities,
		Projection{1, f.Stage.Protect.Projection.Energy, f.Stage.Protect.Projection.Cap, f.Stage.Protect.Projection.Rows},
		f.Model.Config.MaxLen, f.Model.Config.OptionLen, f.Model.Config.TopK, rivals})
	return h.Hex(), err
}

func readSubspace(file string) (*project.Subspace, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return project.Decode(r)
}

// writeSubspace writes the cache's file, whole or not at all.
func writeSubspace(disk durable.Disk, file string, s *project.Subspace) error {
	if err := disk.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	w, err := disk.Create(file)
	if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	defer w.Abort()
	if err := s.Encode(w); err != nil {
		return fmt.Errorf("trainer: writing the subspace: %w", err)
	}
	return w.Commit()
}
