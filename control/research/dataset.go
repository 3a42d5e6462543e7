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
	handle(p, route.Op{
		Method: http.MethodPost, Path: datasetsPath, Summary: "Create a dataset, open",
		Takes: api.DatasetCreate{}, Limit: maxObject, Gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var d api.DatasetCreate
		if err := route.Read(in.RawBody, &d); err != nil {
			return nil, err
		}
		return org.CreateDataset(ctx, d)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: datasetsPath, Summary: "List datasets", Gives: api.Page[record.Dataset]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Purpose   record.Purpose `query:"purpose" enum:"train,dev,eval_only,sealed_eval,teacher_mining"`
		Benchmark string         `query:"benchmark"`
		Paging
	}) (any, error) {
		return page(org.Datasets(ctx, api.DatasetQuery{
			Purpose: in.Purpose, Benchmark: in.Benchmark, After: in.After, Limit: in.Limit,
		}))
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: datasetsPath + "/{id}", Summary: "One dataset", Gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.Dataset(ctx, in.ID)
	})
	handle(p, route.Op{
		Method: http.MethodDelete, Path: datasetsPath + "/{id}", Summary: "Delete a dataset that no run attached",
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return nil, org.DeleteDataset(ctx, in.ID)
	})
	handle(p, route.Op{
		Method: http.MethodPost, Path: datasetsPath + "/{id}/items", Summary: "Append items, all or none",
		Takes: api.ItemsAppend{}, Limit: maxItems, Gives: api.ItemsAppended{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID      string `path:"id"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var items api.ItemsAppend
		if err := route.Read(in.RawBody, &items); err != nil {
			return nil, err
		}
		return org.AppendItems(ctx, in.ID, items.Items)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: datasetsPath + "/{id}/items", Summary: "Items in item_id order",
		Gives: api.Page[record.DatasetItem]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID  string `path:"id"`
		Run string `query:"run" doc:"for a sealed_eval dataset: the run that attached it with role evaluate"`
		Paging
	}) (any, error) {
		return page(org.Items(ctx, in.ID, in.After, in.Limit, in.Run))
	})
	handle(p, route.Op{
		Method: http.MethodPost, Path: datasetsPath + "/{id}/seal", Summary: "Seal a dataset", Gives: record.Dataset{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.SealDataset(ctx, in.ID)
	})
}
