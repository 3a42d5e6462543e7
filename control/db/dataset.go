package db

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
)

// CreateDataset stores a new, open dataset. Created again with the same content
// it answers the dataset as it is now; with other content it is refused.
func (o *Org) CreateDataset(ctx context.Context, in api.DatasetCreate) (record.Dataset, error) {
	var out record.Dataset
	err := o.update(ctx, func(t *tx) error {
		d := record.Dataset{
			ID: in.ID, Purpose: in.Purpose, Title: in.Title, License: in.License, Origin: in.Origin,
			Parents: in.Parents, Benchmark: in.Benchmark,
			State: record.Open, Created: t.received,
		}
		if err := d.Validate(); err != nil {
			return api.Refuse(api.Invalid, "dataset: %v", err)
		}
		held, ok, err := t.dataset(d.ID)
		if err != nil {
			return err
		}
		if ok {
			out = held
			return sameDataset(held, d)
		}
		if err := t.checkParents(d); err != nil {
			return err
		}
		seq, err := t.next()
		if err != nil {
			return err
		}
		body, err := canon.Marshal(d)
		if err != nil {
			return err
		}
		var benchmark *string
		if d.Benchmark != nil {
			benchmark = &d.Benchmark.ID
		}
		out = d
		return t.exec("insert into dataset(id, seq, purpose, benchmark, body) values(?, ?, ?, ?, ?)",
			d.ID, seq, string(d.Purpose), benchmark, body)
	})
	return out, err
}

// sameDataset refuses a dataset whose caller-given members are not the held ones.
func sameDataset(held, d record.Dataset) error {
	held.State, held.Items, held.SHA256, held.Created, held.Sealed = d.State, d.Items, d.SHA256, d.Created, d.Sealed
	a, err := canon.Marshal(held)
	if err != nil {
		return err
	}
	b, err := canon.Marshal(d)
	if err != nil {
		return err
	}
	if bytes.Equal(a, b) {
		return nil
	}
	if held.Purpose != d.Purpose {
		return api.Refuse(api.Exists, "dataset %s exists with purpose %s, which never changes; this is %s", d.ID, held.Purpose, d.Purpose)
	}
	return api.Refuse(api.Exists, "dataset %s exists with other content; a changed dataset gets a new id", d.ID)
}

// checkParents holds a dataset to the derivation rule (HIP-1334 §3.3). A dataset
// of its parents' own purpose is a selection of their items (§4.2 retires an item
// that way) and not a derivation.
func (t *tx) checkParents(d record.Dataset) error {
	var derived []record.Purpose
	for _, id := range d.Parents {
		p, ok, err := t.dataset(id)
		if err != nil {
			return err
		}
		if !ok {
			return api.Refuse(api.UnknownParent, "dataset %s: there is no parent dataset %s", d.ID, id)
		}
		if p.Purpose != d.Purpose {
			derived = append(derived, p.Purpose)
		}
	}
	if len(derived) == 0 {
		return nil
	}
	want, err := record.Derive(derived...)
	if err != nil {
		return purposeRefused("dataset "+d.ID, err)
	}
	if d.Purpose != want {
		return api.Refuse(api.PurposeRefused, "dataset %s: what is derived from these parents is %s, not %s", d.ID, want, d.Purpose)
	}
	return nil
}

// purposeRefused gives an error of package record its code.
func purposeRefused(what string, err error) error {
	switch {
	case errors.Is(err, record.ErrDerivation):
		return api.Refuse(api.DerivationRefused, "%s: %v", what, err)
	case errors.Is(err, record.ErrPurpose):
		return api.Refuse(api.PurposeRefused, "%s: %v", what, err)
	}
	return api.Refuse(api.Invalid, "%s: %v", what, err)
}

func (t *tx) dataset(id string) (record.Dataset, bool, error) {
	var d record.Dataset
	ok, err := t.object(&d, "select body from dataset where id = ?", id)
	return d, ok, err
}

// putDataset writes a held dataset's new state.
func (t *tx) putDataset(d record.Dataset) error {
	body, err := canon.Marshal(d)
	if err != nil {
		return err
	}
	return t.exec("update dataset set body = ?, sha256 = ? where id = ?", body, (*string)(d.SHA256), d.ID)
}

// Dataset answers one dataset.
func (o *Org) Dataset(ctx context.Context, id string) (record.Dataset, error) {
	var d record.Dataset
	err := o.view(ctx, func(t *tx) error {
		var ok bool
		var err error
		if d, ok, err = t.dataset(id); err == nil && !ok {
			return unknown("dataset", id)
		}
		return err
	})
	return d, err
}

// Datasets lists datasets.
func (o *Org) Datasets(ctx context.Context, q api.DatasetQuery) ([]canon.Raw, error) {
	var f filter
	f.and("purpose = ?", string(q.Purpose))
	f.and("benchmark = ?", q.Benchmark)
	return o.page(ctx, "dataset", "id", f, q.After, q.Limit)
}

// DeleteDataset deletes a dataset and its items while no run attached it. Its
// items artifact, once sealed, stays: artifacts are kept.
func (o *Org) DeleteDataset(ctx context.Context, id string) error {
	return o.update(ctx, func(t *tx) error {
		var run string
		attached, err := t.row("select run from attachment where dataset = ? order by run", []any{id}, &run)
		if err != nil {
			return err
		}
		if attached {
			return api.Refuse(api.Referenced, "dataset %s: run %s attached it", id, run)
		}
		_, ok, err := t.dataset(id)
		if err != nil {
			return err
		}
		if !ok {
			return unknown("dataset", id)
		}
		return t.exec("delete from dataset where id = ?", id)
	})
}

// SealDataset fixes a dataset: its items in item_id order, one canonical line
// each, become an artifact of kind dataset, whose address is the dataset's sha256.
// Sealing a sealed dataset answers it.
func (o *Org) SealDataset(ctx context.Context, id string) (record.Dataset, error) {
	var out record.Dataset
	err := o.update(ctx, func(t *tx) error {
		d, ok, err := t.dataset(id)
		if err != nil {
			return err
		}
		if !ok {
			return unknown("dataset", id)
		}
		if d.State == record.Sealed {
			out = d
			return nil
		}
		f, err := durable.Create(o.artifactPath("sealing"))
		if err != nil {
			return err
		}
		defer f.Abort()
		sum := newSummer(f)
		if err := t.eachItem(id, func(body []byte) error {
			_, err := sum.Write(append(body, '\n'))
			return err
		}); err != nil {
			return err
		}
		address := sum.address()
		a := record.Artifact{
			SHA256: address, Kind: record.KindDataset, MediaType: record.MediaNDJSON, SchemaVersion: 1,
			Purpose: d.Purpose, Size: sum.n, Producer: record.Producer{Tool: "hanzo-cloud"},
			State: record.Registered, Created: t.received,
		}
		if a, err = t.register(a); err != nil {
			return err
		}
		if a.State != record.Stored {
			if err := f.CommitAs(string(address)); err != nil {
				return err
			}
			if err := t.markStored(&a); err != nil {
				return err
			}
		}
		d.State, d.SHA256, d.Sealed = record.Sealed, &address, &t.received
		out = d
		return t.putDataset(d)
	})
	return out, err
}

// eachItem calls fn with every item's canonical JSON in item_id order. body is
// fn's to change and valid until it returns.
func (t *tx) eachItem(dataset string, fn func(body []byte) error) error {
	rows, err := t.sql.QueryContext(t.ctx, "select body from item where dataset = ? order by id", dataset)
	if err != nil {
		return fmt.Errorf("reading items: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var body []byte
		if err := rows.Scan(&body); err != nil {
			return fmt.Errorf("reading items: %w", err)
		}
		if err := fn(body); err != nil {
			return err
		}
	}
	return rows.Err()
}
