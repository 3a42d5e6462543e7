package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/hanzoai/link/spool/canon"
)

// Acked returns the highest seq of run that the server acknowledged, 0 for none.
func (s *Spool) Acked(run string) (uint64, error) {
	if err := checkRun(run); err != nil {
		return 0, err
	}
	path := s.path(runs, run+".ack")
	b, err := s.files.read(path, maxSmall)
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
	return s.disk.WriteFile(s.path(runs, run+".ack"), append(strconv.AppendUint(nil, seq, 10), '\n'), s.mode)
}

// ArtifactAcked reports whether the server holds an artifact for good.
func (s *Spool) ArtifactAcked(sha canon.SHA256) (bool, error) {
	return s.acked(artifacts, string(sha))
}

// DatasetAcked reports whether the server holds a dataset, sealed.
func (s *Spool) DatasetAcked(id string) (bool, error) { return s.acked(datasets, id) }

// GateAcked reports whether the server holds a gate.
func (s *Spool) GateAcked(h canon.Hash) (bool, error) { return s.acked(gates, h.Hex()) }

// DeterminismAcked reports whether the server holds a determinism report.
func (s *Spool) DeterminismAcked(h canon.Hash) (bool, error) { return s.acked(probes, h.Hex()) }

// AckArtifact, AckDataset, AckGate and AckDeterminism record that the server does.
func (s *Spool) AckArtifact(sha canon.SHA256) error { return s.ack(artifacts, string(sha)) }
func (s *Spool) AckDataset(id string) error         { return s.ack(datasets, id) }
func (s *Spool) AckGate(h canon.Hash) error         { return s.ack(gates, h.Hex()) }
func (s *Spool) AckDeterminism(h canon.Hash) error  { return s.ack(probes, h.Hex()) }

func (s *Spool) acked(folder, name string) (bool, error) {
	return s.files.exists(s.path(folder, name+".ack"))
}

func (s *Spool) ack(folder, name string) error {
	return s.disk.WriteFile(s.path(folder, name+".ack"), nil, s.mode)
}

// filing says where a spool was sent.
type filing struct {
	Org     string `json:"org"`
	Project string `json:"project"`
	Server  string `json:"server,omitzero"` // the control plane's id; empty when it told none
}

// FileUnder binds the spool to the org, project and control plane that it is about
// to be sent to, because its acks say what they hold. A spool from before anyone
// signed in takes the first org and project, and keeps them; any other has them in
// its folder's name. Another than that is [ErrForeign], and nothing is to be sent.
//
// server is what the control plane calls itself; empty is unknown and equals any.
// Another than the one before is [ErrOtherServer]: it does not hold what the acks
// say.
func (s *Spool) FileUnder(org, project, server string) error {
	f, err := s.filing(org, project)
	if err != nil {
		return err
	}
	if err := s.sameServer(f, server); err != nil {
		return err
	}
	if f.Server == "" {
		f.Server = server
	}
	return s.file(f)
}

// Refile forgets every ack, so that all of the spool is sent again, and binds it to
// server as FileUnder does. The org and the project stay what they are. Sending
// again what a server holds is harmless, and so is a crash here: what is forgotten
// is sent once more.
func (s *Spool) Refile(org, project, server string) error {
	f, err := s.filing(org, project)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if folder == probes && s.attached {
			continue // it has none
		}
		dir := s.path(folder, "")
		names, err := list(s, folder, ".ack", func(string) bool { return true })
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := s.files.Remove(s.path(folder, name+".ack")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("forgetting what was acknowledged: %w", err)
			}
		}
		// Before the new server's id: it must never stand beside the old acks.
		if err := s.disk.SyncDir(dir); err != nil {
			return fmt.Errorf("forgetting what was acknowledged: %w", err)
		}
	}
	f.Server = server
	return s.file(f)
}

// Belongs reports what FileUnder would, and binds nothing.
func (s *Spool) Belongs(org, project, server string) error {
	f, err := s.filing(org, project)
	if err != nil {
		return err
	}
	return s.sameServer(f, server)
}

// filing returns where the spool was sent, or is to be when that is not decided,
// and [ErrForeign] when that is not org and project.
func (s *Spool) filing(org, project string) (filing, error) {
	if project == "" {
		project = LocalProject
	}
	f := filing{Org: org, Project: project}
	if s.org != LocalOrg {
		f.Org, f.Project = s.org, s.project
	}
	if b, err := s.files.read(s.filed(), maxSmall); err != nil {
		return f, err
	} else if b != nil {
		if err := canon.Unmarshal(b, &f); err != nil {
			return f, fmt.Errorf("%w: %s: %w", ErrCorrupt, s.filed(), err)
		}
		for _, name := range []string{f.Org, f.Project, f.Server} {
			if len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
				return f, fmt.Errorf("%w: %s names %.40q, which is no name; delete it", ErrCorrupt, s.filed(), name)
			}
		}
	}
	if f.Org != org || f.Project != project {
		return f, fmt.Errorf("%w: %s is filed under %s/%s and this token is for %s/%s; sign in there, or record into another folder with HANZO_SPOOL",
			ErrForeign, s.dir, f.Org, f.Project, org, project)
	}
	return f, nil
}

// maxName bounds the names in filed.json, in bytes. They stand in errors as they are.
const maxName = 256

// file writes f, when that is a change.
func (s *Spool) file(f filing) error {
	b, err := canon.Marshal(f)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if held, err := s.files.read(s.filed(), maxSmall); err != nil || bytes.Equal(held, b) {
		return err
	}
	return s.disk.WriteFile(s.filed(), b, s.mode)
}

func (s *Spool) filed() string { return filepath.Join(s.dir, "filed.json") }

func (s *Spool) sameServer(f filing, server string) error {
	if server == "" || f.Server == "" || f.Server == server {
		return nil
	}
	return fmt.Errorf("%w: %s was sent to the one with id %s, and this is %s; set HANZO_API to that one, or let train sync --again forget what was acknowledged and send everything here",
		ErrOtherServer, s.dir, f.Server, server)
}
