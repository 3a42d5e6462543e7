package term

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/hanzoai/link/spool/canon"
)

// AsJSON declares --json.
func AsJSON(flags *flag.FlagSet) *bool {
	return flags.Bool("json", false, "print one JSON object instead of text")
}

// Natural declares a flag that is a whole number of 0 or more, 0 when it is not
// given.
func Natural(flags *flag.FlagSet, p *int, name, usage string) {
	flags.Func(name, usage, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return errors.New("want a whole number, 0 or more")
		}
		*p = n
		return nil
	})
}

// PrintJSON prints v as one canonical line.
func PrintJSON(w io.Writer, v any) error {
	b, err := canon.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// One is the single argument that a subcommand takes.
func One(args []string, what string) (string, error) {
	if len(args) != 1 {
		return "", Usagef("expected one argument, %s, and got %d", what, len(args))
	}
	return args[0], nil
}

// List splits a flag's comma-separated value; the empty string is no value.
func List(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// Loopback refuses an address to listen on that other machines could reach. why
// says what they must not do.
func Loopback(flag, address, why string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return Usagef("%s %s: %w; give HOST:PORT, as 127.0.0.1:8080", flag, address, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return Usagef("%s %s: not a loopback address, and %s", flag, address, why)
	}
	return nil
}

// Refuse gives an error of someone's rows its exit status. A file that could not
// be read or written is no fault of theirs, and keeps [Failed].
func Refuse(err error) error {
	if _, disk := errors.AsType[syscall.Errno](err); disk {
		return err
	}
	return Exit(Refused, err)
}
