package research

import (
	"context"
	"net/http"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

const determinismPath = "/v1/research/determinism"

func (p *Plane) determinism() {
	handle(p, route.Op{
		Method: http.MethodPost, Path: determinismPath, Summary: "Store a determinism report, whose environment is stored",
		Takes: record.DeterminismReport{}, Limit: maxObject, Gives: api.DeterminismStored{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var r record.DeterminismReport
		if err := route.Read(in.RawBody, &r); err != nil {
			return nil, err
		}
		return org.PutDeterminism(ctx, r)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: determinismPath, Summary: "List determinism reports", Gives: api.Page[api.StoredDeterminism]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Environment canon.SHA256 `query:"environment" doc:"an environment artifact's sha256" pattern:"^[0-9a-f]{64}$"`
		Paging
	}) (any, error) {
		reports, err := org.Determinism(ctx, api.DeterminismQuery{Environment: in.Environment, After: in.After, Limit: in.Limit})
		if err != nil {
			return nil, err
		}
		return api.Page[api.StoredDeterminism]{Data: reports}, nil
	})
}
