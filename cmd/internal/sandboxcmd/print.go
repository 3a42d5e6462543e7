//go:build linux

package sandboxcmd

import (
	"fmt"
	"io"
	"strconv"

	"github.com/hanzoai/link/cmd/internal/term"
)

// print is the report for a person.
func (r *Report) print(w io.Writer) {
	fmt.Fprint(w, "What this host can build\n\n")
	table := term.NewTable(w)
	for _, h := range r.Host {
		mark := "ok"
		switch {
		case !h.OK && h.Need:
			mark = "MISSING"
		case !h.OK:
			mark = "note"
		}
		table.Row("  "+mark, h.Name, h.Detail)
	}
	table.Flush()
	if !r.Offers {
		fmt.Fprintf(w, "\nThis machine would offer nothing, because it lacks what a sandbox needs.\n%s\n", r.Reason)
	}
	for _, k := range r.Kinds {
		fmt.Fprintf(w, "\nWhat a workload of kind %s tried in its sandbox\n\n", k.Kind)
		if k.Error != "" {
			fmt.Fprintf(w, "  The sandbox could not be built: %s\n", k.Error)
			continue
		}
		table := term.NewTable(w)
		table.Row("", "#", "attempt", "expected", "got")
		for _, a := range k.Results {
			mark, got := "ok", a.Got
			switch {
			case !a.OK:
				mark = "GAVE WAY"
			case a.Skipped != "":
				mark, got = "not run", a.Skipped
			}
			table.Row("  "+mark, strconv.Itoa(a.Number), a.Name, a.Expected, got)
		}
		table.Flush()
	}
	if len(r.Kinds) == 0 {
		return
	}
	fmt.Fprintf(w, `
EPERM and EACCES: refused. ENOENT: not there. ENOSYS: no such system call.
EROFS: cannot be written. EAFNOSUPPORT: no such network. ESRCH: no such process.

%s: %d held, %d gave way, %d not run.
`, count(r.Held+r.Gave+r.NotRun, "attempt", "attempts"), r.Held, r.Gave, r.NotRun)
	switch {
	case r.Gave > 0:
		fmt.Fprintln(w, "The sandbox does not hold on this machine.")
	case r.Offers && r.OK:
		fmt.Fprintln(w, "The sandbox holds, and this machine can offer work.")
	default:
		fmt.Fprintln(w, "What could be tried held.")
	}
}
