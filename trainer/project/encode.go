package project

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
)

// The encoded form. Numbers are little-endian; a string is its length (uint32)
// and its bytes; a float is its IEEE binary64 bits.
//
//	magic                      16 bytes
//	suites                     uint32, then as many strings
//	bases                      uint32, then as many times, by name:
//	  name                     string
//	  in, out, rank            uint32 each
//	  V, spectrum              rank*in and rank floats
//	  kept, kept by suite      1 and suites floats
//	SHA-256 of all the above   32 bytes
const magic = "link.subspace.v1"

// Encode writes s. Decode reads back the same bits.
func (s *Subspace) Encode(w io.Writer) error {
	_, err := w.Write(s.encoded())
	return err
}

// SHA256 is the hash of the encoded form, in hex.
func (s *Subspace) SHA256() string {
	h := sha256.Sum256(s.encoded())
	return hex.EncodeToString(h[:])
}

func (s *Subspace) encoded() []byte {
	b := []byte(magic)
	count := func(n int) { b = binary.LittleEndian.AppendUint32(b, uint32(n)) }
	text := func(t string) {
		count(len(t))
		b = append(b, t...)
	}
	floats := func(v ...float64) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
	}
	count(len(s.Suites))
	for _, suite := range s.Suites {
		text(suite)
	}
	count(len(s.Bases))
	for _, basis := range s.Bases {
		text(basis.Name)
		count(basis.In)
		count(basis.Out)
		count(basis.Rank)
		floats(basis.V...)
		floats(basis.Spectrum...)
		floats(basis.Kept)
		floats(basis.KeptBy...)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// Decode reads what Encode wrote, to the end of r. Anything else is an error, a
// damaged or cut file above all.
func Decode(r io.Reader) (*Subspace, error) {
	all, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("project: reading a subspace: %w", err)
	}
	s, err := decode(all)
	if err != nil {
		return nil, fmt.Errorf("project: not a subspace: %w", err)
	}
	return s, nil
}

var errCut = errors.New("it ends early")

func decode(all []byte) (*Subspace, error) {
	if len(all) < len(magic)+sha256.Size {
		return nil, errCut
	}
	if !bytes.HasPrefix(all, []byte(magic)) {
		return nil, fmt.Errorf("it does not begin with %s", magic)
	}
	body, sum := all[:len(all)-sha256.Size], all[len(all)-sha256.Size:]
	if h := sha256.Sum256(body); !bytes.Equal(h[:], sum) {
		return nil, errors.New("its SHA-256 does not fit: it is damaged or cut")
	}
	d := decoder{rest: body[len(magic):]}
	s := &Subspace{}
	for range d.count(4) {
		s.Suites = append(s.Suites, d.text())
	}
	for range d.count(16) {
		b := Basis{Name: d.text(), In: d.size(), Out: d.size(), Rank: d.size()}
		if d.err != nil {
			break
		}
		if b.In < 1 || b.Out < 1 || b.Rank < 1 || b.Rank > b.In {
			return nil, fmt.Errorf("layer %s is %d by %d with rank %d", b.Name, b.Out, b.In, b.Rank)
		}
		if n := len(s.Bases); n > 0 && s.Bases[n-1].Name >= b.Name {
			return nil, fmt.Errorf("layer %s is not in order", b.Name)
		}
		b.V = d.floats(b.Rank, b.In)
		b.Spectrum = d.floats(b.Rank, 1)
		if kept := d.floats(1, 1); kept != nil {
			b.Kept = kept[0]
		}
		b.KeptBy = d.floats(len(s.Suites), 1)
		s.Bases = append(s.Bases, b)
	}
	if d.err == nil && len(d.rest) > 0 {
		d.err = errors.New("something follows it")
	}
	if d.err != nil {
		return nil, d.err
	}
	return s, nil
}

// decoder takes values off the front of rest. After an error it gives zeros.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.rest) {
		d.err = errCut
	}
	if d.err != nil {
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) size() int {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return int(binary.LittleEndian.Uint32(b))
}

// count is a number of things that take at least that many bytes each.
func (d *decoder) count(least int) int {
	n := d.size()
	if d.err == nil && n > len(d.rest)/least {
		d.err = errCut
	}
	if d.err != nil {
		return 0
	}
	return n
}

func (d *decoder) text() string { return string(d.take(d.size())) }

// floats are m times n of them, n at least 1. Neither is believed: their product
// may be more than an int holds.
func (d *decoder) floats(m, n int) []float64 {
	if d.err == nil && m > len(d.rest)/8/n {
		d.err = errCut
	}
	if d.err != nil {
		return nil
	}
	b := d.take(8 * m * n)
	v := make([]float64, m*n)
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		if v[i]-v[i] != 0 {
			d.err = errors.New("a number in it is not finite")
			return nil
		}
	}
	return v
}
