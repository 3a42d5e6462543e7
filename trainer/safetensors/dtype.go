package safetensors

import "math"

// A DType names how a tensor's elements are stored.
type DType string

// The dtypes whose values this package converts.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

// dtypeBits holds every dtype of the format and the bits of one element.
// Source: the safetensors crate, version 0.8, enum Dtype.
var dtypeBits = map[DType]uint64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
	"I16": 16, "U16": 16, F16: 16, BF16: 16,
	"I32": 32, "U32": 32, F32: 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// float reports whether values of d read as float32 without loss.
func (d DType) float() bool { return d == F32 || d == F16 || d == BF16 }

// size returns the bytes of one element of a dtype for which float holds.
func (d DType) size() int {
	if d == F32 {
		return 4
	}
	return 2
}

// f16to32 returns the value of an IEEE binary16. Every such value, subnormal,
// infinite and NaN included, is a binary32.
func f16to32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24, exact in binary32
		return math.Float32frombits(math.Float32bits(float32(frac)*0x1p-24) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// f32to16 rounds to the nearest binary16, ties to even. A NaN stays a NaN, made
// quiet; ok is false when a finite value would become infinite.
func f32to16(f float32) (h uint16, ok bool) {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13)&0x3ff, true
	case b == 0x7f800000:
		return sign | 0x7c00, true
	case b >= 0x477ff000: // 65520, half way between the largest binary16 and 2^16
		return sign | 0x7c00, false
	case b < 0x38800000: // below 2^-14, the smallest normal
		// Adding .5 leaves the value in units of 2^-24, rounded to nearest even,
		// in the low bits: the adder does the rounding.
		r := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000), true
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-(127-15)<<23)>>13), true
}

// bf16to32 returns the value of a bfloat16, the upper half of a binary32.
func bf16to32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// f32toBF16 rounds to the nearest bfloat16 as f32to16 does.
func f32toBF16(f float32) (h uint16, ok bool) {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40, true
	}
	h = uint16((b + 0x7fff + b>>16&1) >> 16)
	return h, h&0x7f80 != 0x7f80 || b&0x7f800000 == 0x7f800000
}
