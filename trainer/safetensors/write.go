package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hanzoai/link/spool/durable"
)

// A Tensor is values to be written.
type Tensor struct {
	Name  string
	DType DType // F32, F16 or BF16; empty means F32
	Shape []int
	Data  []float32 // as many as Shape says; not changed
}

// Write makes path hold the tensors as [Encode] writes them. The file appears
// whole: until Write returns without an error, and after a crash or on a full
// disk, what was at path before is still there. On return the new file is on
// stable storage.
func Write(path string, tensors []Tensor, meta map[string]string) error {
	f, err := durable.Create(path)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return commit(f, tensors, meta)
}

// commit writes the tensors to f and commits it, or aborts it.
func commit(f *durable.File, tensors []Tensor, meta map[string]string) error {
	if err := Encode(f, tensors, meta); err != nil {
		f.Abort()
		return err
	}
	if err := f.Commit(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// Encode writes tensors in the safetensors format. The wide ones come first (F32
// before F16 and BF16), each group sorted by name, in header and data alike, so
// every tensor starts at a multiple of its element size; metadata comes before
// them, sorted too. Equal input gives equal bytes, in whatever order it is given.
//
// F16 and BF16 round to nearest, ties to even; a finite value that would become
// infinite is an error naming the tensor and the index.
func Encode(w io.Writer, tensors []Tensor, meta map[string]string) error {
	tensors = slices.Clone(tensors)
	for i := range tensors {
		if tensors[i].DType == "" {
			tensors[i].DType = F32
		}
		if err := tensors[i].check(); err != nil {
			return fmt.Errorf("safetensors: tensor %q: %w", tensors[i].Name, err)
		}
	}
	slices.SortFunc(tensors, func(a, b Tensor) int {
		if d := b.DType.size() - a.DType.size(); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	header, err := encodeHeader(tensors, meta)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	buf := make([]byte, chunk)
	for _, t := range tensors {
		if err := t.encode(w, buf); err != nil {
			return fmt.Errorf("safetensors: tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

func (t Tensor) check() error {
	if !t.DType.float() {
		return fmt.Errorf("dtype %q cannot be written; want F32, F16 or BF16", t.DType)
	}
	if t.Name == "__metadata__" || !utf8.ValidString(t.Name) {
		return errors.New("not a name for a tensor")
	}
	if len(t.Shape) > maxRank {
		return fmt.Errorf("shape has %d dimensions; at most %d", len(t.Shape), maxRank)
	}
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("shape %v is negative", t.Shape)
		}
	}
	size, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if n := size / uint64(t.DType.size()); n != uint64(len(t.Data)) {
		return fmt.Errorf("shape %v is %d values, but %d are given", t.Shape, n, len(t.Data))
	}
	return nil
}

// encodeHeader returns the header's length and the header, padded with spaces so
// that the data starts at a multiple of 8.
func encodeHeader(tensors []Tensor, meta map[string]string) ([]byte, error) {
	b := make([]byte, 8, 256)
	b = append(b, '{')
	if meta != nil {
		b = append(b, `"__metadata__":{`...)
		for i, k := range slices.Sorted(maps.Keys(meta)) {
			if !utf8.ValidString(k) || !utf8.ValidString(meta[k]) {
				return nil, fmt.Errorf("metadata %q is not UTF-8", k)
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(appendString(b, k), ':'), appendString(nil, meta[k])...)
		}
		b = append(b, '}')
	}
	var at int
	seen := make(map[string]bool)
	for _, t := range tensors {
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %q: given twice", t.Name)
		}
		seen[t.Name] = true
		if len(b) > 9 {
			b = append(b, ',')
		}
		end := at + len(t.Data)*t.DType.size()
		b = appendString(b, t.Name)
		b = fmt.Appendf(b, `:{"dtype":"%s","shape":[`, t.DType)
		for i, d := range t.Shape {
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Append(b, d)
		}
		b = fmt.Appendf(b, `],"data_offsets":[%d,%d]}`, at, end)
		at = end
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if len(b)-8 > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes is over the limit of %d", len(b)-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b, nil
}

func appendString(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil {
		panic("safetensors: a string did not encode: " + err.Error())
	}
	return append(b, q...)
}

// encode writes a tensor's values through buf.
func (t Tensor) encode(w io.Writer, buf []byte) error {
	size := t.DType.size()
	for at := 0; at < len(t.Data); {
		n := min(len(buf)/size, len(t.Data)-at)
		b := buf[:n*size]
		for i, v := range t.Data[at : at+n] {
			if t.DType == F32 {
				binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
				continue
			}
			to16 := f32to16
			if t.DType == BF16 {
				to16 = f32toBF16
			}
			h, ok := to16(v)
			if !ok {
				return fmt.Errorf("value %g at index %d is outside %s; write it as F32", v, at+i, t.DType)
			}
			binary.LittleEndian.PutUint16(b[2*i:], h)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		at += n
	}
	return nil
}
