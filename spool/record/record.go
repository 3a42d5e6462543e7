// Package record holds the objects of the experiment record that producer and
// server must judge alike: datasets and their items, artifacts, environments and the
// determinism reports about them, and the purposes that say what each may be used for
// (HIP-1334 §3 to §6).
//
// The types are the wire's: their json names are the specification's, and package
// canon reads and writes them closed, so an enumeration holds only values it
// names. Validate checks what a type cannot say; its errors are *[canon.Error]
// naming the member. Whether another object exists is not asked here: that is for
// who holds a store.
//
// Everything is pure. Instants are RFC 3339 in UTC with Z. Sizes are bytes.
package record

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/hanzoai/link/spool/canon"
)

// Forms of caller-named ids (HIP-1334 §2.3).
const (
	datasetPattern = `^[a-z0-9][a-z0-9._-]{0,63}$`
	itemPattern    = `^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`
	runPattern     = `^[A-Za-z0-9][A-Za-z0-9._:+@-]{0,191}$`
)

var (
	datasetForm = regexp.MustCompile(datasetPattern)
	itemForm    = regexp.MustCompile(itemPattern)
	runForm     = regexp.MustCompile(runPattern)

	// time.Parse also takes a comma, an hour of one digit and other zones.
	instantForm = regexp.MustCompile(`^[0-9-]{10}T[0-9:]{8}(\.[0-9]+)?Z$`)
)

// ValidDataset reports whether id may name a dataset. A gate's name has the same form.
func ValidDataset(id string) bool { return datasetForm.MatchString(id) }

// ValidItem reports whether id may name an item of a dataset.
func ValidItem(id string) bool { return itemForm.MatchString(id) }

// ValidRun reports whether id may name a run.
func ValidRun(id string) bool { return runForm.MatchString(id) }

var (
	errEmpty = errors.New("must not be empty")
	errZero  = errors.New("counts from 1")
)

func fault(member string, err error) error {
	return &canon.Error{Pointer: "/" + member, Err: err}
}

// shape checks what reading v from JSON would: enumerations, hashes, UTF-8 and
// finite numbers.
func shape(v any) error {
	_, err := canon.Marshal(v)
	return err
}

// instant checks that s is an RFC 3339 instant in UTC with Z.
func instant(member, s string) error {
	if _, err := time.Parse(time.RFC3339, s); err != nil || !instantForm.MatchString(s) {
		return fault(member, fmt.Errorf("%q is not an RFC 3339 instant in UTC with Z", s))
	}
	return nil
}
