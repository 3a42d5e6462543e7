package trainer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func packAll(t *testing.T, dir string) []byte {
	t.Helper()
	p, err := pack(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := io.ReadAll(p)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != p.size {
		t.Errorf("size = %d, but %d bytes were read", p.size, len(b))
	}
	return b
}

// TestPack: equal files are equal bytes, whenever and by whomever they were
// written, and archive/tar reads them back with HIP-1333 §6's metadata.
func TestPack(t *testing.T) {
	long := strings.Repeat("long/", 30) + "name"
	files := map[string]string{"kai.json": "{}", "a.txt": "", "tokenizer/t.json": strings.Repeat("x", 512), long: "y"}
	one, two := tempDir(t), tempDir(t)
	for name, content := range files {
		write(t, filepath.Join(one, name), content)
		write(t, filepath.Join(two, name), content)
		if err := os.Chtimes(filepath.Join(two, name), time.Unix(1, 0), time.Unix(2, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(two, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := packAll(t, one)
	if !bytes.Equal(b, packAll(t, two)) {
		t.Error("equal files packed to different bytes")
	}
	if len(b)%blockSize != 0 || !bytes.Equal(b[len(b)-2*blockSize:], make([]byte, 2*blockSize)) {
		t.Errorf("%d bytes do not end in two blocks of zeros", len(b))
	}
	r, last := tar.NewReader(bytes.NewReader(b)), ""
	for n := 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			if n != len(files) {
				t.Errorf("%d files in the tar, want %d", n, len(files))
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil || string(content) != files[h.Name] {
			t.Errorf("%s holds %q (%v), want %q", h.Name, content, err, files[h.Name])
		}
		if h.Name <= last {
			t.Errorf("%q stands after %q", h.Name, last)
		}
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Mode != 0o644 {
			t.Errorf("%s: %+v, want zero times and owners and mode 0644", h.Name, h)
		}
		last = h.Name
	}
}

func TestPackRefuses(t *testing.T) {
	empty := tempDir(t)
	if _, err := pack(empty); err == nil {
		t.Error("pack of an empty folder succeeded")
	}
	if _, err := pack(filepath.Join(empty, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pack of no folder = %v, want not exist", err)
	}
	linked := tempDir(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(linked, "l")); err != nil {
		t.Fatal(err)
	}
	if _, err := pack(linked); err == nil {
		t.Error("pack followed a link")
	}
	changing := tempDir(t)
	write(t, filepath.Join(changing, "f"), "1234")
	for _, content := range []string{"123", "12345"} {
		p, err := pack(changing)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(changing, "f"), content)
		if _, err := io.ReadAll(p); err == nil || !strings.Contains(err.Error(), "changed") {
			t.Errorf("4 bytes that became %d: %v, want an error", len(content), err)
		}
		p.Close()
		write(t, filepath.Join(changing, "f"), "1234")
	}
}
