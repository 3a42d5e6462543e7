package research

import (
	"context"
	"net/http"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
)

const gatesPath = "/v1/research/gates"

func (p *Plane) gates() {
	handle(p, route.Op{
		Method: http.MethodPost, Path: gatesPath, Summary: "Store a gate",
		Takes: gate.Gate{}, Limit: maxObject, Gives: api.GateStored{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var g gate.Gate
		if err := route.Read(in.RawBody, &g); err != nil {
			return nil, err
		}
		return org.PutGate(ctx, g)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: gatesPath, Summary: "List gates", Gives: api.Page[api.StoredGate]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Name string `query:"name"`
		Paging
	}) (any, error) {
		gates, err := org.Gates(ctx, in.Name, in.After, in.Limit)
		if err != nil {
			return nil, err
		}
		return api.Page[api.StoredGate]{Data: gates}, nil
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: gatesPath + "/{hash}", Summary: "One gate, with when it was received", Gives: api.StoredGate{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Hash canon.Hash `path:"hash"`
	}) (any, error) {
		return org.Gate(ctx, in.Hash)
	})
}
