package term

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are of a number of bytes, the largest last.
var units = []struct {
	name  string
	bytes float64
}{
	{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"PiB", 1 << 50},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

const binary = 6 // how many of units are powers of 1024

// Bytes writes a number of bytes for a person: 8 GiB, 1.5 GiB, 512 B.
func Bytes(n int64) string {
	u := units[0]
	for _, larger := range units[1:binary] {
		if math.Abs(float64(n)) >= larger.bytes {
			u = larger
		}
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/u.bytes, 'f', 1, 64), ".0") + " " + u.name
}

// ParseBytes reads a number of bytes as a person writes it: 8GiB, 1.5 GiB, 500MB, 0.
func ParseBytes(s string) (int64, error) {
	number := strings.TrimRight(s, "BKMGTPik ")
	unit := strings.TrimSpace(s[len(number):])
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v < 0 || math.IsNaN(v) || strings.ContainsAny(number, "eExXpP_+") {
		return 0, errors.New("want a size, such as 8GiB")
	}
	if v == 0 {
		return 0, nil
	}
	for _, u := range units {
		if u.name != unit {
			continue
		}
		if v *= u.bytes; v >= 1<<53 || v != math.Trunc(v) {
			return 0, fmt.Errorf("%s is not a whole number of bytes below 8 PiB", s)
		}
		return int64(v), nil
	}
	return 0, errors.New("want a size with its unit, such as 8GiB or 500MB")
}

// SizeFlag declares a flag that is a number of bytes. given is false until it is set.
func SizeFlag(flags *flag.FlagSet, p *int64, given *bool, name, usage string) {
	flags.Func(name, usage, func(s string) (err error) {
		*p, err = ParseBytes(s)
		*given = err == nil
		return err
	})
}
