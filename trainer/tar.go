package trainer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A folder as one object (HIP-1333 §6): a tar of its files in name order, with
// zero times, zero owners and mode 0644, no entries for folders, ended by two
// blocks of zeros and not padded further. Equal files are equal bytes.

// packed reads the folder dir as that tar, one file open at a time. It holds
// what stood there when it was opened: a file that changes its size meanwhile is
// an error of Read. Anything but plain files and folders is refused.
type packed struct {
	dir   string
	files []packedFile
	size  int64

	part io.Reader // what is being read: a header, a file, padding, the end
	next int       // parts begun: file i is parts 3i, 3i+1, 3i+2
	open *os.File
}

type packedFile struct {
	name string // slash-separated, relative to dir
	size int64
}

// pack lists dir and opens no file yet.
func pack(dir string) (*packed, error) {
	p := &packed{dir: dir, part: bytes.NewReader(nil)}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a plain file", name)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		p.files = append(p.files, packedFile{filepath.ToSlash(rel), info.Size()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("trainer: packing %s: %w", dir, err)
	}
	if len(p.files) == 0 {
		return nil, fmt.Errorf("trainer: packing %s: it holds no file", dir)
	}
	slices.SortFunc(p.files, func(a, b packedFile) int { return strings.Compare(a.name, b.name) })
	for _, f := range p.files {
		h, err := header(f)
		if err != nil {
			return nil, fmt.Errorf("trainer: packing %s: %w", path.Join(dir, f.name), err)
		}
		p.size += int64(len(h)) + f.size + padding(f.size)
	}
	p.size += 2 * blockSize
	return p, nil
}

const blockSize = 512

func padding(size int64) int64 { return -size & (blockSize - 1) }

// header is a file's header block (or blocks, for a name or size that one does
// not hold).
func header(f packedFile) ([]byte, error) {
	var b bytes.Buffer
	err := tar.NewWriter(&b).WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: f.name, Size: f.size, Mode: 0o644,
	})
	return b.Bytes(), err
}

func (p *packed) Read(b []byte) (int, error) {
	for {
		n, err := p.part.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		if err := p.advance(); err != nil {
			return 0, err
		}
	}
}

// advance goes to the next part; io.EOF after the last.
func (p *packed) advance() error {
	i, step := p.next/3, p.next%3
	if i == len(p.files) {
		if step == 0 {
			p.part = bytes.NewReader(make([]byte, 2*blockSize))
			p.next++
			return nil
		}
		return io.EOF
	}
	p.next++
	f := p.files[i]
	switch step {
	case 0:
		h, err := header(f)
		if err != nil {
			return err
		}
		p.part = bytes.NewReader(h)
	case 1:
		file, err := os.Open(filepath.Join(p.dir, filepath.FromSlash(f.name)))
		if err != nil {
			return err
		}
		p.open, p.part = file, &exactly{file, f.size, f.name}
	case 2:
		if err := p.open.Close(); err != nil {
			return err
		}
		p.open, p.part = nil, bytes.NewReader(make([]byte, padding(f.size)))
	}
	return nil
}

// Close releases what Read holds open. It may be called at any time.
func (p *packed) Close() error {
	if p.open == nil {
		return nil
	}
	return p.open.Close()
}

// exactly reads n bytes of a file and fails when it ends before or goes on after.
type exactly struct {
	r    io.Reader
	left int64
	name string
}

func (e *exactly) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.left -= int64(n)
	if e.left < 0 || errors.Is(err, io.EOF) && e.left > 0 {
		return 0, fmt.Errorf("trainer: packing: %s changed while it was read", e.name)
	}
	return n, err
}
