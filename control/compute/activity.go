package compute

import (
	"context"
	"net/http"
	"strings"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

const (
	activitiesPath = root + "/activities"
	activityPath   = activitiesPath + "/{activity}"

	maxEnqueue = 1 << 20 // bytes of an order
)

func (p *Plane) activities() {
	type activityID struct {
		Activity string `path:"activity"`
	}
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodPost, Path: activitiesPath, Summary: "Ask a node for work",
		Takes: api.Enqueue{}, Limit: maxEnqueue, Gives: api.Activity{}, Status: http.StatusCreated,
	}, func(ctx context.Context, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		if wait, ok := p.enqueues.take(route.From(ctx).Requester()); !ok {
			return nil, api.Refuse(api.RateLimited, "%s asks for more than is taken of one requester; try again in a second or more",
				route.From(ctx).Requester()).After(wait)
		}
		var order api.Enqueue
		if err := route.Read(in.RawBody, &order); err != nil {
			return nil, err
		}
		return p.enqueue(ctx, f, order)
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodGet, Path: activitiesPath, Summary: "List activities, the newest first", Gives: api.Activities{},
	}, func(ctx context.Context, in *struct {
		Node  string         `query:"node"`
		State activity.State `query:"state" enum:"requested,pulling,starting,ready,idle,stopped,failed"`
		After string         `query:"after" doc:"the last activity of the page before"`
		Limit int            `query:"limit" minimum:"1" maximum:"1000" default:"1000"`
	}) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		list, err := f.Activities(ctx, api.ActivityQuery{Node: in.Node, State: in.State, After: in.After, Limit: in.Limit})
		return struct {
			Activities []canon.Raw `json:"activities"`
		}{list}, err
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodGet, Path: activityPath, Summary: "One activity", Gives: api.Activity{},
	}, func(ctx context.Context, in *activityID) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		return f.Activity(ctx, in.Activity)
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodDelete, Path: activityPath, Summary: "Cancel an activity", Gives: api.Activity{},
	}, func(ctx context.Context, in *activityID) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		return f.Cancel(ctx, in.Activity)
	})
}

// enqueue asks in this order, from what nothing would mend to what another minute
// may: is there such a node, may this person, is the order of its form, would the
// machine's owner let it in, can the machine run it, is it there, is what it needs
// held here.
func (p *Plane) enqueue(ctx context.Context, f *db.Fleet, order api.Enqueue) (any, error) {
	c := route.From(ctx)
	w, err := f.Worker(order.Node)
	if err != nil {
		return nil, err
	}
	if err := mayAsk(c, order.Kind, w); err != nil {
		return nil, err
	}
	a, err := ask(order.Kind, c.Owner, order.Input)
	if err != nil {
		return nil, err
	}
	lacking := p.lacking(c.Owner, order)
	return f.Enqueue(ctx, db.Order{Enqueue: order, Project: c.Project, Requester: c.Requester()}, func(w api.Worker, held int) error {
		if err := refuse(mirror(w.WorkerFacts), w.Offers, a, held); err != nil {
			return err
		}
		if w.Status != api.Online {
			return api.Refuse(api.NodeOffline, "node %s has not asked for work for %d s", w.ID, api.OnlineFor)
		}
		return lacking
	})
}

// mayAsk is whom a kind takes orders from (A4).
func mayAsk(c route.Caller, kind string, w api.Worker) error {
	switch {
	case kind == policy.EngineServe && !c.Admin:
		return api.Refuse(api.Forbidden, "%s publishes a model to the whole org: it takes an admin of the org", kind)
	case kind == policy.FnRun && !c.Admin && c.Requester() != w.LinkedBy:
		return api.Refuse(api.Forbidden, "%s takes an admin of the org, or %s who linked the node", kind, w.LinkedBy)
	}
	return nil
}

// lacking is what this control plane lacks to hand an order on: the code that runs
// its kind, or the bytes of its trees.
func (p *Plane) lacking(owner string, order api.Enqueue) error {
	if order.Kind != policy.TrainFit {
		return api.Refuse(api.Invalid, "kind: this control plane does not run %s yet; it runs train.fit", order.Kind)
	}
	in, err := policy.ParseTrainFit(order.Input)
	if err != nil {
		return api.Refuse(api.Invalid, "input: %v", err)
	}
	org, err := p.store.Org(owner)
	if err != nil {
		return err
	}
	var missing []string
	for _, tree := range []struct{ name, hash string }{{"stage", in.Stage}, {"base", in.Base}} {
		files, err := org.TreeMissing(tree.hash)
		if api.Is(err, api.NotFound) {
			missing = append(missing, tree.name+" "+tree.hash)
		} else if err != nil {
			return err
		} else if len(files) > 0 {
			missing = append(missing, tree.name+" "+tree.hash+", of which files have not come")
		}
	}
	if len(missing) > 0 {
		return api.Refuse(api.Invalid, "input: these trees are not held here, and hanzo run sends them: %s", strings.Join(missing, "; "))
	}
	return nil
}
