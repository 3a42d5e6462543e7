//go:build linux

package sandboxcmd

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/sandbox/attempt"
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
			mark := map[attempt.State]string{attempt.Held: "ok", attempt.NotRun: "not run", attempt.Failed: "not tried"}[a.State]
			table.Row("  "+cmp.Or(mark, "GAVE WAY"), strconv.Itoa(a.Number), a.Name, a.Expected, a.Got)
		}
		table.Flush()
	}
	if len(r.Kinds) == 0 {
		return
	}
	fmt.Fprintf(w, `
EPERM and EACCES: refused. ENOENT: not there. ENOSYS: no such system call.
EROFS: cannot be written. EAFNOSUPPORT: no such network. ESRCH: no such process.

"not run" is what this host lacks something for; "not tried" failed beforehand.

%s: %d held, %d gave way, %d not run, %d not tried.
`, count(r.Held+r.Gave+r.NotRun+r.Failed, "attempt", "attempts"), r.Held, r.Gave, r.NotRun, r.Failed)
	switch {
	case r.Gave > 0:
		fmt.Fprintln(w, "The sandbox does not hold on this machine.")
	case r.Held == 0:
		fmt.Fprintln(w, "Nothing could be tried, so nothing is known of the sandbox on this machine.")
	case r.Offers && r.OK:
		fmt.Fprintln(w, "The sandbox holds, and this machine can offer work.")
	default:
		fmt.Fprintln(w, "What could be tried held; nothing is known of the rest.")
	}
}
