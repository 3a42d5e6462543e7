package upload

import (
	"context"
	"errors"
	"fmt"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
)

// A stream is one run's log on its way to the server.
type stream struct {
	run     string
	tail    *spool.Tail
	acked   uint64        // the last seq that the server acknowledged
	pending []event.Event // read and not acknowledged, from acked+1
	limit   int           // events in one call; halved by 413
}

func newStream(s *spool.Spool, run string, acked uint64) *stream {
	return &stream{run: run, tail: s.Tail(run, acked), acked: acked, limit: api.MaxEvents}
}

// next is the seq that the server is to get next.
func (s *stream) next() uint64 { return s.acked + 1 }

// fill reads on when nothing is pending. With an error there may be events from
// before it.
func (s *stream) fill() (err error) {
	if len(s.pending) == 0 {
		s.pending, err = s.tail.Next(api.MaxEvents, batchBytes)
	}
	return err
}

// sendRun sends a run's events until none is left, or until one names what the
// server does not hold yet.
func (u *Uploader) sendRun(ctx context.Context, s *stream) error {
	for {
		err := s.fill()
		if len(s.pending) == 0 {
			return err
		}
		n, err := u.ready(s.pending[:min(s.limit, len(s.pending))])
		if n == 0 {
			return err
		}
		if err := u.sendEvents(ctx, s, n); err != nil {
			return err
		}
	}
}

// sendEvents sends the first n pending events, or half of them when the server
// finds them too large.
func (u *Uploader) sendEvents(ctx context.Context, s *stream, n int) error {
	raw := make([]canon.Raw, n)
	for i, e := range s.pending[:n] {
		raw[i] = e.JSON()
	}
	err := u.try(ctx, "events of run "+s.run, func(ctx context.Context) error {
		_, err := u.client.AppendEvents(ctx, s.run, raw)
		return err
	})
	if tooLarge(err) && n > 1 {
		s.limit = n / 2
		return nil
	}
	sent := uint64(n)
	if p, ok := errors.AsType[*api.Problem](err); ok {
		// What precedes the refused event was applied. (Batch.Next does not
		// say how much that is: the server may hold other events at later seqs.)
		sent = 0
		if p.Batch != nil {
			sent = min(p.Batch.Accepted+p.Batch.Duplicate, uint64(n))
		}
		if p.Code == api.SeqGap {
			err = fmt.Errorf("%w; the server acknowledged this run up to seq %d and does not hold that now: was its data replaced? train sync --again sends all of the spool again", err, s.acked)
		}
	} else if err != nil {
		return err
	}
	if sent > 0 {
		if err := u.spool.Ack(s.run, s.acked+sent); err != nil {
			return err
		}
		s.acked += sent
		s.pending = s.pending[sent:]
		u.report.Events += int(sent)
	}
	return err
}

// ready returns how many of events, from the first, name only what the server
// holds, as far as it is to be had from here; what the spool does not hold is the
// server's to judge. The error says what the next event waits for: nil when it
// was put since this pass began, and the next pass sends it.
func (u *Uploader) ready(events []event.Event) (int, error) {
	for i, e := range events {
		ok, err := u.delivered(e)
		if err != nil {
			return i, fmt.Errorf("seq %d: %w", e.Seq, err)
		}
		if !ok {
			return i, nil
		}
	}
	return len(events), nil
}

// delivered reports whether the server holds what e names. The error is errHeld
// when it never will.
func (u *Uploader) delivered(e event.Event) (bool, error) {
	for _, sha := range artifactsOf(e.Body) {
		_, held := u.spool.Artifact(sha)
		acked, err := u.spool.ArtifactAcked(sha)
		if ok, err := u.sent("artifact "+string(sha), held, acked, err); !ok {
			return false, err
		}
	}
	switch b := e.Body.(type) {
	case event.RunCreated:
		if b.GateSpecHash != nil {
			return u.gateDelivered(*b.GateSpecHash)
		}
	case event.DatasetAttached:
		_, held := u.spool.Dataset(b.Dataset)
		acked, err := u.spool.DatasetAcked(b.Dataset)
		return u.sent("dataset "+b.Dataset, held, acked, err)
	case event.GateEvaluated:
		// The server reaches the verdict anew, so it needs the baseline's
		// evaluations first.
		if g, err := u.spool.LoadGate(b.GateSpecHash); err == nil && g.Baseline != nil && *g.Baseline != e.Run {
			if base := u.streams[*g.Baseline]; base != nil && len(base.pending) > 0 && !u.isRefused("run "+base.run) {
				return false, nil
			}
		}
		return u.gateDelivered(b.GateSpecHash)
	}
	return true, nil
}

func (u *Uploader) gateDelivered(hash canon.Hash) (bool, error) {
	acked, err := u.spool.GateAcked(hash)
	return u.sent("gate "+string(hash), u.spool.Gate(hash), acked, err)
}

// sent is delivered for one object. One that was never here is the server's to
// judge.
func (u *Uploader) sent(subject string, held, acked bool, err error) (bool, error) {
	switch {
	case err != nil:
		return false, err
	case acked:
		return true, nil
	case u.isRefused(subject):
		return false, fmt.Errorf("%w: it names %s, which was refused", errHeld, subject)
	}
	return !held, nil
}

// artifactsOf returns the artifacts that an event names.
func artifactsOf(b event.Body) []canon.SHA256 {
	switch b := b.(type) {
	case event.RunCreated:
		return append([]canon.SHA256{b.EnvironmentArtifactSHA256, b.ConfigSHA256}, b.Parents...)
	case event.TrainStarted:
		return []canon.SHA256{b.PlanSHA256}
	case event.CheckpointCreated:
		return []canon.SHA256{b.ArtifactSHA256}
	case event.EvalStarted:
		if b.Subject.Kind == event.SubjectArtifact {
			return []canon.SHA256{b.Subject.SHA256}
		}
	case event.EvalCompleted:
		var named []canon.SHA256
		if b.PredictionsSHA256 != nil {
			named = append(named, *b.PredictionsSHA256)
		}
		if b.ItemsSHA256 != nil {
			named = append(named, *b.ItemsSHA256)
		}
		return named
	}
	return nil
}
