package project

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hanzoai/link/kernels/cpu"
)

func testSubspace(t *testing.T) *Subspace {
	t.Helper()
	b := NewBuilder(cpu.New(1), []Layer{{"z", 12, 5}, {"a", 9, 4}})
	for _, name := range []string{"orders", "mail"} {
		for i := range 5 {
			for layer, l := range b.layers {
				r := randomRows(uint64(i), 1, l.In, l.Out)[0]
				b.Tap(layer, mem(r.dy), mem(r.x), r.t)
			}
			b.Row()
		}
		if err := b.Suite(name); err != nil {
			t.Fatal(err)
		}
	}
	s, err := b.Build(Config{Energy: .9, Cap: .3})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func encode(t *testing.T, s *Subspace) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := s.Encode(&w); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func TestDecodeGivesWhatWasEncoded(t *testing.T) {
	s := testSubspace(t)
	if len(s.Bases) != 2 || s.Bases[0].Name != "a" || s.Find("z") != &s.Bases[1] {
		t.Fatalf("the bases are not by name: %+v", s.Bases)
	}
	b := encode(t, s)
	got, err := Decode(iotest.OneByteReader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, s) {
		t.Errorf("decoded %+v, encoded %+v", got, s)
	}
	h := sha256.Sum256(b)
	if s.SHA256() != hex.EncodeToString(h[:]) || got.SHA256() != s.SHA256() {
		t.Errorf("SHA-256 %s and %s, the file's is %x", s.SHA256(), got.SHA256(), h)
	}
}

func TestHashIsOfEveryPart(t *testing.T) {
	seen := map[string]string{}
	note := func(what string, s *Subspace) {
		h := s.SHA256()
		if was, ok := seen[h]; ok {
			t.Errorf("%s has the hash of %s", what, was)
		}
		seen[h] = what
	}
	note("itself", testSubspace(t))
	for what, change := range map[string]func(s *Subspace){
		"suite":    func(s *Subspace) { s.Suites[0] = "order" },
		"name":     func(s *Subspace) { s.Bases[1].Name = "y" },
		"out":      func(s *Subspace) { s.Bases[1].Out++ },
		"v":        func(s *Subspace) { s.Bases[1].V[4] += 1e-16 },
		"spectrum": func(s *Subspace) { s.Bases[1].Spectrum[0] += 1e-15 },
		"kept":     func(s *Subspace) { s.Bases[1].Kept += 1e-15 },
		"kept by":  func(s *Subspace) { s.Bases[1].KeptBy[1] += 1e-15 },
		"no base":  func(s *Subspace) { s.Bases = s.Bases[:1] },
	} {
		s := testSubspace(t)
		change(s)
		note(what, s)
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	b := encode(t, testSubspace(t))
	for i := range b {
		bad := slices.Clone(b)
		bad[i] ^= 1 << (i % 8)
		if _, err := Decode(bytes.NewReader(bad)); err == nil {
			t.Fatalf("a bit of byte %d of %d was turned, and it was read", i, len(b))
		}
		if _, err := Decode(bytes.NewReader(b[:i])); err == nil {
			t.Fatalf("%d of %d bytes were read", i, len(b))
		}
	}
	if _, err := Decode(bytes.NewReader(append(slices.Clone(b), 0))); err == nil {
		t.Error("a byte more was read")
	}
	broken := errors.New("broken")
	if _, err := Decode(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a reader's error came back as %v", err)
	}
}

// A file whose hash fits is still not believed.
func TestDecodeRefusesWhatNoBuilderMakes(t *testing.T) {
	inf := func(s *Subspace) *float64 { return &s.Bases[0].V[1] }
	for what, change := range map[string]func(s *Subspace){
		"not in order":  func(s *Subspace) { s.Bases[0].Name = "zz" },
		"is not finite": func(s *Subspace) { *inf(s) /= 0 * *inf(s) },
		"with rank 0":   func(s *Subspace) { s.Bases[0].Rank, s.Bases[0].V, s.Bases[0].Spectrum = 0, nil, nil },
		"with rank 2":   func(s *Subspace) { s.Bases[0].In = 1 },
		"ends early":    func(s *Subspace) { s.Bases[0].KeptBy, s.Bases[1].KeptBy = nil, nil },
		"something":     func(s *Subspace) { s.Bases[1].KeptBy = append(s.Bases[1].KeptBy, 1) },
		"begin with":    nil,
	} {
		s := testSubspace(t)
		var b []byte
		if change != nil {
			change(s)
			b = encode(t, s)
		} else {
			b = encode(t, s)
			b[len(magic)-1]++
			h := sha256.Sum256(b[:len(b)-sha256.Size])
			copy(b[len(b)-sha256.Size:], h[:])
		}
		if _, err := Decode(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Lengths that no file could hold ask for no memory.
func TestDecodeAsksForNoMoreThanTheFileHolds(t *testing.T) {
	// No suites and one layer without a name, as far as the file goes.
	head := []byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}
	for _, n := range []int{0, 4, 8, 12} {
		b := append([]byte(magic), head[:n]...)
		b = append(b, bytes.Repeat([]byte{0xff}, 64)...) // 2³²-1 squared is more than an int
		h := sha256.Sum256(b)
		if _, err := Decode(bytes.NewReader(append(b, h[:]...))); err == nil {
			t.Errorf("after %d bytes of its head: it was read", n)
		}
	}
}
