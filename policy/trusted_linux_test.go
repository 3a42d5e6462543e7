package policy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// rootDir is a directory of root's that only root can write, in a sticky one.
func rootDir(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make files of root's and of others; run the test as root")
	}
	dir := t.TempDir()
	// A umask may have let the group write these two.
	do(t, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755))
	return dir
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	do(t, os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, 0o644))
}

func TestReadTrusted(t *testing.T) {
	const text = `{"kinds": ["train.fit"]}`
	for _, tt := range []struct {
		name string
		harm func(t *testing.T, dir, file string) // file is dir/link/policy.json
		want string                               // "": it is read; DIR stands for dir
	}{
		{"as installed", func(t *testing.T, dir, file string) {}, ""},
		{"only root's to read", func(t *testing.T, dir, file string) {
			do(t, os.Chmod(file, 0o600), os.Chmod(filepath.Dir(file), 0o700))
		}, ""},
		{"a group of its own that cannot write", func(t *testing.T, dir, file string) { do(t, os.Chown(file, 0, nobody)) }, ""},
		{"below a sticky directory", func(t *testing.T, dir, file string) { do(t, os.Chmod(dir, 0o1777|fs.ModeSticky)) }, ""},

		{"another's file", func(t *testing.T, dir, file string) { do(t, os.Chown(file, nobody, 0)) },
			"DIR/link/policy.json belongs to uid 65534; chown it to root"},
		{"group-writable", func(t *testing.T, dir, file string) { do(t, os.Chmod(file, 0o664)) },
			"DIR/link/policy.json has mode 0664; take the right to write from its group and others (chmod go-w)"},
		{"world-writable", func(t *testing.T, dir, file string) { do(t, os.Chmod(file, 0o646)) },
			"DIR/link/policy.json has mode 0646; take the right to write from its group and others (chmod go-w)"},
		{"two names", func(t *testing.T, dir, file string) { do(t, os.Link(file, dir+"/other")) },
			"DIR/link/policy.json has 2 names; remove the other hard links"},
		{"a symbolic link", func(t *testing.T, dir, file string) {
			do(t, os.Rename(file, dir+"/real"), os.Symlink(dir+"/real", file))
		}, "DIR/link/policy.json is a symbolic link; put what it names in its place"},
		{"a symbolic link above it", func(t *testing.T, dir, file string) {
			do(t, os.Rename(dir+"/link", dir+"/real"), os.Symlink("real", dir+"/link"))
		}, "DIR/link is a symbolic link; put what it names in its place"},
		{"a symbolic link to nothing", func(t *testing.T, dir, file string) {
			do(t, os.Remove(file), os.Symlink("nothing", file))
		}, "DIR/link/policy.json is a symbolic link; put what it names in its place"},
		{"in another's directory", func(t *testing.T, dir, file string) { do(t, os.Chown(dir+"/link", nobody, 0)) },
			"DIR/link/policy.json is not safe: DIR/link belongs to uid 65534; chown it to root"},
		{"in a group-writable directory", func(t *testing.T, dir, file string) { do(t, os.Chmod(dir+"/link", 0o775)) },
			"DIR/link/policy.json is not safe: DIR/link has mode 0775; take the right to write from its group and others (chmod go-w)"},
		{"in a sticky directory that others can write", func(t *testing.T, dir, file string) { do(t, os.Chmod(dir+"/link", 0o777|fs.ModeSticky)) },
			"DIR/link/policy.json is not safe: DIR/link has mode 01777; take the right to write from its group and others (chmod go-w)"},
		{"below another's directory", func(t *testing.T, dir, file string) { do(t, os.Chown(dir, nobody, 0)) },
			"DIR/link/policy.json is not safe: DIR belongs to uid 65534; chown it to root"},
		{"below another's sticky directory", func(t *testing.T, dir, file string) {
			do(t, os.Chown(dir, nobody, 0), os.Chmod(dir, 0o777|fs.ModeSticky))
		},
			"DIR/link/policy.json is not safe: DIR belongs to uid 65534; chown it to root"},
		{"below a world-writable directory", func(t *testing.T, dir, file string) { do(t, os.Chmod(dir, 0o757)) },
			"DIR/link/policy.json is not safe: DIR has mode 0757; take the right to write from its group and others (chmod go-w)"},
		{"10 MB", func(t *testing.T, dir, file string) { do(t, os.Truncate(file, 10<<20)) },
			"DIR/link/policy.json has 10485760 bytes, which is more than 1048576"},
		{"a byte too many", func(t *testing.T, dir, file string) { do(t, os.Truncate(file, 1<<20+1)) },
			"DIR/link/policy.json has 1048577 bytes, which is more than 1048576"},
		{"absent", func(t *testing.T, dir, file string) { do(t, os.Remove(file)) },
			"open DIR/link/policy.json: no such file or directory"},
		{"its directory absent", func(t *testing.T, dir, file string) { do(t, os.RemoveAll(dir+"/link")) },
			"open DIR/link: no such file or directory"},
		{"its directory a file", func(t *testing.T, dir, file string) {
			do(t, os.RemoveAll(dir+"/link"), os.WriteFile(dir+"/link", nil, 0o644))
		},
			"open DIR/link: not a directory"},
		{"a directory", func(t *testing.T, dir, file string) { do(t, os.Remove(file), os.Mkdir(file, 0o755)) },
			"DIR/link/policy.json is not a regular file"},
		{"a named pipe without a writer", func(t *testing.T, dir, file string) { do(t, os.Remove(file), unix.Mkfifo(file, 0o644)) },
			"DIR/link/policy.json is not a regular file"},
		{"a device", func(t *testing.T, dir, file string) {
			do(t, os.Remove(file))
			if err := unix.Mknod(file, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))); err != nil {
				t.Skipf("this host makes no device nodes: %v", err)
			}
			if f, err := os.Open(file); err != nil {
				t.Skipf("this file system opens no device nodes: %v", err)
			} else {
				f.Close()
			}
		}, "DIR/link/policy.json is not a regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := rootDir(t)
			file := dir + "/link/policy.json"
			do(t, os.Mkdir(dir+"/link", 0o755), os.Chmod(dir+"/link", 0o755))
			write(t, file, text)
			tt.harm(t, dir, file)
			src, err := ReadTrusted(file, MaxSize)
			want := strings.ReplaceAll(tt.want, "DIR", dir)
			if got := message(err); got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
			if (err == nil) != (string(src) == text) {
				t.Errorf("read %.80q and error %v", src, err)
			}
			if absent := strings.Contains(want, "no such file"); errors.Is(err, fs.ErrNotExist) != absent {
				t.Errorf("is fs.ErrNotExist: %v, want %v", !absent, absent)
			}

			// What cannot be read is no policy either, whatever it says.
			if p, sum, err := Load(file); want != "" && (err == nil || len(p.Kinds) > 0 || sum != [32]byte{}) {
				t.Errorf("Load = %+v, %x, %v", p, sum, err)
			}
		})
	}
}

func TestReadTrustedPath(t *testing.T) {
	for _, path := range []string{"", "/", "policy.json", "./policy.json", "/etc/../etc/passwd", "/etc//passwd", "/etc/passwd/"} {
		if _, err := ReadTrusted(path, MaxSize); err == nil || !strings.Contains(err.Error(), "is not an absolute and clean path of a file") {
			t.Errorf("ReadTrusted(%q): %v", path, err)
		}
	}
}

// TestReadTrustedDeleted: a file that is deleted once it is open has no name left
// and is not read.
func TestReadTrustedDeleted(t *testing.T) {
	path := rootDir(t) + "/policy.json"
	write(t, path, "{}")
	fd, err := openTrusted(path)
	do(t, err)
	defer unix.Close(fd)
	do(t, os.Remove(path))
	var st unix.Stat_t
	do(t, unix.Fstat(fd, &st))
	if got := fileFault(&st, MaxSize); got != "was deleted" {
		t.Errorf("fault %q, want that it was deleted", got)
	}
}

// TestReadTrustedRaces: while what stands at the path, or at a directory of it,
// is exchanged again and again, only root's bytes are ever returned.
func TestReadTrustedRaces(t *testing.T) {
	const good, evil = `{"orgs": ["good"]}`, `{"orgs": ["evil"]}`
	for _, tt := range []struct {
		name string
		lay  func(t *testing.T, dir string) (here, there string) // what is exchanged
	}{
		{"with another's file", func(t *testing.T, dir string) (string, string) {
			write(t, dir+"/evil.json", evil)
			do(t, os.Chown(dir+"/evil.json", nobody, nobody))
			return dir + "/link/policy.json", dir + "/evil.json"
		}},
		{"with a symbolic link", func(t *testing.T, dir string) (string, string) {
			write(t, dir+"/evil.json", evil)
			do(t, os.Symlink(dir+"/evil.json", dir+"/to-evil"))
			return dir + "/link/policy.json", dir + "/to-evil"
		}},
		{"with a directory of another's", func(t *testing.T, dir string) (string, string) {
			do(t, os.Mkdir(dir+"/theirs", 0o755))
			write(t, dir+"/theirs/policy.json", evil) // root's, moved there
			do(t, os.Chown(dir+"/theirs", nobody, nobody))
			return dir + "/link", dir + "/theirs"
		}},
		{"with a symbolic link to a directory", func(t *testing.T, dir string) (string, string) {
			do(t, os.Mkdir(dir+"/theirs", 0o755))
			write(t, dir+"/theirs/policy.json", evil)
			do(t, os.Symlink("theirs", dir+"/to-theirs"))
			return dir + "/link", dir + "/to-theirs"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := rootDir(t)
			do(t, os.Mkdir(dir+"/link", 0o755))
			write(t, dir+"/link/policy.json", good)
			here, there := tt.lay(t, dir)

			stop := make(chan struct{})
			var exchanging sync.WaitGroup
			exchanging.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := unix.Renameat2(unix.AT_FDCWD, here, unix.AT_FDCWD, there, unix.RENAME_EXCHANGE); err != nil {
						t.Errorf("exchanging: %v", err)
						return
					}
				}
			})
			read, refused := 0, 0
			for range 5000 {
				switch src, err := ReadTrusted(dir+"/link/policy.json", MaxSize); {
				case err != nil:
					refused++
				case string(src) == good:
					read++
				default:
					t.Fatalf("read %q", src)
				}
			}
			close(stop)
			exchanging.Wait()
			t.Logf("read %d times, refused %d times", read, refused)
		})
	}
}

func TestLoad(t *testing.T) {
	path := rootDir(t) + "/policy.json"
	write(t, path, written)
	p, sum, err := Load(path)
	if err != nil || len(p.Orgs) != 1 || sum != sha256.Sum256([]byte(written)) {
		t.Errorf("Load = %+v, %x, %v", p, sum, err)
	}
	write(t, path, `{"caps": {"ram": 1}}`)
	_, sum, err = Load(path)
	want := path + `: /caps/ram: unknown member; known are ["cpus" "disk" "memory" "vram"]; ` + Mend
	if message(err) != want || sum != [32]byte{} {
		t.Errorf("error %q and sum %x, want %q and none", message(err), sum, want)
	}
}

func BenchmarkLoad(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("only root can make a file of root's")
	}
	path := b.TempDir() + "/policy.json"
	if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := Load(path); err != nil {
			b.Fatal(err)
		}
	}
}

func TestHostFree(t *testing.T) {
	free, err := HostFree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if free.Memory <= 0 || free.Memory > free.MemoryTotal || free.Disk <= 0 || free.Disk > free.DiskTotal {
		t.Errorf("%+v: no parts of their wholes", free)
	}
	var info unix.Sysinfo_t
	do(t, unix.Sysinfo(&info))
	if total := int64(info.Totalram) * int64(info.Unit); free.MemoryTotal != total {
		t.Errorf("memory of %d bytes, sysinfo says %d", free.MemoryTotal, total)
	}
	if _, err := HostFree(t.TempDir() + "/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of an absent directory: %v", err)
	}
}

func TestMeminfo(t *testing.T) {
	const meminfo = "MemTotal:       16316412 kB\nMemFree:          101 kB\nMemAvailable:          0 kB\nHugePages_Total:       3\nBad:     -1 kB\n"
	for _, tt := range []struct {
		name string
		want int64
		err  string
	}{
		{"MemTotal", 16316412 << 10, ""},
		{"MemAvailable", 0, ""},
		{"HugePages_Total", 0, `"HugePages_Total:       3" is no amount of memory`},
		{"Bad", 0, `"Bad:     -1 kB" is no amount of memory`},
		{"Mem", 0, "has no line Mem; Linux 3.14 or later has one"},
	} {
		n, err := meminfoBytes(bytes.Clone([]byte(meminfo)), tt.name)
		if n != tt.want || message(err) != tt.err {
			t.Errorf("%s = %d, %v, want %d, %s", tt.name, n, err, tt.want, tt.err)
		}
	}
}
