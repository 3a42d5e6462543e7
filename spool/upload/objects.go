package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

const (
	// inline is the most bytes of an artifact sent with its registration: one
	// call instead of three. Larger ones are streamed.
	inline = 1 << 20

	// batchBytes bounds one call's body, under what a slow line sends within
	// a call's deadline.
	batchBytes = 4 << 20

	// maxItem is the most bytes of a dataset's item. The server takes no longer line.
	maxItem = 16 << 20
)

// sendArtifact registers a and sends its bytes, uncompressed, until the server
// says that it holds them.
func (u *Uploader) sendArtifact(ctx context.Context, a record.Artifact) error {
	for _, p := range a.Parents {
		if u.isRefused("artifact " + string(p)) {
			return fmt.Errorf("%w: its parent %s was refused", errHeld, p)
		}
	}
	a.Compression, a.CompressedSize = nil, nil
	what := fmt.Sprintf("artifact %s", a.SHA256)
	var content []byte
	if a.Size <= inline {
		var err error
		if content, err = u.bytes(a); err != nil {
			return err
		}
	}
	err := u.try(ctx, what, func(ctx context.Context) error {
		const tries = 3 // answers that bring us no further
		for range tries {
			reg, err := u.client.RegisterArtifact(ctx, a, content)
			if tooLarge(err) && content != nil {
				content = nil
				continue
			}
			if err != nil {
				return err
			}
			if reg.Stored {
				return nil
			}
			if reg.Grant == nil {
				break
			}
			// The next registration says whether it is held now, or grants
			// what is still missing.
			if err := u.put(ctx, a.SHA256, *reg.Grant); err != nil && !refreshed(err) {
				return err
			}
		}
		return fmt.Errorf("%s: the server took its bytes and does not hold it", what)
	})
	if err != nil {
		return err
	}
	if err := u.spool.AckArtifact(a.SHA256); err != nil {
		return err
	}
	u.report.Artifacts++
	return nil
}

// refreshed reports a grant that a new registration replaces.
func refreshed(err error) bool {
	return api.Is(err, api.GrantExpired) || api.Is(err, api.GrantUsed)
}

func tooLarge(err error) bool {
	p, ok := errors.AsType[*api.Problem](err)
	return ok && p.Status == http.StatusRequestEntityTooLarge
}

// bytes reads a small artifact. Its metadata may have changed since it was planned,
// and say that it is not small.
func (u *Uploader) bytes(a record.Artifact) ([]byte, error) {
	r, err := u.spool.OpenArtifact(a.SHA256)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, inline+1))
	if err == nil && uint64(len(b)) != a.Size {
		err = fmt.Errorf("%w: artifact %s has not the %d bytes that its metadata says; put it again", spool.ErrCorrupt, a.SHA256, a.Size)
	}
	return b, err
}

// errStalled is why an upload was given up.
var errStalled = errors.New("the upload made no progress")

// put sends what a grant lists, and gives up when nothing has moved for u.stall.
func (u *Uploader) put(ctx context.Context, sha canon.SHA256, g api.Grant) error {
	r, err := u.spool.OpenArtifact(sha)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(u.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	err = u.client.Upload(ctx, g, &watched{r, watch, u.stall})
	if err != nil && context.Cause(ctx) == errStalled {
		return fmt.Errorf("artifact %s: %w for %v", sha, errStalled, u.stall)
	}
	return err
}

// watched puts off its timer at each read. After the last one the server has
// that long to answer.
type watched struct {
	r     io.Reader
	timer *time.Timer
	stall time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.stall)
	return w.r.Read(p)
}

// sendDataset creates d on the server, appends its items and seals it. All of it
// may be repeated: items that are there already are duplicates.
func (u *Uploader) sendDataset(ctx context.Context, d record.Dataset) error {
	items := *d.SHA256
	if u.isRefused("artifact " + string(items)) {
		return fmt.Errorf("%w: its items %s were refused", errHeld, items)
	}
	what := "dataset " + d.ID
	var there record.Dataset
	err := u.try(ctx, what, func(ctx context.Context) (err error) {
		there, err = u.client.CreateDataset(ctx, d)
		return err
	})
	if err != nil {
		return err
	}
	if there.State != record.Sealed {
		if err := u.sendItems(ctx, d); err != nil {
			return err
		}
		err := u.try(ctx, what, func(ctx context.Context) (err error) {
			there, err = u.client.SealDataset(ctx, d.ID)
			return err
		})
		if err != nil {
			return err
		}
	}
	if there.SHA256 == nil || *there.SHA256 != items {
		return api.Refuse(api.Exists, "the server sealed %s with other items than the ones here (%s)", d.ID, items)
	}
	if err := u.spool.AckDataset(d.ID); err != nil {
		return err
	}
	u.report.Datasets++
	return nil
}

// sendItems appends a dataset's items, in as large calls as are allowed.
func (u *Uploader) sendItems(ctx context.Context, d record.Dataset) error {
	r, err := u.spool.OpenArtifact(*d.SHA256)
	if err != nil {
		return err
	}
	defer r.Close()
	var batch []record.DatasetItem
	size := 0
	flush := func() error {
		err := u.appendItems(ctx, d.ID, batch)
		batch, size = nil, 0
		return err
	}
	for line, err := range canon.Lines(r, maxItem) {
		if _, disk := errors.AsType[*fs.PathError](err); err != nil && !disk {
			err = fmt.Errorf("%w: %w", spool.ErrCorrupt, err)
		}
		if err != nil {
			return fmt.Errorf("items of dataset %s: %w", d.ID, err)
		}
		if len(batch) == api.MaxItems || size+len(line.Bytes) > batchBytes && len(batch) > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		var item record.DatasetItem
		if err := canon.Unmarshal(line.Bytes, &item); err != nil {
			return fmt.Errorf("%w: items of dataset %s, line %d: %w", spool.ErrCorrupt, d.ID, line.N, err)
		}
		batch = append(batch, item)
		size += len(line.Bytes)
	}
	if len(batch) == 0 {
		return nil
	}
	return flush()
}

// appendItems appends items, in halves when the server finds them too many.
func (u *Uploader) appendItems(ctx context.Context, dataset string, items []record.DatasetItem) error {
	err := u.try(ctx, "items of dataset "+dataset, func(ctx context.Context) error {
		_, err := u.client.AppendItems(ctx, dataset, items)
		return err
	})
	if !tooLarge(err) || len(items) == 1 {
		return err
	}
	half := len(items) / 2
	if err := u.appendItems(ctx, dataset, items[:half]); err != nil {
		return err
	}
	return u.appendItems(ctx, dataset, items[half:])
}

// sendGate stores a gate.
func (u *Uploader) sendGate(ctx context.Context, g namedGate) error {
	var there api.GateStored
	err := u.try(ctx, "gate "+g.gate.Name, func(ctx context.Context) (err error) {
		there, err = u.client.PutGate(ctx, g.gate)
		return err
	})
	if err != nil {
		return err
	}
	if there.GateSpecHash != g.hash {
		return fmt.Errorf("gate %s: the server hashes it to %s, not %s: one of the two writes canonical JSON wrongly", g.gate.Name, there.GateSpecHash, g.hash)
	}
	if err := u.spool.AckGate(g.hash); err != nil {
		return err
	}
	u.report.Gates++
	return nil
}

// sendDeterminism stores a determinism report.
func (u *Uploader) sendDeterminism(ctx context.Context, d namedReport) error {
	environment := d.report.EnvironmentArtifactSHA256
	if u.isRefused("artifact " + string(environment)) {
		return fmt.Errorf("%w: its environment %s was refused", errHeld, environment)
	}
	var there api.DeterminismStored
	err := u.try(ctx, "determinism report "+string(d.hash), func(ctx context.Context) (err error) {
		there, err = u.client.PutDeterminism(ctx, d.report)
		return err
	})
	if err != nil {
		return err
	}
	if there.ReportHash != d.hash {
		return fmt.Errorf("determinism report %s: the server hashes it to %s: one of the two writes canonical JSON wrongly", d.hash, there.ReportHash)
	}
	if err := u.spool.AckDeterminism(d.hash); err != nil {
		return err
	}
	u.report.Determinism++
	return nil
}
