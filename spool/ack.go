package spool

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

// Acked returns the highest seq of run that the server acknowledged, 0 for none.
func (s *Spool) Acked(run string) (uint64, error) {
	if err := checkRun(run); err != nil {
		return 0, err
	}
	path := s.path(runs, run+".ack")
	b, err := read(path)
	if err != nil || b == nil {
		return 0, err
	}
	seq, err := strconv.ParseUint(strings.TrimSuffix(string(b), "\n"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s holds %.20q, not a number; delete it, and the run's events are sent again, which is harmless", ErrCorrupt, path, b)
	}
	return seq, nil
}

// Ack records that the server holds run's events up to seq, and does not go back
// when another uploader is ahead. Should two write at once and the lower win,
// events are sent again, which is harmless.
func (s *Spool) Ack(run string, seq uint64) error {
	held, err := s.Acked(run)
	if err != nil || held >= seq {
		return err
	}
	return s.disk.WriteFile(s.path(runs, run+".ack"), append(strconv.AppendUint(nil, seq, 10), '\n'), 0o600)
}

// ArtifactAcked reports whether the server holds an artifact for good.
func (s *Spool) ArtifactAcked(sha canon.SHA256) (bool, error) {
	return s.acked(artifacts, string(sha))
}

// DatasetAcked reports whether the server holds a dataset, sealed.
func (s *Spool) DatasetAcked(id string) (bool, error) { return s.acked(datasets, id) }

// GateAcked reports whether the server holds a gate.
func (s *Spool) GateAcked(h canon.Hash) (bool, error) { return s.acked(gates, h.Hex()) }

// AckArtifact, AckDataset and AckGate record that the server does.
func (s *Spool) AckArtifact(sha canon.SHA256) error { return s.ack(artifacts, string(sha)) }
func (s *Spool) AckDataset(id string) error         { return s.ack(datasets, id) }
func (s *Spool) AckGate(h canon.Hash) error         { return s.ack(gates, h.Hex()) }

func (s *Spool) acked(folder, name string) (bool, error) {
	return exists(s.path(folder, name+".ack"))
}

func (s *Spool) ack(folder, name string) error {
	return s.disk.WriteFile(s.path(folder, name+".ack"), nil, 0o600)
}

// filing says where a local/default spool was sent.
type filing struct {
	Org     string `json:"org"`
	Project string `json:"project"`
}

// FileUnder binds the spool to the org and project that it is about to be sent
// to, because its acks say what they hold. A spool from before anyone signed in
// takes the first, and keeps it; any other has it in its folder's name. Another
// than that is [ErrForeign], and nothing is to be sent.
func (s *Spool) FileUnder(org, project string) error {
	if project == "" {
		project = LocalProject
	}
	filed, err := s.filed()
	if err != nil {
		return err
	}
	if filed != nil {
		return s.belongs(*filed, org, project)
	}
	b, err := canon.Marshal(filing{org, project})
	if err != nil {
		return err
	}
	return s.disk.WriteFile(filepath.Join(s.dir, "filed.json"), append(b, '\n'), 0o600)
}

// Belongs reports, with [ErrForeign], a spool that was sent to another org or
// project than this one.
func (s *Spool) Belongs(org, project string) error {
	filed, err := s.filed()
	if err != nil || filed == nil {
		return err
	}
	if project == "" {
		project = LocalProject
	}
	return s.belongs(*filed, org, project)
}

// filed returns where the spool belongs; nil when that is not decided.
func (s *Spool) filed() (*filing, error) {
	if s.org != LocalOrg {
		return &filing{s.org, s.project}, nil
	}
	path := filepath.Join(s.dir, "filed.json")
	b, err := read(path)
	if err != nil || b == nil {
		return nil, err
	}
	var f filing
	if err := canon.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	return &f, nil
}

func (s *Spool) belongs(f filing, org, project string) error {
	if f.Org == org && f.Project == project {
		return nil
	}
	return fmt.Errorf("%w: %s is filed under %s/%s and this token is for %s/%s; sign in there, or record into another folder with HANZO_SPOOL",
		ErrForeign, s.dir, f.Org, f.Project, org, project)
}
