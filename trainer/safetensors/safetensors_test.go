package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

// file returns a safetensors file of a header and so many bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpenMalformed has one row a malformation. Every error names the file, and
// the tensor where there is one.
func TestOpenMalformed(t *testing.T) {
	a := func(members string) string { return `{"a":{` + members + `}}` }
	const ok = `"dtype":"F32","shape":[2],"data_offsets":[0,8]`
	length := func(n uint64) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), file("{}", 0)...)
	}
	tests := []struct {
		name string
		file []byte
		want []string
	}{
		{"empty file", nil, []string{"too few"}},
		{"seven bytes", make([]byte, 7), []string{"too few"}},
		{"header length 2^63", length(1 << 63), []string{"9223372036854775808", "over the limit"}},
		{"header length 2^64-1", length(math.MaxUint64), []string{"over the limit"}},
		{"header longer than the file", length(1000), []string{"truncated"}},
		{"a zip file, as PyTorch writes", append([]byte("PK\x03\x04\x00\x00\x08\x08"), make([]byte, 64)...), []string{"not a safetensors file"}},
		{"header length 0", file("", 0), []string{`want '{'`, "end of the header"}},
		{"header is an array", file("[]", 0), []string{`want '{'`}},
		{"header is not UTF-8", file("{\"a\xff\":{"+ok+"}}", 8), []string{"not UTF-8"}},
		{"lone surrogate", file(`{"a\ud800":{`+ok+`}}`, 8), []string{"bad escape"}},
		{"half a surrogate pair", file(`{"a\ud800\u0041":{`+ok+`}}`, 8), []string{"bad escape"}},
		{"control character", file("{\"a\n\":{"+ok+"}}", 8), []string{"a string holds"}},
		{"unended string", file(`{"a`, 0), []string{"end of the header"}},
		{"too deep", file(strings.Repeat(`{"a":`, 100000), 0), []string{`tensor "a"`, `unknown member "a"`}},
		{"deep shape", file(a(`"dtype":"F32","shape":[[2]],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "shape", "integer"}},
		{"trailing comma", file(`{"a":{`+ok+`},}`, 8), []string{"want '\"'"}},
		{"bytes after the header's object", file(`{} x`, 0), []string{"after the object"}},
		{"unknown dtype", file(a(`"dtype":"F33","shape":[2],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, `unknown dtype "F33"`}},
		{"dtype in lower case", file(a(`"dtype":"f32","shape":[2],"data_offsets":[0,8]`), 8), []string{`unknown dtype "f32"`}},
		{"no dtype", file(a(`"shape":[2],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "no dtype"}},
		{"no shape", file(a(`"dtype":"F32","data_offsets":[0,8]`), 8), []string{`tensor "a"`, "no shape"}},
		{"no offsets", file(a(`"dtype":"F32","shape":[2]`), 8), []string{`tensor "a"`, "no data_offsets"}},
		{"unknown member", file(a(ok+`,"strides":[1]`), 8), []string{`tensor "a"`, `"strides"`}},
		{"member twice", file(a(ok+`,"shape":[2]`), 8), []string{`tensor "a"`, "shape is given twice"}},
		{"tensor twice", file(`{"a":{`+ok+`},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), []string{`tensor "a"`, "named twice"}},
		{"tensor twice, once escaped", file(`{"a":{`+ok+`},"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), []string{`tensor "a"`, "named twice"}},
		{"metadata is not strings", file(`{"__metadata__":{"n":1}}`, 0), []string{"__metadata__", `"n"`}},
		{"metadata name twice", file(`{"__metadata__":{"n":"1","n":"2"}}`, 0), []string{"__metadata__", "twice"}},
		{"negative dimension", file(a(`"dtype":"F32","shape":[-2],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "shape", "non-negative integer"}},
		{"fractional dimension", file(a(`"dtype":"F32","shape":[2.0],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "shape"}},
		{"exponent", file(a(`"dtype":"F32","shape":[2e0],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "shape"}},
		{"leading zero", file(a(`"dtype":"F32","shape":[02],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "shape"}},
		{"dimension over 2^64", file(a(`"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "overflows"}},
		{"dimension of 2^63", file(a(`"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "overflows"}},
		{"elements overflow", file(a(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0), []string{`tensor "a"`, "overflows"}},
		{"bytes overflow", file(a(`"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]`), 0), []string{`tensor "a"`, "overflows"}},
		{"rank 33", file(a(`"dtype":"F32","shape":[`+strings.Repeat("1,", 32)+`1],"data_offsets":[0,4]`), 4), []string{`tensor "a"`, "more than 32"}},
		{"half a byte", file(a(`"dtype":"F4","shape":[1],"data_offsets":[0,1]`), 1), []string{`tensor "a"`, "whole number of bytes"}},
		{"three offsets", file(a(`"dtype":"F32","shape":[2],"data_offsets":[0,8,8]`), 8), []string{`tensor "a"`, "data_offsets"}},
		{"one offset", file(a(`"dtype":"F32","shape":[2],"data_offsets":[8]`), 8), []string{`tensor "a"`, "want 2 numbers"}},
		{"offsets backwards", file(a(`"dtype":"F32","shape":[2],"data_offsets":[8,0]`), 8), []string{`tensor "a"`, "backwards"}},
		{"fewer bytes than the shape", file(a(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), 4), []string{`tensor "a"`, "takes 8"}},
		{"more bytes than the shape", file(a(`"dtype":"F16","shape":[2],"data_offsets":[0,8]`), 8), []string{`tensor "a"`, "takes 4"}},
		{"gap at the start", file(a(`"dtype":"F32","shape":[2],"data_offsets":[4,12]`), 12), []string{`tensor "a"`, "gap"}},
		{"gap between", file(`{"a":{`+ok+`},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}`, 20), []string{`tensor "b"`, "gap"}},
		{"overlap", file(`{"a":{`+ok+`},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), []string{`tensor "b"`, "inside the tensor before it"}},
		{"one place for two", file(`{"a":{`+ok+`},"b":{`+ok+`}}`, 8), []string{`tensor "b"`, "inside the tensor before it"}},
		{"data truncated", file(a(ok), 7), []string{`tensor "a"`, "truncated"}},
		{"bytes after the last tensor", file(a(ok), 9), []string{"1 bytes after the last tensor"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, t.TempDir(), "bad.safetensors", tt.file)
			f, err := Open(path)
			if err == nil {
				f.Close()
				t.Fatalf("Open succeeded")
			}
			for _, want := range append(tt.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open = %v; want it to say %q", err, want)
				}
			}
			if len(err.Error()) > 1000 {
				t.Errorf("Open's error is %d bytes long", len(err.Error()))
			}
		})
	}
}

// TestOpenAccepts holds what the format allows and some readers refuse.
func TestOpenAccepts(t *testing.T) {
	tests := []struct {
		name string
		file []byte
		want map[string]Info
	}{
		{"no tensors", file(`{}`, 0), map[string]Info{}},
		{"metadata only", file(`{"__metadata__":{"format":"pt"}}`, 0), map[string]Info{}},
		{"header not aligned", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} `, 4), map[string]Info{"a": {F32, []int{1}}}},
		{"tensor not aligned", file(`{"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}`, 5),
			map[string]Info{"a": {F32, []int{1}}, "u": {"U8", []int{1}}}},
		{"scalar", file(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4), map[string]Info{"a": {F32, []int{}}}},
		{"empty tensors in one place", file(`{"a":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"b":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}`, 0),
			map[string]Info{"a": {F32, []int{0, 3}}, "b": {"I64", []int{0}}}},
		{"members in any order, white space", file(" {\n\"b\" : {\"data_offsets\":[4, 8],\"shape\":[1],\"dtype\":\"F32\"},\r\n\t\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]} }", 8),
			map[string]Info{"a": {F32, []int{1}}, "b": {F32, []int{1}}}},
		{"escapes", file(`{"\u00e9\ud83d\ude00\"\/\n":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}`, 1), map[string]Info{"é😀\"/\n": {"BOOL", []int{1}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Open(write(t, t.TempDir(), "a.safetensors", tt.file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got := make(map[string]Info)
			for _, name := range f.Names() {
				got[name], _ = f.Info(name)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("tensors differ (-want +got):\n%s", d)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	header := `{"p":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`
	f, err := Open(write(t, t.TempDir(), "a.safetensors", file(header, 16)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, absent := f.ReadFloat32("b")
	_, integers := f.ReadFloat32("p")
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"no such tensor", absent, `no tensor "b"`},
		{"integers", integers, `tensor "p": I64 does not read as float32`},
		{"short destination", f.Float32("a", make([]float32, 1)), `tensor "a": shape [2] is 2 values, want 1`},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) || !strings.Contains(tt.err.Error(), f.Path()) {
			t.Errorf("%s: %v; want it to say %q and the path", tt.name, tt.err, tt.want)
		}
	}
}

// shards writes a model of two shards with a float32 in each.
func shards(t *testing.T) string {
	dir := t.TempDir()
	for i, name := range []string{"a", "b"} {
		path := filepath.Join(dir, fmt.Sprintf("model-%05d-of-00002.safetensors", i+1))
		if err := Write(path, []Tensor{{Name: name, Shape: []int{1}, Data: []float32{float32(i + 1)}}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, index, []byte(`{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`))
	return dir
}

func TestOpenModel(t *testing.T) {
	f, err := OpenModel(shards(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []float32
	for _, name := range f.Names() {
		v, err := f.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v...)
	}
	if d := cmp.Diff([]float32{1, 2}, got); d != "" {
		t.Errorf("values differ (-want +got):\n%s", d)
	}
}

// TestOpenModelMalformed has one row a way in which a folder is not a model; a
// row that wants nothing is one.
func TestOpenModelMalformed(t *testing.T) {
	put := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { write(t, dir, name, []byte(content)) }
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	tests := []struct {
		name   string
		change func(t *testing.T, dir string)
		want   []string
	}{
		{"nothing there", remove(one, two, index), []string{"neither"}},
		{"a pickle", func(t *testing.T, dir string) {
			remove(one, two, index)(t, dir)
			put("pytorch_model.bin", "PK")(t, dir)
		}, []string{"pytorch_model.bin", "pickle", "convert", "save_pretrained"}},
		{"a shard is missing", remove(two), []string{two, "missing"}},
		{"a shard is truncated", func(t *testing.T, dir string) {
			path := filepath.Join(dir, two)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, two, whole[:len(whole)-1])
		}, []string{two, `tensor "b"`, "truncated"}},
		{"the index is not JSON", put(index, "{"), []string{index}},
		{"the index is empty", put(index, "{}"), []string{index, "weight_map"}},
		{"a tensor is in no shard", put(index, `{"weight_map":{"a":"`+one+`","b":"`+two+`","c":"`+two+`"}}`), []string{`tensor "c"`, two}},
		{"a tensor is in another shard", put(index, `{"weight_map":{"a":"`+two+`","b":"`+one+`"}}`), []string{`tensor "a"`, one, two}},
		{"a file beside that the index does not name", put(index, `{"weight_map":{"a":"`+one+`"}}`), nil},
		{"a tensor of a named shard is not in the index", func(t *testing.T, dir string) {
			err := Write(filepath.Join(dir, two), []Tensor{{Name: "b", Shape: []int{0}}, {Name: "d", Shape: []int{0}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}, []string{`tensor "d"`, two, "not in weight_map"}},
		{"a tensor in two shards", func(t *testing.T, dir string) {
			err := Write(filepath.Join(dir, two), []Tensor{{Name: "b", Shape: []int{0}}, {Name: "a", Shape: []int{0}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}, []string{`tensor "a"`, one, two, "also in"}},
		{"a shard elsewhere", put(index, `{"weight_map":{"a":"../x.safetensors"}}`), []string{`tensor "a"`, "../x.safetensors"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := shards(t)
			tt.change(t, dir)
			f, err := OpenModel(dir)
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
				return
			}
			if err == nil {
				t.Fatal("OpenModel succeeded")
			}
			for _, want := range append(tt.want, dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("OpenModel = %v; want it to say %q", err, want)
				}
			}
		})
	}
}

func TestOpenAbsent(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "no.safetensors")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open = %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("Open of a folder = %v", err)
	}
}

var mixed = []Tensor{
	{Name: "b", DType: F16, Shape: []int{3}, Data: []float32{1, -0.5, 65504}},
	{Name: "z", Shape: []int{2, 2}, Data: []float32{0, float32(math.Copysign(0, -1)), 1e-45, float32(math.Inf(1))}},
	{Name: "a", DType: BF16, Shape: []int{1}, Data: []float32{3}},
	{Name: "é\"", DType: F32, Shape: []int{}, Data: []float32{7}},
	{Name: "none", DType: F32, Shape: []int{0, 4}},
}

// TestWrite checks the bytes of a small file, that they do not depend on the
// order given, and that they read back.
func TestWrite(t *testing.T) {
	const header = `{"__metadata__":{"a":"1","format":"pt"},` +
		`"none":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},` +
		`"z":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},` +
		`"é\"":{"dtype":"F32","shape":[],"data_offsets":[16,20]},` +
		`"a":{"dtype":"BF16","shape":[1],"data_offsets":[20,22]},` +
		`"b":{"dtype":"F16","shape":[3],"data_offsets":[22,28]}}`
	meta := map[string]string{"format": "pt", "a": "1"}
	path := filepath.Join(t.TempDir(), "a.safetensors")
	if err := Write(path, mixed, meta); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	padded := header + strings.Repeat(" ", (8-len(header)%8)%8)
	if !bytes.HasPrefix(got[8:], []byte(padded)) {
		t.Errorf("header is\n%s\nwant\n%s", got[8:min(len(got), 8+len(padded))], padded)
	}
	reversed := []Tensor{mixed[4], mixed[3], mixed[2], mixed[1], mixed[0]}
	var again bytes.Buffer
	if err := Encode(&again, reversed, meta); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, again.Bytes()) {
		t.Error("the bytes depend on the order of the tensors")
	}

	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d := cmp.Diff(meta, f.Metadata()); d != "" {
		t.Errorf("metadata differs (-want +got):\n%s", d)
	}
	for _, want := range mixed {
		v, err := f.ReadFloat32(want.Name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want.Data {
			if math.Float32bits(v[i]) != math.Float32bits(want.Data[i]) {
				t.Errorf("%s[%d] = %g, want %g", want.Name, i, v[i], want.Data[i])
			}
		}
	}
}

// TestChunks writes and reads more than one buffer of each dtype.
func TestChunks(t *testing.T) {
	for _, d := range []DType{F32, F16, BF16} {
		data := make([]float32, chunk/d.size()+3)
		for i := range data {
			data[i] = float32(i % 256)
		}
		path := filepath.Join(t.TempDir(), "a.safetensors")
		if err := Write(path, []Tensor{{"a", d, []int{len(data)}, data}}, nil); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		got, err := f.ReadFloat32("a")
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			if got[i] != data[i] {
				t.Fatalf("%s: value %d = %g, want %g", d, i, got[i], data[i])
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	tests := []struct {
		name    string
		tensors []Tensor
		meta    map[string]string
		want    string
	}{
		{"shape and data differ", []Tensor{{"a", F32, []int{2}, []float32{1}}}, nil, `tensor "a": shape [2] is 2 values, but 1 are given`},
		{"negative shape", []Tensor{{"a", F32, []int{-1}, nil}}, nil, `tensor "a": shape [-1] is negative`},
		{"an integer dtype", []Tensor{{"a", "I64", []int{1}, []float32{1}}}, nil, `tensor "a": dtype "I64"`},
		{"given twice", []Tensor{{Name: "a", Shape: []int{0}}, {Name: "a", Shape: []int{0}}}, nil, `tensor "a": given twice`},
		{"the metadata's name", []Tensor{{Name: "__metadata__", Shape: []int{0}}}, nil, "not a name"},
		{"a name that is not UTF-8", []Tensor{{Name: "\xff", Shape: []int{0}}}, nil, "not a name"},
		{"metadata that is not UTF-8", nil, map[string]string{"a": "\xff"}, "not UTF-8"},
		{"over the largest F16", []Tensor{{"a", F16, []int{2}, []float32{65519, 65520}}}, nil, `tensor "a": value 65520 at index 1 is outside F16`},
		{"over the largest BF16", []Tensor{{"a", BF16, []int{1}, []float32{math.MaxFloat32}}}, nil, "outside BF16"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := write(t, dir, "a.safetensors", []byte("old"))
			err := Write(path, tt.tensors, tt.meta)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("Write = %v; want it to say %q", err, tt.want)
			}
			checkOld(t, dir, path)
		})
	}
}

// checkOld checks that a failed write left the old file and nothing else.
func checkOld(t *testing.T, dir, path string) {
	t.Helper()
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("after a failed write the file holds %q, want the old content", got)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("after a failed write the folder holds %v, want one file", left)
	}
}

// TestWriteFullDisk fails each call up to the rename, as a full disk does: with
// nothing of it done, and with a part.
func TestWriteFullDisk(t *testing.T) {
	for _, lands := range []int{0, 3} {
		for n := 1; ; n++ {
			dir := t.TempDir()
			path := write(t, dir, "a.safetensors", []byte("old"))
			renamed := false
			disk := &durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
				if c.N == n && !renamed {
					return durabletest.Fault{Err: syscall.ENOSPC, Lands: min(lands, c.Size)}
				}
				renamed = renamed || c.Op == durabletest.Rename
				return durabletest.Fault{}
			}}
			f, err := durable.On(disk).Create(path)
			if err == nil {
				err = commit(f, mixed, nil)
			}
			if renamed {
				if n < 6 || err != nil {
					t.Fatalf("the rename came after %d calls: %v", n, err)
				}
				break
			}
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
				t.Errorf("call %d: %v; want %v and the path", n, err, syscall.ENOSPC)
			}
			checkOld(t, dir, path)
		}
	}
}

// TestHalf checks both 16-bit formats at every value and half way between each
// two neighbours, which is where rounding decides.
func TestHalf(t *testing.T) {
	tests := []struct {
		name string
		wide func(uint16) float32
		half func(float32) (uint16, bool)
		inf  uint16
	}{
		{"F16", f16to32, f32to16, 0x7c00},
		{"BF16", bf16to32, f32toBF16, 0x7f80},
	}
	for _, tt := range tests {
		for h := uint16(0); h < tt.inf; h++ {
			for _, sign := range []uint16{0, 0x8000} {
				v := tt.wide(h | sign)
				if got, ok := tt.half(v); got != h|sign || !ok {
					t.Fatalf("%s: %#04x is %g, which rounds to %#04x, %v", tt.name, h|sign, v, got, ok)
				}
			}
			if h+1 == tt.inf {
				break
			}
			mid := float32((float64(tt.wide(h)) + float64(tt.wide(h+1))) / 2)
			below, above := math.Nextafter32(mid, 0), math.Nextafter32(mid, float32(math.Inf(1)))
			even := h + h&1
			for v, want := range map[float32]uint16{below: h, mid: even, above: h + 1} {
				if got, ok := tt.half(v); got != want || !ok {
					t.Fatalf("%s: %g rounds to %#04x, %v; want %#04x", tt.name, v, got, ok, want)
				}
			}
		}
		if v := tt.wide(tt.inf); !math.IsInf(float64(v), 1) {
			t.Errorf("%s: infinity reads as %g", tt.name, v)
		}
		if h, ok := tt.half(float32(math.Inf(-1))); h != tt.inf|0x8000 || !ok {
			t.Errorf("%s: -Inf rounds to %#04x, %v", tt.name, h, ok)
		}
		for _, bits := range []uint32{0x7f800001, 0x7fc00000, 0xffffffff} {
			h, ok := tt.half(math.Float32frombits(bits))
			if v := tt.wide(h); v == v || !ok {
				t.Errorf("%s: the NaN %#08x rounds to %#04x, %v", tt.name, bits, h, ok)
			}
		}
	}
	if got := f16to32(0x3555); got != 0.333251953125 {
		t.Errorf("F16 0x3555 reads as %g", got)
	}
	if got := f16to32(1); got != 0x1p-24 {
		t.Errorf("the smallest F16 reads as %g", got)
	}
}

// FuzzHeader checks that no header panics, and that one that is accepted
// describes exactly its data.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}`), uint64(8))
	f.Add([]byte(`{"\ud83d\ude00":{"data_offsets":[0,0],"shape":[0],"dtype":"I64"}} `), uint64(0))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`), uint64(0))
	f.Fuzz(func(t *testing.T, header []byte, size uint64) {
		entries, _, err := parseHeader(header, size)
		if err != nil {
			return
		}
		var at uint64
		for _, e := range entries {
			n, err := byteSize(e.dtype, e.shape)
			if err != nil || e.begin != at || e.end != at+n {
				t.Errorf("tensor %q at [%d, %d] after %d, %d bytes: %v", e.name, e.begin, e.end, at, n, err)
			}
			at = e.end
		}
		if at != size {
			t.Errorf("tensors cover %d of %d bytes", at, size)
		}
	})
}
