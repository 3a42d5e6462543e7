package db

import (
	"context"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
)

// PutGate stores a gate. The same gate again is a no-op; another gate of its name
// must be the next version and name the one before (HIP-1334 §9.3), so that a
// name's versions are one line without forks.
func (o *Org) PutGate(ctx context.Context, g gate.Gate) (api.GateStored, error) {
	hash, err := g.Hash()
	if err != nil {
		return api.GateStored{}, api.Refuse(api.Invalid, "gate: %v", err)
	}
	body, err := canon.Marshal(g)
	if err != nil {
		return api.GateStored{}, err
	}
	out := api.GateStored{GateSpecHash: hash}
	err = o.update(ctx, func(t *tx) error {
		if held, err := t.gateHeld(hash); held || err != nil {
			return err
		}
		var last *gate.Gate
		var previous gate.Gate
		ok, err := t.object(&previous, "select body from gate where name = ? order by version desc limit 1", g.Name)
		if err != nil {
			return err
		}
		if ok {
			last = &previous
		}
		if err := g.Follows(last); err != nil {
			return api.Refuse(api.BadVersion, "gate: %v", err)
		}
		if err := g.Validate(); err != nil {
			return api.Refuse(api.BadGate, "gate: %v", err)
		}
		seq, err := t.next()
		if err != nil {
			return err
		}
		out.Created = true
		return t.exec("insert into gate(hash, seq, name, version, received, body) values(?, ?, ?, ?, ?, ?)",
			string(hash), seq, g.Name, g.Version, t.received, body)
	})
	return out, err
}

func (t *tx) gateHeld(hash canon.Hash) (bool, error) {
	var one int
	return t.row("select 1 from gate where hash = ?", []any{string(hash)}, &one)
}

// gateSpec reads a held gate.
func (t *tx) gateSpec(hash canon.Hash) (gate.Gate, bool, error) {
	var g gate.Gate
	ok, err := t.object(&g, "select body from gate where hash = ?", string(hash))
	return g, ok, err
}

// Gate answers one gate.
func (o *Org) Gate(ctx context.Context, hash canon.Hash) (api.StoredGate, error) {
	page, err := o.gates(ctx, "hash = ?", string(hash))
	if err != nil {
		return api.StoredGate{}, err
	}
	if len(page) == 0 {
		return api.StoredGate{}, unknown("gate", string(hash))
	}
	return page[0], nil
}

// Gates lists the versions of name, or of every gate when it is empty.
func (o *Org) Gates(ctx context.Context, name, after string, limit int) ([]api.StoredGate, error) {
	var from uint64
	if after != "" {
		g, err := o.Gate(ctx, canon.Hash(after))
		if err != nil {
			return nil, api.Refuse(api.Invalid, "after: there is no gate %s", after)
		}
		from = g.Sequence
	}
	where, args := "seq > ?", []any{from}
	if name != "" {
		where, args = where+" and name = ?", append(args, name)
	}
	return o.gates(ctx, where+" order by seq limit ?", append(args, limit)...)
}

// gates reads the rows that the end of a select admits.
func (o *Org) gates(ctx context.Context, where string, args ...any) ([]api.StoredGate, error) {
	out := []api.StoredGate{}
	err := o.view(ctx, func(t *tx) error {
		rows, err := t.sql.QueryContext(ctx, "select hash, seq, received, (select count(*) from scoring where scoring.gate = hash), body from gate where "+where, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var g api.StoredGate
			var body []byte
			if err := rows.Scan((*string)(&g.GateSpecHash), &g.Sequence, &g.Received, &g.Scorings, &body); err != nil {
				return err
			}
			if err := decode(body, &g.Spec); err != nil {
				return err
			}
			out = append(out, g)
		}
		return rows.Err()
	})
	return out, err
}
