package db

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// AppendItems adds items to an open dataset, all or none. An item that is there
// already with the same content is a duplicate; with other content it is refused.
func (o *Org) AppendItems(ctx context.Context, dataset string, items []record.DatasetItem) (api.ItemsAppended, error) {
	if len(items) > api.MaxItems {
		return api.ItemsAppended{}, api.Refuse(api.TooLarge, "%d items in one call; send at most %d", len(items), api.MaxItems)
	}
	rows := make([]itemRow, len(items))
	for i, it := range items {
		var err error
		if rows[i], err = prepare(it, dataset); err != nil {
			return api.ItemsAppended{}, at(i, it, err)
		}
	}
	var out api.ItemsAppended
	err := o.update(ctx, func(t *tx) error {
		d, ok, err := t.dataset(dataset)
		if err != nil {
			return err
		}
		if !ok {
			return unknown("dataset", dataset)
		}
		added, err := t.appendItems(d, items, rows)
		if err != nil {
			return err
		}
		d.Items += added
		out = api.ItemsAppended{Dataset: d.ID, Accepted: added, Duplicate: uint64(len(items)) - added, Items: d.Items}
		if added == 0 {
			return nil
		}
		return t.putDataset(d)
	})
	return out, err
}

// An itemRow is what is stored of an item.
type itemRow struct {
	body          []byte
	contamination *string
}

// prepare checks an item by itself and computes its row.
func prepare(it record.DatasetItem, dataset string) (itemRow, error) {
	if err := it.Validate(); err != nil {
		return itemRow{}, purposeRefused("item", err)
	}
	if it.DatasetID != dataset {
		return itemRow{}, api.Refuse(api.Invalid, "dataset_id is %s, but the path names %s", it.DatasetID, dataset)
	}
	body, err := canon.Marshal(it)
	if err != nil {
		return itemRow{}, api.Refuse(api.Invalid, "%v", err)
	}
	row := itemRow{body: body}
	// The hash over no string at all is the same for every item of numbers only:
	// it says nothing about their being equal.
	if hash, matches := record.ContaminationHash(it.Payload.Input); matches {
		s := string(hash)
		row.contamination = &s
	}
	return row, nil
}

// at says which item of a call a refusal is about.
func at(i int, it record.DatasetItem, err error) error {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		q := *p
		q.Detail = fmt.Sprintf("items/%d (item_id %q): %s", i, it.ItemID, p.Detail)
		return &q
	}
	return err
}

// itemStatements are prepared once for the thousands of items of an append.
type itemStatements struct{ held, insert, byExample, byText *sql.Stmt }

func (t *tx) itemStatements() (*itemStatements, error) {
	var s itemStatements
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{
		{&s.held, "select body from item where dataset = ? and id = ?"},
		{&s.insert, "insert into item(dataset, id, example, contamination, guarded, body) values(?, ?, ?, ?, ?, ?)"},
		{&s.byExample, "select dataset, id from item where guarded and example = ? limit 1"},
		{&s.byText, "select dataset, id from item where guarded and contamination = ? limit 1"},
	} {
		var err error
		// The transaction closes its statements when it ends.
		if *p.to, err = t.sql.PrepareContext(t.ctx, p.query); err != nil {
			return nil, fmt.Errorf("preparing an append: %w", err)
		}
	}
	return &s, nil
}

// appendItems inserts the items that are new and returns how many were.
func (t *tx) appendItems(d record.Dataset, items []record.DatasetItem, rows []itemRow) (added uint64, err error) {
	s, err := t.itemStatements()
	if err != nil {
		return 0, err
	}
	for i, it := range items {
		if it.Purpose != d.Purpose {
			return 0, at(i, it, api.Refuse(api.PurposeRefused, "purpose is %s, but dataset %s is %s", it.Purpose, d.ID, d.Purpose))
		}
		var body []byte
		switch err := s.held.QueryRowContext(t.ctx, d.ID, it.ItemID).Scan(&body); {
		case err == nil && bytes.Equal(body, rows[i].body):
			continue
		case err == nil:
			return 0, at(i, it, api.Refuse(api.Exists, "the dataset has an item of this id with other content"))
		case !errors.Is(err, sql.ErrNoRows):
			return 0, fmt.Errorf("reading items: %w", err)
		}
		if d.State == record.Sealed {
			return 0, at(i, it, api.Refuse(api.Sealed, "dataset %s is sealed and takes no more items", d.ID))
		}
		if err := s.checkContamination(t.ctx, it, rows[i].contamination); err != nil {
			return 0, at(i, it, err)
		}
		_, err := s.insert.ExecContext(t.ctx, d.ID, it.ItemID, it.CanonicalExampleID, rows[i].contamination,
			it.Purpose.Evaluation(), rows[i].body)
		if err != nil {
			return 0, fmt.Errorf("writing items: %w", err)
		}
		added++
	}
	return added, nil
}

// checkContamination refuses an item on its way to training that equals an
// evaluation item of the org (HIP-1334 §3.5).
func (s *itemStatements) checkContamination(ctx context.Context, it record.DatasetItem, contamination *string) error {
	if it.Purpose != record.Train && it.Purpose != record.TeacherMining {
		return nil
	}
	var dataset, item string
	switch err := s.byExample.QueryRowContext(ctx, it.CanonicalExampleID).Scan(&dataset, &item); {
	case err == nil:
		return api.Refuse(api.Contaminated, "canonical_example_id %s is that of item %s of evaluation dataset %s", it.CanonicalExampleID, item, dataset)
	case !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("looking for contamination: %w", err)
	}
	if contamination == nil {
		return nil
	}
	switch err := s.byText.QueryRowContext(ctx, *contamination).Scan(&dataset, &item); {
	case err == nil:
		return api.Refuse(api.Contaminated, "its input's text equals that of item %s of evaluation dataset %s", item, dataset)
	case !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("looking for contamination: %w", err)
	}
	return nil
}

// Items answers at most limit items in item_id order after the id after. The
// items of a sealed_eval dataset are answered, without gold, only for a run that
// attached it to evaluate, and each such read is counted.
func (o *Org) Items(ctx context.Context, dataset, after string, limit int, run string) ([]canon.Raw, error) {
	d, err := o.Dataset(ctx, dataset)
	if err != nil {
		return nil, err
	}
	const query = "select body from item where dataset = ? and id > ? order by id limit ?"
	var out []canon.Raw
	if d.Purpose != record.SealedEval {
		err = o.view(ctx, func(t *tx) error {
			out, err = t.bodies(query, dataset, after, limit)
			return err
		})
		return out, err
	}
	err = o.update(ctx, func(t *tx) error {
		var one int
		attached, err := t.row("select 1 from attachment where dataset = ? and run = ? and role = ?",
			[]any{dataset, run, string(record.RoleEvaluate)}, &one)
		if err != nil {
			return err
		}
		if !attached {
			return api.Refuse(api.Sealed, "dataset %s is sealed_eval: name, as run, a run that attached it with role evaluate", dataset).With(403)
		}
		if err := t.exec("insert into sealed_read values(?, ?, 1) on conflict do update set reads = reads + 1", dataset, run); err != nil {
			return err
		}
		if out, err = t.bodies(query, dataset, after, limit); err != nil {
			return err
		}
		for i, body := range out {
			var it record.DatasetItem
			if err := decode(body, &it); err != nil {
				return err
			}
			it.Payload.Gold = nil
			if out[i], err = canon.Marshal(it); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
