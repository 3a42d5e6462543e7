package compute

import (
	"context"
	"net/http"
	"strings"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/route"
)

const (
	maxClaim  = 256 << 10 // bytes of a claim that names a thousand activities
	maxReport = 1 << 20   // bytes of a report: two streams, each byte of which may be written as six
)

func (p *Plane) claims() {
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodPost, Path: nodePath + "/claim", Summary: "Wait for work; a node's heartbeat",
		Takes: api.Claim{}, Limit: maxClaim, Gives: api.Claimed{}, MayBeEmpty: true,
	}, func(ctx context.Context, in *struct {
		ID      string `path:"id"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		f, err := p.node(route.From(ctx), in.ID)
		if err != nil {
			return nil, err
		}
		var claim api.Claim
		if err := route.Read(in.RawBody, &claim); err != nil {
			return nil, err
		}
		if err := claim.Check(); err != nil {
			return nil, api.Refuse(api.Invalid, "body: %v", err)
		}
		claimed, err := f.Claim(ctx, in.ID, claim, admits, p.draining)
		if err != nil || claimed == nil {
			return nil, err
		}
		return claimed, nil
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodPost, Path: nodePath + "/activities/{activity}/state", Summary: "Report an activity's state",
		Takes: api.StateReport{}, Limit: maxReport,
	}, func(ctx context.Context, in *struct {
		ID       string `path:"id"`
		Activity string `path:"activity"`
		RawBody  []byte `contentType:"application/json"`
	}) (any, error) {
		f, err := p.node(route.From(ctx), in.ID)
		if err != nil {
			return nil, err
		}
		var r api.StateReport
		if err := route.Read(in.RawBody, &r); err != nil {
			return nil, err
		}
		if err := r.Check(); err != nil {
			return nil, api.Refuse(api.Invalid, "body: %v", err)
		}
		return nil, f.Report(ctx, in.ID, in.Activity, r, deniedBy(r))
	})
}

// deniedBy is the rule by which a node's policy denied an activity, as its message
// names it (policy.Denied.Error), or the code where it names none.
func deniedBy(r api.StateReport) string {
	if r.Error == nil {
		return ""
	}
	_, rest, _ := strings.Cut(r.Error.Message, "by rule ")
	rule, _, found := strings.Cut(rest, ":")
	if !found || len(rule) > 32 || strings.ContainsAny(rule, " \n") {
		return string(activity.Denied)
	}
	return rule
}
