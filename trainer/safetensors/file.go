package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
)

// A File is the tensors of one safetensors file, or of the shards of one model.
// Its methods may be called by several goroutines at once. It holds its files
// open until Close.
type File struct {
	path    string
	parts   []part
	tensors map[string]tensor
	names   []string // sorted
	meta    map[string]string
}

// part is one file on disk.
type part struct {
	path string
	f    *os.File
	data int64 // where the data starts: 8 + the header's length
}

// tensor is an entry and the index of the part that holds it.
type tensor struct {
	entry
	part int
}

// Info describes a tensor.
type Info struct {
	DType DType
	Shape []int // the caller must not change it
}

// Len returns the number of elements: 1 for a scalar, whose shape is empty.
func (i Info) Len() int {
	n := 1
	for _, d := range i.Shape {
		n *= d
	}
	return n
}

// Open opens a safetensors file and checks its header against its length.
func Open(path string) (*File, error) {
	f := &File{path: path, tensors: make(map[string]tensor)}
	if err := f.add(path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// add opens one file and adds its tensors.
func (f *File) add(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err) // a *PathError names the file
	}
	n := len(f.parts)
	f.parts = append(f.parts, part{path: path, f: file})
	entries, meta, start, err := readHeader(file)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	f.parts[n].data = start
	for _, e := range entries {
		if other, dup := f.tensors[e.name]; dup {
			return fmt.Errorf("safetensors: %s: tensor %q: also in %s", path, e.name, f.parts[other.part].path)
		}
		f.tensors[e.name] = tensor{e, n}
	}
	f.names = slices.Sorted(maps.Keys(f.tensors))
	if n == 0 {
		f.meta = meta
	}
	return nil
}

// readHeader reads and checks a file's header. start is the offset of its data.
func readHeader(f *os.File) (entries []entry, meta map[string]string, start int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, 0, errors.New("not a regular file")
	}
	if st.Size() < 8 {
		return nil, nil, 0, fmt.Errorf("%d bytes are too few for a safetensors file", st.Size())
	}
	var word [8]byte
	if _, err := f.ReadAt(word[:], 0); err != nil {
		return nil, nil, 0, err
	}
	length := binary.LittleEndian.Uint64(word[:])
	switch rest := uint64(st.Size() - 8); {
	case length > maxHeader:
		return nil, nil, 0, fmt.Errorf("header length %d is over the limit of %d: not a safetensors file", length, maxHeader)
	case length > rest:
		return nil, nil, 0, fmt.Errorf("header length %d, but only %d bytes follow: the file is truncated, copy it again", length, rest)
	}
	header := make([]byte, length)
	if _, err := f.ReadAt(header, 8); err != nil {
		return nil, nil, 0, err
	}
	start = 8 + int64(length)
	entries, meta, err = parseHeader(header, uint64(st.Size()-start))
	return entries, meta, start, err
}

// Path returns what was opened: a file, or a model's folder.
func (f *File) Path() string { return f.path }

// Names returns the names of all tensors, sorted. The caller must not change it.
func (f *File) Names() []string { return f.names }

// Info describes the tensor of a name; ok is false when there is none.
func (f *File) Info(name string) (info Info, ok bool) {
	t, ok := f.tensors[name]
	return Info{t.dtype, t.shape}, ok
}

// Metadata returns the header's free-form strings, nil when it has none. Those
// of a model in shards are the first shard's. The caller must not change it.
func (f *File) Metadata() map[string]string { return f.meta }

// ReadFloat32 returns the values of an F32, F16 or BF16 tensor, each exactly.
func (f *File) ReadFloat32(name string) ([]float32, error) {
	info, ok := f.Info(name)
	if !ok || !info.DType.float() {
		return nil, f.Float32(name, nil) // says which
	}
	dst := make([]float32, info.Len())
	if err := f.Float32(name, dst); err != nil {
		return nil, err
	}
	return dst, nil
}

// Float32 reads the values of an F32, F16 or BF16 tensor into dst, each exactly.
// dst must be as long as the tensor. On an error dst holds no defined values.
func (f *File) Float32(name string, dst []float32) error {
	t, ok := f.tensors[name]
	if !ok {
		return fmt.Errorf("safetensors: %s: no tensor %q", f.path, name)
	}
	p := f.parts[t.part]
	if !t.dtype.float() {
		return fmt.Errorf("safetensors: %s: tensor %q: %s does not read as float32; want F32, F16 or BF16", p.path, name, t.dtype)
	}
	if n := (Info{t.dtype, t.shape}).Len(); n != len(dst) {
		return fmt.Errorf("safetensors: %s: tensor %q: shape %v is %d values, want %d", p.path, name, t.shape, n, len(dst))
	}
	r := io.NewSectionReader(p.f, p.data+int64(t.begin), int64(t.end-t.begin))
	if err := decode(dst, t.dtype, r); err != nil {
		return fmt.Errorf("safetensors: %s: tensor %q: %w", p.path, name, err)
	}
	return nil
}

// chunk is how many bytes are converted at a time.
const chunk = 256 << 10

// decode fills dst from r.
func decode(dst []float32, d DType, r io.Reader) error {
	size := d.size()
	buf := make([]byte, min(chunk, len(dst)*size))
	for len(dst) > 0 {
		n := min(len(buf)/size, len(dst))
		b := buf[:n*size]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		switch d {
		case F32:
			for i := range n {
				dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
		case F16:
			for i := range n {
				dst[i] = f16to32(binary.LittleEndian.Uint16(b[2*i:]))
			}
		case BF16:
			for i := range n {
				dst[i] = bf16to32(binary.LittleEndian.Uint16(b[2*i:]))
			}
		}
		dst = dst[n:]
	}
	return nil
}

// Close closes the files. Reading after it fails.
func (f *File) Close() error {
	var errs []error
	for _, p := range f.parts {
		errs = append(errs, p.f.Close())
	}
	return errors.Join(errs...)
}
