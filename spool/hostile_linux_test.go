package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

// hostile returns a recorded spool as its reader has it, its folder, and a folder
// beside it that nobody may touch, with what it holds.
func hostile(t *testing.T) (s *Spool, root, outside string) {
	t.Helper()
	top := tempDir(t)
	root, outside = filepath.Join(top, "act_1"), filepath.Join(top, "outside")
	if err := recordAll(new(durabletest.FS).Over, root, func(string) {}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{outside, filepath.Join(outside, "runs")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"secret", "runs/run.log", "runs/run.ack"} {
		if err := os.WriteFile(filepath.Join(outside, name), []byte("sesame"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := snapshot(t, outside)
	s, err := Attach(root, "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
			t.Errorf("what lies outside has changed:\n%s", diff)
		}
	})
	return s, root, outside
}

// snapshot is every file below dir with its content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, e := os.ReadFile(path)
			found[path], err = string(b), e
		} else if err == nil {
			found[path] = d.Type().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// replace puts something else in place of a file or folder.
func replace(t *testing.T, path string, put func(path string) error) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := put(path); err != nil {
		t.Fatal(err)
	}
}

// everything does all that a reader of a spool does, and joins the errors.
func everything(s *Spool) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	_, err := s.Runs()
	note(err)
	_, err = s.Artifacts()
	note(err)
	_, err = s.Datasets()
	note(err)
	_, err = s.Gates()
	note(err)
	_, err = s.Tail("run", 0).Next(1000, 1<<20)
	note(err)
	_, err = s.Acked("run")
	note(err)
	note(s.Ack("run", 5))
	for _, b := range [][]byte{configBytes, environmentBytes} {
		sha := canon.Sum(b)
		_, err = s.ArtifactAcked(sha)
		note(err)
		r, err := s.OpenArtifact(sha)
		if err == nil {
			_, err = new(bytes.Buffer).ReadFrom(r)
			r.Close()
		}
		note(err)
		note(s.AckArtifact(sha))
	}
	_, _, err = s.dataset("rows")
	note(err)
	note(s.AckDataset("rows"))
	hash, _ := canon.Of(testGate("tiny"))
	_, err = s.LoadGate(hash)
	note(err)
	note(s.AckGate(hash))
	note(s.FileUnder("acme", "", "one"))
	return errors.Join(errs...)
}

func TestAttach(t *testing.T) {
	s, root, _ := hostile(t)
	if err := everything(s); err != nil {
		t.Errorf("an honest spool: %v", err)
	}
	if _, err := Attach(filepath.Join(root, "none"), "", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach of no folder: %v", err)
	}
	empty := t.TempDir()
	if _, err := Attach(empty, "", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach of a folder without a spool: %v", err)
	}
	// Its writer has made the first of its folders.
	if err := os.MkdirAll(filepath.Join(empty, LocalOrg, LocalProject), 0o700); err != nil {
		t.Fatal(err)
	}
	young, err := Attach(empty, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer young.Close()
	if ids, err := young.Runs(); len(ids) != 0 || err != nil {
		t.Errorf("Runs = %q, %v", ids, err)
	}
	if entries, _ := os.ReadDir(young.Dir()); len(entries) != 0 {
		t.Errorf("Attach made %v", entries)
	}
}

// TestHostileFiles replaces each file and each folder of a spool by each thing that
// it must not be. Nothing blocks, nothing outside is read or written, and what the
// reader is told is that the spool is corrupt.
func TestHostileFiles(t *testing.T) {
	config := string(canon.Sum(configBytes))
	hash, _ := canon.Of(testGate("tiny"))
	files := []string{
		"runs/run.log", "runs/run.ack", "artifacts/" + config, "artifacts/" + config + ".json",
		"datasets/rows.json", "gates/" + hash.Hex() + ".json", "filed.json",
	}
	folders := []string{"runs", "artifacts", "datasets", "gates"}
	for name, put := range map[string]func(path, outside string) error{
		"a link out":               func(path, outside string) error { return os.Symlink(filepath.Join(outside, "secret"), path) },
		"a link up":                func(path, _ string) error { return os.Symlink("../../../../outside/secret", path) },
		"a link to a folder out":   func(path, outside string) error { return os.Symlink(filepath.Join(outside, "runs"), path) },
		"a link to a device":       func(path, _ string) error { return os.Symlink("/dev/zero", path) },
		"a link to itself":         func(path, _ string) error { return os.Symlink(filepath.Base(path), path) },
		"a link into a descriptor": func(path, _ string) error { return os.Symlink("/proc/self/fd/0", path) },
		"a named pipe":             func(path, _ string) error { return mkfifo(path) },
		"a socket":                 func(path, _ string) error { return socket(path) },
		"a folder":                 func(path, _ string) error { return os.Mkdir(path, 0o700) },
		"an endless file":          func(path, _ string) error { return sparse(path, 1<<40) },
	} {
		for _, file := range append(files, folders...) {
			if name == "a folder" && !strings.Contains(file, ".") && !strings.Contains(file, "/") {
				continue
			}
			t.Run(name+" as "+file, func(t *testing.T) {
				s, _, outside := hostile(t)
				replace(t, filepath.Join(s.Dir(), file), func(path string) error { return put(path, outside) })
				err := everything(s)
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("it is %v, want ErrCorrupt", err)
				}
				if err != nil && strings.Contains(err.Error(), "sesame") {
					t.Errorf("the error tells a secret: %v", err)
				}
			})
		}
	}
	for name, put := range map[string]func(path, outside string) error{
		"a link out":   func(path, outside string) error { return os.Symlink(outside, path) },
		"a named pipe": func(path, _ string) error { return mkfifo(path) },
	} {
		for _, folder := range []string{"local", "local/default"} {
			t.Run(name+" as "+folder, func(t *testing.T) {
				s, root, outside := hostile(t)
				replace(t, filepath.Join(root, folder), func(path string) error { return put(path, outside) })
				if err := everything(s); err == nil {
					t.Errorf("it went unnoticed")
				}
				if again, err := Attach(root, "", ""); err == nil {
					again.Close()
					if err := everything(again); err == nil {
						t.Errorf("attached again, it went unnoticed")
					}
				}
			})
		}
	}
}

// TestAckReplacesLinks: an ack is written beside its place and renamed, so that a
// link there is replaced and its target is not.
func TestAckReplacesLinks(t *testing.T) {
	s, _, outside := hostile(t)
	sha := canon.Sum(environmentBytes)
	path := s.path(artifacts, string(sha)+".ack")
	if err := os.Symlink(filepath.Join(outside, "secret"), path); err != nil {
		t.Fatal(err)
	}
	if err := s.AckArtifact(sha); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the ack is %v, %v", info.Mode(), err)
	}
}

// TestHostileRace has the spool's writer exchange a folder for a link out of it,
// again and again, while its reader acknowledges. hostile sees to it that nothing
// outside changed.
func TestHostileRace(t *testing.T) {
	s, _, outside := hostile(t)
	dir, link := s.path(runs, ""), filepath.Join(s.Dir(), "link")
	if err := os.Symlink(filepath.Join(outside, "runs"), link); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			exchange(link, dir)
		}
	}()
	fine := 0
	for n := range 2000 {
		if err := s.Ack("run", uint64(100+n)); err == nil {
			fine++
		}
		if events, err := s.Tail("run", 0).Next(1, 1<<20); err == nil && len(events) != 1 {
			t.Errorf("read %d events", len(events))
		}
	}
	close(stop)
	<-done
	if fine == 0 || fine == 2000 {
		t.Skipf("%d of 2000 acks were written: there was no race", fine)
	}
}

// TestHostileAmounts holds an attached spool to its bounds.
func TestHostileAmounts(t *testing.T) {
	many := func(t *testing.T, dir, format string, n int) {
		for i := range n {
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf(format, i)), os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
	}
	t.Run("100,000 files", func(t *testing.T) {
		s, _, _ := hostile(t)
		many(t, s.path(artifacts, ""), "x%d", 100_000)
		if _, err := s.Artifacts(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Artifacts = %v", err)
		}
	})
	t.Run("too many runs", func(t *testing.T) {
		s, _, _ := hostile(t)
		many(t, s.path(runs, ""), "r%d.log", maxNames+1)
		if _, err := s.Runs(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Runs = %v", err)
		}
	})
	t.Run("a name with a newline", func(t *testing.T) {
		s, _, _ := hostile(t)
		many(t, s.path(runs, ""), "a\nlevel=ERROR msg=%d.log", 3)
		if ids, err := s.Runs(); err != nil || !cmp.Equal(ids, []string{"run"}) {
			t.Errorf("Runs = %q, %v", ids, err)
		}
	})
	t.Run("a large record", func(t *testing.T) {
		s, _, _ := hostile(t)
		sha := canon.Sum(configBytes)
		path := s.path(artifacts, string(sha)+".json")
		if err := os.WriteFile(path, []byte(readFile(t, path)+strings.Repeat(" ", maxRecord)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.artifact(sha); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), fmt.Sprint(maxRecord)) {
			t.Errorf("artifact = %v", err)
		}
	})
	t.Run("more bytes than said", func(t *testing.T) {
		s, _, _ := hostile(t)
		sha := canon.Sum(configBytes)
		if err := sparse(s.path(artifacts, string(sha)), 1<<40); err != nil {
			t.Fatal(err)
		}
		r, err := s.OpenArtifact(sha)
		if _, err := readAll(t, r, err); !errors.Is(err, ErrCorrupt) {
			t.Errorf("read: %v", err)
		}
	})
	t.Run("more bytes said than there may be", func(t *testing.T) {
		s, _, _ := hostile(t)
		sha := canon.Sum(configBytes)
		path := s.path(artifacts, string(sha)+".json")
		size := fmt.Sprintf(`"size":%d`, len(configBytes))
		meta := strings.Replace(readFile(t, path), size, fmt.Sprintf(`"size":%d`, int64(maxArtifact)+1), 1)
		if err := os.WriteFile(path, []byte(meta), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.OpenArtifact(sha); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "the most is") {
			t.Errorf("OpenArtifact = %v", err)
		}
	})
	t.Run("compressed", func(t *testing.T) {
		s, _, _ := hostile(t)
		path := s.path(artifacts, string(canon.Sum(configBytes)))
		if err := os.Rename(path, path+".zst"); err != nil {
			t.Fatal(err)
		}
		if r, err := s.OpenArtifact(canon.Sum(configBytes)); err == nil {
			r.Close()
			t.Errorf("a compressed artifact was opened")
		}
	})
}

// TestHostileWords: what a spool's writer chose stands in no error as it is.
func TestHostileWords(t *testing.T) {
	const word = "x\nlevel=ERROR msg=\"forged\"\x1b[2J"
	for file, content := range map[string]string{
		"filed.json":         `{"org":"x\nlevel=ERROR msg=\"forged\"\u001b[2J","project":"default"}`,
		"runs/run.ack":       word,
		"runs/run.log":       word + "\n",
		"datasets/rows.json": `{"x\nlevel=ERROR msg=\"forged\"\u001b[2J":1}`,
		"artifacts/" + string(canon.Sum(configBytes)) + ".json": `{"kind":"x\nlevel=ERROR msg=\"forged\"\u001b[2J"}`,
		"runs/run.pid": word,
	} {
		t.Run(file, func(t *testing.T) {
			s, root, _ := hostile(t)
			if err := os.WriteFile(filepath.Join(s.Dir(), file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := everything(s)
			if file == "runs/run.pid" {
				holder, e := Open(root, "", "")
				if e != nil {
					t.Fatal(e)
				}
				l, e := holder.Resume("run")
				if e != nil {
					t.Fatal(e)
				}
				defer l.Close()
				if e := os.WriteFile(filepath.Join(s.Dir(), file), []byte(content), 0o600); e != nil {
					t.Fatal(e)
				}
				_, err = holder.Resume("run")
			}
			if err == nil {
				t.Fatal("it went unnoticed")
			}
			for line := range strings.Lines(err.Error()) { // one error each
				if strings.HasPrefix(line, "level=") || strings.ContainsRune(line, 0x1b) {
					t.Errorf("the error forges a line: %q", err)
				}
			}
		})
	}
}

func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

func socket(path string) error {
	// The name of a socket is short, whatever its folder's.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// exchange gives two files each other's name, in one step.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}
