package canon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// reference is the rule a second time, over encoding/json: it parses, sorts and
// prints without sharing a line with the package. It does not keep ties.
func reference(src []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	if _, err := d.Token(); err != io.EOF {
		return "", fmt.Errorf("trailing data")
	}
	var b strings.Builder
	spell(&b, v)
	return b.String(), nil
}

func spell(b *strings.Builder, v any) {
	switch v := v.(type) {
	case json.Number:
		n, isInt := new(big.Int).SetString(string(v), 10)
		f, _ := strconv.ParseFloat(string(v), 64)
		switch {
		case f == 0:
			b.WriteString("0")
		case isInt && (n.IsInt64() || n.IsUint64()):
			b.WriteString(n.String())
		default:
			b.WriteString(strconv.FormatFloat(f, 'f', -1, 64))
		}
	case string:
		// encoding/json escapes five more characters.
		q, _ := json.Marshal(v)
		b.WriteString(strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\u2028`, "\u2028", `\u2029`, "\u2029").Replace(string(q)))
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			spell(b, e)
		}
		b.WriteByte(']')
	case map[string]any:
		names := []string{}
		for name := range v {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return slices.Compare([]rune(a), []rune(b)) })
		b.WriteByte('{')
		for i, name := range names {
			if i > 0 {
				b.WriteByte(',')
			}
			spell(b, name)
			b.WriteByte(':')
			spell(b, v[name])
		}
		b.WriteByte('}')
	default:
		fmt.Fprint(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
}

// checkCanonical tests what holds of any text that Canonicalize accepts.
func checkCanonical(t *testing.T, src []byte) {
	t.Helper()
	out, err := Canonicalize(src)
	if err != nil {
		return
	}
	again, err := Canonicalize(out)
	if err != nil || !bytes.Equal(again, out) {
		t.Fatalf("Canonicalize(%q) = %q, and of that %q, %v", src, out, again, err)
	}
	var r Raw
	if err := Unmarshal(src, &r); err != nil {
		t.Fatalf("Unmarshal(%q): %v", src, err)
	}
	if m, err := Marshal(r); err != nil || !bytes.Equal(m, out) {
		t.Fatalf("Marshal of %q = %q, %v; want %q", r, m, err, out)
	}
	want, err := reference(src)
	if err != nil {
		t.Fatalf("Canonicalize accepts %q, and encoding/json says %v", src, err)
	}
	if want != string(out) && !onlyTies(out) {
		t.Fatalf("Canonicalize(%q) = %q, want %q", src, out, want)
	}
}

// onlyTies reports whether the reference agrees once ties are rounded to even.
func onlyTies(out []byte) bool {
	want, _ := reference(out)
	var got strings.Builder
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return false
	}
	spell(&got, v)
	return got.String() == want && len(want) == len(out)
}

func FuzzCanonicalize(f *testing.F) {
	for _, v := range canonVectors(f) {
		f.Add([]byte(v.Input))
	}
	f.Add([]byte("[0.7832717895507813]"))
	f.Add([]byte(`{"\"":1,"\\":2,"é":3}`))
	f.Fuzz(checkCanonical)
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(fullJSON))
	f.Add([]byte(`{"z":true}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		var v sample
		if Unmarshal(src, &v) != nil {
			return
		}
		first, err := Marshal(v)
		if err != nil {
			t.Fatalf("Marshal of what Unmarshal read from %q: %v", src, err)
		}
		var again sample
		if err := Unmarshal(first, &again); err != nil {
			t.Fatalf("Unmarshal(%s): %v", first, err)
		}
		if second, _ := Marshal(again); !bytes.Equal(first, second) {
			t.Fatalf("%s became %s", first, second)
		}
	})
}

// TestRandomDocuments compares with the reference on documents that are made to be
// awkward.
func TestRandomDocuments(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	accepted := 0
	for range 6_000 {
		doc := g.value(0)
		checkCanonical(t, []byte(doc))
		if _, err := Canonicalize([]byte(doc)); err == nil {
			accepted++
		}
	}
	if accepted < 5_000 {
		t.Errorf("only %d of 6000 documents were accepted: the generator tests refusals", accepted)
	}
}

type generator struct{ *rand.Rand }

func (g generator) value(depth int) string {
	k := g.IntN(8)
	if depth > 4 {
		k = g.IntN(4)
	}
	parts := make([]string, g.IntN(5))
	switch k {
	case 0:
		return g.string()
	case 1, 2:
		return g.number()
	case 3:
		return []string{"null", "true", "false"}[g.IntN(3)]
	case 4, 5:
		for i := range parts {
			parts[i] = g.value(depth + 1)
		}
		return "[" + strings.Join(parts, " , ") + "]"
	}
	for i := range parts {
		parts[i] = g.string() + " : " + g.value(depth+1)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func (g generator) string() string {
	var b strings.Builder
	b.WriteByte('"')
	for range g.IntN(6) {
		switch g.IntN(6) {
		case 0:
			fmt.Fprintf(&b, `\u%04x`, g.IntN(0xD800))
		case 1:
			fmt.Fprintf(&b, `\u%04x\u%04X`, 0xD800+g.IntN(0x400), 0xDC00+g.IntN(0x400))
		case 2:
			b.WriteString([]string{`\n`, `\t`, `\/`, `\\`, `\"`, `\b`, `\f`, `\r`}[g.IntN(8)])
		case 3:
			b.WriteRune([]rune{0x7f, 0x85, 0x2028, 0x2029, 0xfeff, 0xfffd, 0xe000, 0xff01, 0x1f600, 0x10ffff, '<', '&'}[g.IntN(12)])
		default:
			if r := rune(g.IntN(0x3000)); r >= 0x20 && r != '"' && r != '\\' && utf8.ValidRune(r) {
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (g generator) number() string {
	switch g.IntN(8) {
	case 0:
		return strconv.FormatUint(g.Uint64(), 10)
	case 1:
		return strconv.FormatInt(int64(g.Uint64()), 10)
	case 2:
		return new(big.Int).Lsh(big.NewInt(int64(g.Uint32())), uint(g.IntN(100))).String()
	case 3:
		f := math.Float64frombits(g.Uint64())
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return "0"
		}
		return strconv.FormatFloat(f, "eEfg"[g.IntN(4)], -1, 64)
	case 4:
		return fmt.Sprintf("%d.%de%d", g.IntN(10), g.Uint32(), g.IntN(700)-350)
	case 5: // float32 widened, where ties are common
		return strconv.FormatFloat(float64(float32(g.Float64()*1000)), 'f', 20, 64)
	}
	return strconv.FormatFloat(g.NormFloat64()*math.Pow(10, float64(g.IntN(40)-20)), 'g', -1, 64)
}

func BenchmarkCanonicalize(b *testing.B) {
	src := []byte(fullJSON)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := Canonicalize(src); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	src := []byte(fullJSON)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		var v sample
		if err := Unmarshal(src, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMarshal(b *testing.B) {
	v := full()
	for b.Loop() {
		if _, err := Marshal(v); err != nil {
			b.Fatal(err)
		}
	}
}
