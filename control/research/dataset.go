package research

import (
	"context"
	"net/http"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// Paging is the query of every listing. Its name is exported for huma, which does
// not look into an embedded struct otherwise.
type Paging struct {
	After string `query:"after" doc:"the last id of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"1000"`
}

// objects is a page of stored objects, verbatim.
type objects = api.Page[canon.Raw]

// page answers objects, or the error of reading them.
func page(data []canon.Raw, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return objects{Data: data}, nil
}

const datasetsPath = "/v1/research/datasets"

func (p *Plane) datasets() {
	type id struct {
		ID string `path:"id"`
	}
	handle(p, route{
		method: http.MethodPost, path: datasetsPath, summary: "Create a dataset, open",
		takes: api.DatasetCreate{}, limit: maxObject, gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var d api.DatasetCreate
		if err := read(in.RawBody, &d); err != nil {
			return nil, err
		}
		return org.CreateDataset(ctx, d)
	})
	handle(p, route{
		method: http.MethodGet, path: datasetsPath, summary: "List datasets", gives: api.Page[record.Dataset]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Purpose   record.Purpose `query:"purpose" enum:"train,dev,eval_only,sealed_eval,teacher_mining"`
		Benchmark string         `query:"benchmark"`
		Paging
	}) (any, error) {
		return page(org.Datasets(ctx, api.DatasetQuery{
			Purpose: in.Purpose, Benchmark: in.Benchmark, After: in.After, Limit: in.Limit,
		}))
	})
	handle(p, route{
		method: http.MethodGet, path: datasetsPath + "/{id}", summary: "One dataset", gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.Dataset(ctx, in.ID)
	})
	handle(p, route{
		method: http.MethodDelete, path: datasetsPath + "/{id}", summary: "Delete a dataset that no run attached",
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return nil, org.DeleteDataset(ctx, in.ID)
	})
	handle(p, route{
		method: http.MethodPost, path: datasetsPath + "/{id}/items", summary: "Append items, all or none",
		takes: api.ItemsAppend{}, limit: maxItems, gives: api.ItemsAppended{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID      string `path:"id"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var items api.ItemsAppend
		if err := read(in.RawBody, &items); err != nil {
			return nil, err
		}
		return org.AppendItems(ctx, in.ID, items.Items)
	})
	handle(p, route{
		method: http.MethodGet, path: datasetsPath + "/{id}/items", summary: "Items in item_id order",
		gives: api.Page[record.DatasetItem]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID  string `path:"id"`
		Run string `query:"run" doc:"for a sealed_eval dataset: the run that attached it with role evaluate"`
		Paging
	}) (any, error) {
		return page(org.Items(ctx, in.ID, in.After, in.Limit, in.Run))
	})
	handle(p, route{
		method: http.MethodPost, path: datasetsPath + "/{id}/seal", summary: "Seal a dataset", gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.SealDataset(ctx, in.ID)
	})
}
