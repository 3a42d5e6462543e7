// Package canon is the one spelling of a JSON value and its SHA-256.
//
// Two machines that hold the same value must hash the same bytes. HIP-1334 §2.1
// fixes them: no white space; object members sorted by code point; strings
// escaped as serde_json escapes them; integers as written; every other number as
// its shortest round-trip decimal, positional, never with an exponent; -0 as 0.
// This is not RFC 8785, which sorts by UTF-16 unit, prints exponents and rounds
// integers to float64.
//
// # Reading
//
// [Canonicalize] and [Unmarshal] accept one RFC 8259 value in valid UTF-8 and
// nothing after it. They refuse what other decoders repair or guess at: invalid
// UTF-8, lone surrogates, a byte order mark, duplicate members, numbers that
// overflow a float64, more than [MaxDepth] open brackets. [Unmarshal] is closed
// as well: a member the Go type does not have, or lacks, is an error, and so is a
// null, a 1.0 or a wrong case where the type does not allow it.
//
// # Go types
//
// Struct fields are named by their json tags. A field of an embedded struct, or of
// a struct tagged ",inline", is a field of the outer one. A pointer or a [Raw] may
// be absent, which reads as null, and is written as null when nil. Tagged
// ",omitzero", a field of any type may be absent, and is not written when zero. Any
// other field must be there and not be null. Methods MarshalJSON and UnmarshalJSON
// are honoured.
//
// A string type may say which values it has by a method Valid() bool. Others are
// refused in both directions, so an enumeration is closed wherever it stands.
//
// # Ties
//
// Several decimals of the shortest length may read back as one float64. We write
// the nearest and, where it lies exactly between two, the even one, as Go,
// JavaScript and Ryu do; Rust's Display writes the other. So that bytes hashed by
// either still verify, reading keeps a positional number of that length as it was
// written.
//
// All functions are pure and may be called concurrently.
package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how many arrays and objects may be open at once: serde_json's
// limit, so that a text one side accepts is one the other accepts.
const MaxDepth = 127

var (
	// ErrNotFinite reports a NaN or an infinity, which JSON cannot hold.
	ErrNotFinite = errors.New("number is not finite")
	// ErrTooLarge reports a canonical form past four times its source and 1 MiB:
	// the five bytes 1e308 become 309.
	ErrTooLarge = errors.New("canonical form is too large")
)

// An Error is a fault at one place in a JSON text or in a Go value.
type Error struct {
	Pointer string // RFC 6901; empty for the whole value
	Err     error
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return e.Err.Error()
	}
	const most = 512
	pointer := e.Pointer
	// A pointer holds names that whoever wrote the JSON chose, and an error goes into
	// logs and onto terminals.
	if len(pointer) > most || strings.ContainsFunc(pointer, func(r rune) bool { return !unicode.IsPrint(r) }) {
		pointer = fmt.Sprintf("%.*q", most, pointer)
	}
	return pointer + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

var (
	errDepth   = fmt.Errorf("more than %d arrays and objects are open", MaxDepth)
	errMissing = errors.New("member is missing")
)

// within places err, whose pointer starts at the value at, in the whole.
func within(at string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{at + e.Pointer, e.Err}
	}
	return &Error{at, err}
}

// Raw is JSON of no fixed shape, held as it was written. A nil Raw is null.
type Raw = jsontext.Value

// A Hash is "sha256:" and 64 lower-case hex digits: the SHA-256 of a value's
// canonical JSON. Fields named *_hash and event_id hold one.
type Hash string

// A SHA256 is 64 lower-case hex digits: the SHA-256 of an artifact's bytes, which
// is its address. Fields named sha256 and *_sha256 hold one.
type SHA256 string

const hashPrefix = "sha256:"

// Valid reports whether h has the form of a Hash.
func (h Hash) Valid() bool {
	return strings.HasPrefix(string(h), hashPrefix) && SHA256(h[len(hashPrefix):]).Valid()
}

// Hex returns the 64 digits of h without its prefix.
func (h Hash) Hex() string { return strings.TrimPrefix(string(h), hashPrefix) }

// Valid reports whether s has the form of a SHA256.
func (s SHA256) Valid() bool {
	if len(s) != 2*sha256.Size {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// HashOf returns the Hash of bytes that are canonical already.
func HashOf(canonical []byte) Hash { return Hash(hashPrefix + Sum(canonical)) }

// Sum returns the address of b.
func Sum(b []byte) SHA256 {
	sum := sha256.Sum256(b)
	return SHA256(hex.EncodeToString(sum[:]))
}

// Of returns the Hash of a Go value: that of what [Marshal] writes.
func Of(v any) (Hash, error) {
	b, err := Marshal(v)
	if err != nil {
		return "", err
	}
	return HashOf(b), nil
}
