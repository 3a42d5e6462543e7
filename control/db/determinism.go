package db

import (
	"context"
	"fmt"
	"io"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// maxEnvironment is the most bytes of an environment that is read: one has some
// hundred.
const maxEnvironment = 1 << 20

// PutDeterminism stores a determinism report (HIP-1334 §6). Its environment must be
// a stored artifact. The same report again is a no-op.
func (o *Org) PutDeterminism(ctx context.Context, r record.DeterminismReport) (api.DeterminismStored, error) {
	if err := r.Validate(); err != nil {
		return api.DeterminismStored{}, api.Refuse(api.Invalid, "report: %v", err)
	}
	body, err := canon.Marshal(r)
	if err != nil {
		return api.DeterminismStored{}, err
	}
	environment, err := o.environment(ctx, r.EnvironmentArtifactSHA256)
	if err != nil {
		return api.DeterminismStored{}, err
	}
	out := api.DeterminismStored{ReportHash: canon.HashOf(body)}
	err = o.update(ctx, func(t *tx) error {
		var one int
		if held, err := t.row("select 1 from determinism where hash = ?", []any{string(out.ReportHash)}, &one); held || err != nil {
			return err
		}
		seq, err := t.next()
		if err != nil {
			return err
		}
		out.Created = true
		return t.exec("insert into determinism(hash, seq, environment, reference, received, body) values(?, ?, ?, ?, ?, ?)",
			string(out.ReportHash), seq, string(r.EnvironmentArtifactSHA256), r.Exact && !environment.Dirty, t.received, body)
	})
	return out, err
}

// environment reads a stored environment. What is stored never changes.
func (o *Org) environment(ctx context.Context, sha canon.SHA256) (record.Environment, error) {
	var e record.Environment
	var a record.Artifact
	err := o.view(ctx, func(t *tx) error {
		var ok bool
		var err error
		if a, ok, err = t.artifact(sha); err == nil && !ok {
			return api.Refuse(api.NotStored, "environment_artifact_sha256: there is no artifact %s; store the environment first", sha)
		}
		return err
	})
	if err != nil {
		return e, err
	}
	bad := func(format string, args ...any) error {
		return api.Refuse(api.BadEnvironment, "environment_artifact_sha256: artifact %s %s", sha, fmt.Sprintf(format, args...))
	}
	switch {
	case a.Kind != record.KindEnvironment:
		return e, bad("is %s, not %s", a.Kind, record.KindEnvironment)
	case a.State != record.Stored:
		return e, api.Refuse(api.NotStored, "environment_artifact_sha256: artifact %s is registered, but its bytes have not come", sha)
	case a.Size > maxEnvironment:
		return e, bad("has %d bytes; an environment has at most %d", a.Size, maxEnvironment)
	}
	_, f, err := o.OpenArtifact(ctx, sha)
	if err != nil {
		return e, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return e, fmt.Errorf("reading environment %s: %w", sha, err)
	}
	if err := canon.Unmarshal(b, &e); err != nil {
		return e, bad("does not read as an environment: %v", err)
	}
	if err := e.Validate(); err != nil {
		return e, bad("does not read as an environment: %v", err)
	}
	return e, nil
}

// Determinism lists reports.
func (o *Org) Determinism(ctx context.Context, q api.DeterminismQuery) ([]api.StoredDeterminism, error) {
	out := []api.StoredDeterminism{}
	err := o.view(ctx, func(t *tx) error {
		var from uint64
		if q.After != "" {
			ok, err := t.row("select seq from determinism where hash = ?", []any{q.After}, &from)
			if err != nil {
				return err
			}
			if !ok {
				return api.Refuse(api.Invalid, "after: there is no determinism report %s", q.After)
			}
		}
		var f filter
		f.and("environment = ?", string(q.Environment))
		rows, err := t.sql.QueryContext(ctx, "select hash, received, reference, body from determinism where seq > ?"+f.where+" order by seq limit ?",
			append(append([]any{from}, f.args...), q.Limit)...)
		if err != nil {
			return fmt.Errorf("reading the record: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var d api.StoredDeterminism
			var body []byte
			if err := rows.Scan((*string)(&d.ReportHash), &d.Received, &d.Reference, &body); err != nil {
				return fmt.Errorf("reading the record: %w", err)
			}
			if err := decode(body, &d.Report); err != nil {
				return err
			}
			out = append(out, d)
		}
		return rows.Err()
	})
	return out, err
}

// reference reports whether runs in an environment are reference-eligible: it is
// not dirty and has a passing report (HIP-1334 §6.3). A report may come after the
// run, so a view is marked when it is read and not when it is stored.
func (t *tx) reference(environment canon.SHA256) (bool, error) {
	var one int
	return t.row("select 1 from determinism where environment = ? and reference = 1 limit 1", []any{string(environment)}, &one)
}

// markReference marks those of the stored views that are reference-eligible.
func (o *Org) markReference(ctx context.Context, views []canon.Raw) error {
	return o.view(ctx, func(t *tx) error {
		known := make(map[canon.SHA256]bool)
		for i, body := range views {
			var v api.Run
			if err := decode(body, &v); err != nil {
				return err
			}
			environment := v.EnvironmentArtifactSHA256
			is, ok := known[environment]
			if !ok {
				var err error
				if is, err = t.reference(environment); err != nil {
					return err
				}
				known[environment] = is
			}
			if !is {
				continue
			}
			v.Reference = true
			var err error
			if views[i], err = canon.Marshal(v); err != nil {
				return err
			}
		}
		return nil
	})
}
