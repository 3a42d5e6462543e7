package upload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// work is what is to be sent, in order.
type work struct {
	artifacts []record.Artifact // parents first
	datasets  []record.Dataset  // parents first
	gates     []namedGate       // versions ascending
	streams   []*stream
}

type namedGate struct {
	hash canon.Hash
	gate gate.Gate
}

func (w work) empty() bool {
	return len(w.artifacts)+len(w.datasets)+len(w.gates)+len(w.streams) == 0
}

// plan lists what is held, not acknowledged and not refused.
func (u *Uploader) plan() (w work, err error) {
	if w.artifacts, err = u.planArtifacts(); err != nil {
		return w, err
	}
	if w.datasets, err = u.planDatasets(); err != nil {
		return w, err
	}
	if w.gates, err = u.planGates(); err != nil {
		return w, err
	}
	w.streams, err = u.planStreams()
	return w, err
}

func (u *Uploader) isRefused(subject string) bool { _, ok := u.refused[subject]; return ok }

func (u *Uploader) planArtifacts() ([]record.Artifact, error) {
	held, err := u.spool.Artifacts()
	if err != nil {
		return nil, err
	}
	todo := make(map[canon.SHA256]record.Artifact)
	var order []canon.SHA256
	for _, sha := range held {
		acked, err := u.spool.ArtifactAcked(sha)
		if err != nil {
			return nil, err
		}
		if acked || u.isRefused("artifact "+string(sha)) {
			continue
		}
		a, ok := u.spool.Artifact(sha)
		if !ok {
			continue // being put, or unreadable: a run that needs it will say so
		}
		todo[sha] = a
		order = append(order, sha)
	}
	return parentsFirst(order, todo, func(a record.Artifact) []canon.SHA256 { return a.Parents }), nil
}

func (u *Uploader) planDatasets() ([]record.Dataset, error) {
	held, err := u.spool.Datasets()
	if err != nil {
		return nil, err
	}
	todo := make(map[string]record.Dataset)
	var order []string
	for _, id := range held {
		acked, err := u.spool.DatasetAcked(id)
		if err != nil {
			return nil, err
		}
		if acked || u.isRefused("dataset "+id) {
			continue
		}
		d, ok := u.spool.Dataset(id)
		if !ok {
			continue
		}
		todo[id] = d
		order = append(order, id)
	}
	return parentsFirst(order, todo, func(d record.Dataset) []string { return d.Parents }), nil
}

// parentsFirst orders what is to do so that each comes after its parents. What
// hashes name cannot go in circles; should names do so, the circle is broken
// anywhere and the server refuses it.
func parentsFirst[K comparable, V any](order []K, todo map[K]V, parents func(V) []K) []V {
	var sorted []V
	seen := make(map[K]bool)
	var visit func(K)
	visit = func(k K) {
		v, ok := todo[k]
		if !ok || seen[k] {
			return
		}
		seen[k] = true
		for _, p := range parents(v) {
			visit(p)
		}
		sorted = append(sorted, v)
	}
	for _, k := range order {
		visit(k)
	}
	return sorted
}

func (u *Uploader) planGates() ([]namedGate, error) {
	held, err := u.spool.Gates()
	if err != nil {
		return nil, err
	}
	var todo []namedGate
	for _, hash := range held {
		acked, err := u.spool.GateAcked(hash)
		if err != nil {
			return nil, err
		}
		if acked || u.isRefused("gate "+string(hash)) {
			continue
		}
		g, err := u.spool.LoadGate(hash)
		if err != nil {
			return nil, fmt.Errorf("reading gate %s: %w", hash, err)
		}
		todo = append(todo, namedGate{hash, g})
	}
	slices.SortStableFunc(todo, func(a, b namedGate) int { return cmp.Compare(a.gate.Version, b.gate.Version) })
	return todo, nil
}

// planStreams opens or continues every run's log and keeps those with something
// to send.
func (u *Uploader) planStreams() ([]*stream, error) {
	ids, err := u.spool.Runs()
	if err != nil {
		return nil, err
	}
	var todo []*stream
	for _, run := range ids {
		if u.isRefused("run " + run) {
			continue
		}
		s := u.streams[run]
		if s == nil {
			acked, err := u.spool.Acked(run)
			if err != nil {
				if err := u.settle("run "+run, 0, err); err != nil {
					return nil, err
				}
				continue
			}
			s = newStream(u.spool, run, acked)
			u.streams[run] = s
		}
		err := s.fill()
		if len(s.pending) > 0 {
			todo = append(todo, s) // what is before a fault is sent first
			continue
		}
		if err != nil {
			if err := u.settle("run "+run, s.next(), err); err != nil {
				return nil, err
			}
		}
	}
	return todo, nil
}
