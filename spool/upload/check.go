package upload

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// A Difference is one place where the server's record is not what the spool's
// logs add up to.
type Difference struct {
	Subject string // "run NAME", "evaluation ID of run NAME", "artifact ADDRESS", …
	Field   string // of a view; empty when the whole subject differs
	Local   string // JSON of the field, or words
	Server  string
}

func (d Difference) String() string {
	if d.Field == "" {
		return fmt.Sprintf("%s: %s here, %s on the server", d.Subject, d.Local, d.Server)
	}
	return fmt.Sprintf("%s, %s: %s here, %s on the server", d.Subject, d.Field, d.Local, d.Server)
}

// stamped are the fields of a view that the server fills in by itself.
var stamped = []string{"project", "reference", "visibility"}

// Check compares the server's view of every run here, and of its evaluations,
// with the fold of its log, and lists what else the server has not acknowledged.
// A log that cannot be read is a difference too. No difference means that
// everything here is there. It sends nothing and tries each call once.
func Check(ctx context.Context, s *spool.Spool, c *api.Client) ([]Difference, error) {
	id, err := c.Whoami(ctx)
	if err != nil {
		return nil, fatal(c, err)
	}
	if err := s.Belongs(id.Owner, id.Project, id.Server); err != nil {
		return nil, err
	}
	found, err := unacknowledged(s)
	if err != nil {
		return nil, err
	}
	ids, err := s.Runs()
	if err != nil {
		return nil, err
	}
	for _, run := range ids {
		fold, err := s.Fold(run)
		if err != nil {
			subject := "run " + run
			found = slices.DeleteFunc(found, func(d Difference) bool { return d.Subject == subject })
			found = append(found, Difference{Subject: subject, Local: fmt.Sprintf("unreadable (%v)", err), Server: "not compared"})
			continue
		}
		if fold.Next() == 1 {
			continue // begun and nothing recorded: the server does not know it
		}
		d, err := checkRun(ctx, c, run, fold)
		found = append(found, d...)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// Left counts what the server has not acknowledged of a run: its events, and the
// artifacts held here that they name. It calls nobody. A run that is not here is
// fs.ErrNotExist.
func Left(s *spool.Spool, run string) (events uint64, artifacts int, err error) {
	acked, err := s.Acked(run)
	if err != nil {
		return 0, 0, err
	}
	seen := make(map[canon.SHA256]bool)
	for e, err := range s.Events(run) {
		if err != nil {
			return 0, 0, err
		}
		if e.Seq > acked {
			events++
		}
		named := artifactsOf(e.Body)
		if d, ok := e.Body.(event.DatasetAttached); ok {
			named = append(named, d.DatasetSHA256)
		}
		for _, sha := range named {
			if _, held := s.Artifact(sha); !held || seen[sha] {
				continue
			}
			seen[sha] = true
			done, err := s.ArtifactAcked(sha)
			if err != nil {
				return 0, 0, err
			}
			if !done {
				artifacts++
			}
		}
	}
	return events, artifacts, nil
}

// unacknowledged lists the objects that still have to be sent.
func unacknowledged(s *spool.Spool) ([]Difference, error) {
	u := New(Config{Spool: s})
	w, err := u.plan()
	if err != nil {
		return nil, err
	}
	var found []Difference
	missing := func(subject, local string) {
		found = append(found, Difference{Subject: subject, Local: local, Server: "not acknowledged"})
	}
	for _, a := range w.artifacts {
		missing("artifact "+string(a.SHA256), "held")
	}
	for _, d := range w.datasets {
		missing("dataset "+d.ID, "held")
	}
	for _, g := range w.gates {
		missing("gate "+string(g.hash), "held")
	}
	for _, d := range w.determinism {
		missing("determinism report "+string(d.hash), "held")
	}
	for _, r := range u.report.Refused {
		missing(r.Subject, "unreadable")
	}
	return found, nil
}

func checkRun(ctx context.Context, c *api.Client, run string, fold *event.Run) ([]Difference, error) {
	there, err := c.Run(ctx, run)
	if api.Is(err, api.NotFound) {
		local := fmt.Sprintf("%d events", fold.Next()-1)
		return []Difference{{Subject: "run " + run, Local: local, Server: "nothing"}}, nil
	}
	if err != nil {
		return nil, err
	}
	found, err := compare("run "+run, fold.View(), there)
	if err != nil {
		return nil, err
	}
	list, err := evaluations(ctx, c, run)
	if err != nil {
		return found, err
	}
	for _, local := range fold.Evaluations() {
		subject := fmt.Sprintf("evaluation %s of run %s", local.ID, run)
		server, ok := list[local.ID]
		if !ok {
			found = append(found, Difference{Subject: subject, Local: "recorded", Server: "nothing"})
			continue
		}
		if local.Purpose == record.SealedEval {
			// The server scores these and keeps the items (HIP-1334 §8.4).
			local.Measures, local.ItemsSHA256 = server.Measures, server.ItemsSHA256
		}
		d, err := compare(subject, local, server)
		if err != nil {
			return found, err
		}
		found = append(found, d...)
	}
	return found, nil
}

// evaluations reads all of a run's, by id.
func evaluations(ctx context.Context, c *api.Client, run string) (map[string]api.Evaluation, error) {
	all := make(map[string]api.Evaluation)
	q := api.EvaluationQuery{Run: run}
	for {
		page, err := c.Evaluations(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			all[e.ID] = e
			q.After = e.ID
		}
		if len(page) < api.MaxPage {
			return all, nil
		}
	}
}

// compare compares two objects member by member.
func compare(subject string, local, server any) ([]Difference, error) {
	x, err := members(local)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	y, err := members(server)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	var found []Difference
	for _, name := range slices.Sorted(maps.Keys(x)) {
		if x[name] != y[name] && !slices.Contains(stamped, name) {
			found = append(found, Difference{Subject: subject, Field: name, Local: x[name], Server: y[name]})
		}
	}
	return found, nil
}

func members(v any) (map[string]string, error) {
	b, err := canon.Marshal(v)
	if err != nil {
		return nil, err
	}
	list, err := canon.Members(b)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string)
	for _, member := range list {
		m[member.Name] = string(member.Value)
	}
	return m, nil
}
