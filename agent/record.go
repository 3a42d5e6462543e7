package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/upload"
)

// records sends what activities record, each by an uploader of its own. It is the
// loop's recorder.
//
// The workload writes the spool and is not trusted: package spool says what it can do
// to its reader, which is nothing, and to its own record, which is anything. Only the
// run of the activity's name is sent, for the cloud would take no other.
type records struct {
	client *api.Client // of the node's credential
	node   string
	dir    string // where the spools lie, called as their activities are
	log    *slog.Logger

	poll  time.Duration // how often a running activity's spool is looked at; 0 is 2 s
	pause time.Duration // after what stopped a whole upload; 0 is a minute
}

var _ recorder = (*records)(nil)

// Record implements recorder. While there is nothing to send it calls nobody.
func (r *records) Record(ctx context.Context, act string, ended <-chan struct{}) error {
	if !activity.ValidID(act) {
		return fmt.Errorf("%.80q is no activity, so it has no record", act)
	}
	poll, pause := cmp.Or(r.poll, 2*time.Second), cmp.Or(r.pause, time.Minute)
	log := r.log.With("activity", act)
	told := false // that it waits
	tell := func(err error) {
		if !told {
			log.Warn("the record is not sent for now", "error", err)
		}
		told = true
	}
	var s *spool.Spool
	var u *upload.Uploader
	for futile := 0; ; {
		over := isClosed(ended) // before looking, so that the last look sees all
		var err error
		if s == nil {
			if s, err = spool.Attach(filepath.Join(r.dir, act), "", ""); err == nil {
				defer s.Close()
				u = upload.New(upload.Config{
					Spool: s, Client: r.client.RecordOf(r.node, act),
					Runs:    func(run string) bool { return activity.Records(act, run) },
					Waiting: func(_ time.Duration, err error) { tell(err) },
				})
			}
		}
		pending := false
		if s != nil {
			before := done(u.Report())
			if pending, err = u.Pending(); err == nil && pending {
				_, err = u.Drain(ctx)
			}
			if done(u.Report()) > before {
				told, futile = false, 0
			} else if pending && over && err == nil {
				if futile++; futile > 3 {
					err = fmt.Errorf("%w: its events wait for what is not there", spool.ErrCorrupt)
				}
			}
		}
		wait := poll
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s == nil && errors.Is(err, fs.ErrNotExist):
			if over {
				return nil // it recorded nothing
			}
		case err != nil && over && hopeless(err, r.dir):
			return fmt.Errorf("the record of %s is not sent whole: %w", act, err)
		case err != nil:
			tell(err)
			wait = pause
		case over && !pending:
			return finish(u.Report(), act, log)
		case over:
			continue // until nothing is pending
		}
		// What comes after the end needs no second look soon, unless it is the end.
		var end <-chan struct{}
		if !over {
			end = ended
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-end:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// finish says what was refused of a record of which nothing is left to send.
func finish(report upload.Report, act string, log *slog.Logger) error {
	log.Info("the record is sent", "events", report.Events, "artifacts", report.Artifacts, "refused", len(report.Refused))
	if n := len(report.Refused); n > 0 {
		return fmt.Errorf("the record of %s is not sent whole: %d refused, the first %v", act, n, report.Refused[0])
	}
	return nil
}

// done counts what an uploader has settled.
func done(r upload.Report) int {
	return r.Artifacts + r.Datasets + r.Gates + r.Events + len(r.Refused)
}

// hopeless reports whether another try would end as this one did: the spool, which
// nobody writes any more, is not what it should be; or the cloud does not have, or
// give, this activity's record. A disk that is full or fails is not hopeless.
func hopeless(err error, dir string) bool {
	for _, final := range []error{spool.ErrCorrupt, spool.ErrForeign, spool.ErrOtherServer} {
		if errors.Is(err, final) {
			return true
		}
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok && strings.HasPrefix(p.Path, dir+string(filepath.Separator)) {
		for _, passing := range []error{
			syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO,
			syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
		} {
			if errors.Is(err, passing) {
				return false
			}
		}
		return true
	}
	p, ok := errors.AsType[*api.Problem](err)
	return ok && (p.Code == api.NotFound || p.Code == api.Forbidden)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
