package upload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// work is what is to be sent, in order.
type work struct {
	artifacts   []record.Artifact // parents first
	datasets    []record.Dataset  // parents first
	gates       []namedGate       // versions ascending
	determinism []namedReport
	streams     []*stream
}

type namedGate struct {
	hash canon.Hash
	gate gate.Gate
}

type namedReport struct {
	hash   canon.Hash
	report record.DeterminismReport
}

func (w work) empty() bool {
	return len(w.artifacts)+len(w.datasets)+len(w.gates)+len(w.determinism)+len(w.streams) == 0
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
	if w.determinism, err = u.planDeterminism(); err != nil {
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
	todo, err := unsent(u, "artifact ", held, u.spool.ArtifactAcked, u.spool.Artifact)
	return parentsFirst(held, todo, func(a record.Artifact) []canon.SHA256 { return a.Parents }), err
}

func (u *Uploader) planDatasets() ([]record.Dataset, error) {
	held, err := u.spool.Datasets()
	if err != nil {
		return nil, err
	}
	todo, err := unsent(u, "dataset ", held, u.spool.DatasetAcked, u.spool.Dataset)
	return parentsFirst(held, todo, func(d record.Dataset) []string { return d.Parents }), err
}

func (u *Uploader) planGates() ([]namedGate, error) {
	held, err := u.spool.Gates()
	if err != nil {
		return nil, err
	}
	todo, err := unsent(u, "gate ", held, u.spool.GateAcked, func(h canon.Hash) (gate.Gate, bool) {
		g, err := u.spool.LoadGate(h)
		return g, err == nil
	})
	var gates []namedGate
	for hash, g := range todo {
		gates = append(gates, namedGate{hash, g})
	}
	slices.SortFunc(gates, func(a, b namedGate) int {
		return cmp.Or(cmp.Compare(a.gate.Version, b.gate.Version), cmp.Compare(a.hash, b.hash))
	})
	return gates, err
}

func (u *Uploader) planDeterminism() ([]namedReport, error) {
	held, err := u.spool.Determinism()
	if err != nil {
		return nil, err
	}
	todo, err := unsent(u, "determinism report ", held, u.spool.DeterminismAcked, func(h canon.Hash) (record.DeterminismReport, bool) {
		r, err := u.spool.LoadDeterminism(h)
		return r, err == nil
	})
	var reports []namedReport
	for _, hash := range held {
		if r, ok := todo[hash]; ok {
			reports = append(reports, namedReport{hash, r})
		}
	}
	return reports, err
}

// unsent loads those of names that are neither acknowledged nor refused. One that
// cannot be read is refused here.
func unsent[K ~string, V any](u *Uploader, kind string, names []K, acked func(K) (bool, error), load func(K) (V, bool)) (map[K]V, error) {
	todo := make(map[K]V)
	for _, name := range names {
		subject := kind + string(name)
		switch done, err := acked(name); {
		case err != nil:
			return nil, err
		case done || u.isRefused(subject):
			continue
		}
		v, ok := load(name)
		if !ok {
			err := fmt.Errorf("%w: its JSON file cannot be read; move it away and put the object again", spool.ErrCorrupt)
			if err := u.settle(subject, 0, err); err != nil {
				return nil, err
			}
			continue
		}
		todo[name] = v
	}
	return todo, nil
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

// planStreams opens or continues every run's log and keeps those with something
// to send.
func (u *Uploader) planStreams() ([]*stream, error) {
	ids, err := u.spool.Runs()
	if err != nil {
		return nil, err
	}
	var todo []*stream
	for _, run := range ids {
		if u.isRefused("run "+run) || u.wanted != nil && !u.wanted(run) {
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
