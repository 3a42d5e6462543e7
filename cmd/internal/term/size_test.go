package term

import (
	"strings"
	"testing"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 8 << 30: "8 GiB", 3 << 29: "1.5 GiB", 1_000_000_000: "953.7 MiB", 1 << 52: "4 PiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "0GiB": 0, "8GiB": 8 << 30, "8 GiB": 8 << 30, "1.5GiB": 3 << 29, "500MB": 500_000_000, "1B": 1, "512MiB": 512 << 20, "2TiB": 2 << 40,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("%s is %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "8", "GiB", "-1GiB", "8gib", "8GiBB", "0.3B", "9PiB", "1e3MiB", "NaNGiB", "0x1GiB", "Inf B", "8G", "1_0MiB"} {
		if got, err := ParseBytes(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}

func TestPlain(t *testing.T) {
	for s, want := range map[string]string{
		"größe 1": "größe 1", "\x1b[2Jgone\r\nnext": "[2Jgone next", "a\xffb": "a\ufffdb", "left\u202eright": "leftright", "": "",
		strings.Repeat("é", 1000): strings.Repeat("é", 500) + " …",
	} {
		if got := Plain(s); got != want {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	}
}
