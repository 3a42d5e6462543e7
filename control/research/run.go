package research

import (
	"context"
	"net/http"
	"strconv"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/spool/record"
)

const (
	runsPath        = "/v1/research/runs"
	evaluationsPath = "/v1/research/evaluations"
)

func (p *Plane) runs() {
	type id struct {
		ID string `path:"id"`
	}
	handle(p, route.Op{
		Method: http.MethodPost, Path: runsPath + "/{id}/events", Summary: "Append events in seq order",
		Takes: api.EventsAppend{}, Limit: maxEvents, Gives: api.Appended{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID      string `path:"id"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		c := route.From(ctx)
		if err := c.MayRecord(in.ID); err != nil {
			return nil, err
		}
		var events api.EventsAppend
		if err := route.Read(in.RawBody, &events); err != nil {
			return nil, err
		}
		return org.AppendEvents(ctx, c.Project, in.ID, events.Events)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: runsPath + "/{id}/events", Summary: "The log, verbatim", Gives: api.Page[struct{}]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		ID    string `path:"id"`
		After string `query:"after" doc:"the last seq of the page before" pattern:"^[0-9]{1,19}$"`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"1000"`
	}) (any, error) {
		var after uint64
		if in.After != "" {
			var err error
			if after, err = strconv.ParseUint(in.After, 10, 63); err != nil {
				return nil, api.Refuse(api.Invalid, "after: %q is not a seq", in.After)
			}
		}
		return page(org.Events(ctx, in.ID, after, in.Limit))
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: runsPath + "/{id}", Summary: "The view of a run: the fold of its events", Gives: api.Run{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.Run(ctx, in.ID)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: runsPath, Summary: "List views", Gives: api.Page[api.Run]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Kind   string `query:"kind" enum:"train,eval,harvest,probe"`
		Status string `query:"status" enum:"created,training,evaluating,completed,failed,cancelled"`
		Tag    string `query:"tag"`
		Job    string `query:"job"`
		Since  string `query:"since" doc:"created at or after, RFC 3339"`
		Until  string `query:"until" doc:"created before, RFC 3339"`
		Paging
	}) (any, error) {
		if err := instantQuery("since", in.Since); err != nil {
			return nil, err
		}
		if err := instantQuery("until", in.Until); err != nil {
			return nil, err
		}
		return page(org.Runs(ctx, api.RunQuery{
			Kind: in.Kind, Status: in.Status, Tag: in.Tag, Job: in.Job,
			Since: in.Since, Until: in.Until, After: in.After, Limit: in.Limit,
		}))
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: evaluationsPath, Summary: "List evaluations", Gives: api.Page[api.Evaluation]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Run     string         `query:"run"`
		Dataset string         `query:"dataset"`
		Subject string         `query:"subject" doc:"an artifact's sha256, or a system's name"`
		Purpose record.Purpose `query:"purpose" enum:"train,dev,eval_only,sealed_eval,teacher_mining"`
		Paging
	}) (any, error) {
		return page(org.Evaluations(ctx, api.EvaluationQuery{
			Run: in.Run, Dataset: in.Dataset, Subject: in.Subject, Purpose: in.Purpose, After: in.After, Limit: in.Limit,
		}))
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: evaluationsPath + "/{id}", Summary: "One evaluation", Gives: api.Evaluation{},
	}, func(ctx context.Context, org *db.Org, in *id) (any, error) {
		return org.Evaluation(ctx, in.ID)
	})
}
