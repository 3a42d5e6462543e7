package compute

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/route"
)

func (p *Plane) events() {
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodGet, Path: root + "/events", Summary: "What became of activities, in order",
		Gives: api.Page[api.WorkloadEvent]{},
	}, func(ctx context.Context, in *struct {
		After string `query:"after" doc:"the seq of the last event seen" pattern:"^[0-9]{1,19}$"`
		Wait  int    `query:"wait" minimum:"0" maximum:"30" doc:"seconds to wait for the first when there is none"`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"1000"`
	}) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		var after uint64
		if in.After != "" {
			if after, err = strconv.ParseUint(in.After, 10, 63); err != nil {
				return nil, api.Refuse(api.Invalid, "after: %q is not a seq", in.After)
			}
		}
		events, err := f.WorkloadEvents(ctx, after, in.Limit, time.Duration(in.Wait)*time.Second, p.draining)
		return api.Page[api.WorkloadEvent]{Data: events}, err
	})
}
