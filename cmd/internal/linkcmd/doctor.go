package linkcmd

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
)

// Doctor is hanzo doctor.
var Doctor = term.Command{
	Name:  "doctor",
	Short: "look for what keeps this machine from being linked or from working",
	Long: `
Each line is one thing: ok; a note, which work does without; or MISSING, with what to do.
It exits 1 when anything is missing. As root it builds a sandbox to know that it can;
anybody else is told the rest. It changes nothing, and before linking it says whether
the machine can be linked. hanzo sandbox check tries to break out of the sandbox, too.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("doctor takes no arguments")
			}
			all := thisPatient().examine(ctx)
			if err := ctx.Err(); err != nil {
				return err
			}
			return report(streams.Out, all, *asJSON)
		}
	},
}

// A finding is one thing that was looked at.
type finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Need   bool   `json:"need"`   // nothing works without it
	Detail string `json:"detail"` // what was found and, when it is not well, what to do
}

func well(name, format string, args ...any) finding {
	return finding{name, true, true, fmt.Sprintf(format, args...)}
}

func note(name, format string, args ...any) finding {
	return finding{name, false, false, fmt.Sprintf(format, args...)}
}

func missing(name, format string, args ...any) finding {
	return finding{name, false, true, fmt.Sprintf(format, args...)}
}

// report prints what was found; its error counts what is missing.
func report(w io.Writer, all []finding, asJSON bool) error {
	lacking := 0
	for i, f := range all {
		all[i].Detail = term.Plain(f.Detail)
		if f.Need && !f.OK {
			lacking++
		}
	}
	if asJSON {
		if err := term.PrintJSON(w, struct {
			OK       bool      `json:"ok"`
			Findings []finding `json:"findings"`
		}{lacking == 0, all}); err != nil {
			return err
		}
	} else {
		table := term.NewTable(w)
		for _, f := range all {
			mark := "ok"
			switch {
			case !f.OK && f.Need:
				mark = "MISSING"
			case !f.OK:
				mark = "note"
			}
			table.Row(mark, f.Name, f.Detail)
		}
		table.Flush()
	}
	switch lacking {
	case 0:
		return nil
	case 1:
		return errors.New("one thing is missing: its line above says what to do")
	}
	return fmt.Errorf("%d things are missing: their lines above say what to do", lacking)
}

// A patient is a machine that is examined.
type patient struct {
	looker
	environ func() []string
	http    *http.Client
	now     func() time.Time
	host    func(ctx context.Context, p patient, r standing) []finding // what a host that runs work needs
}

func thisPatient() patient {
	return patient{looker: thisLooker(), environ: os.Environ, http: &http.Client{Timeout: 10 * time.Second}, now: time.Now, host: examineHost}
}

// examine looks at everything, causes before what follows from them.
func (p patient) examine(ctx context.Context) []finding {
	r := p.look(ctx)
	var all []finding
	if !r.Presence {
		all = p.host(ctx, p, r)
	}
	if len(r.Kept) > 0 {
		all = append(all, note("kept", "%s", tellKept(r.dir, r.API, r.Kept)))
	}
	if !r.Linked {
		return append(all, note("link", "this machine is not linked: run %s", r.again))
	}
	all = append(all, well("link", "%s of %s at %s", r.ID, r.Org, r.API))
	for _, s := range r.Services {
		switch {
		case s.OK:
			all = append(all, well(s.Unit, "%s", s.State))
		case s.State == "not installed":
			all = append(all, missing(s.Unit, "it is not installed: run %s", r.again))
		case s.State == "masked":
			all = append(all, missing(s.Unit, "it is masked: sudo systemctl unmask %s, then run %s", s.Unit, r.again))
		default:
			all = append(all, missing(s.Unit, "%s: journalctl -u %s says why, and sudo systemctl start %s starts it", s.State, s.Unit, s.Unit))
		}
	}
	switch a := r.Agent; {
	case a == nil:
		all = append(all, missing("agent", "%s", r.Silent))
	case !a.Connected:
		all = append(all, missing("agent", "it is not connected to %s: %s", r.API, cmp.Or(a.Problem, "it has not said why yet; look again in a minute")))
	case a.Problem != "":
		all = append(all, note("agent", "connected, with a problem: %s", a.Problem))
	default:
		all = append(all, well("agent", "connected to %s", r.API))
	}
	all = append(all, p.cloud(ctx, r.API)...)
	return append(all, p.proxies(ctx, r)...)
}

// How far this machine's clock may be off before it is told, and before deadlines of
// minutes are judged wrongly.
const (
	skewTold  = 30 * time.Second
	skewWrong = 2 * time.Minute
)

// cloud asks the control plane for an answer of any kind, and compares clocks.
func (p patient) cloud(ctx context.Context, address string) []finding {
	const name, clock = "control plane", "clock"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/.well-known/openid-configuration", nil)
	if err != nil {
		return []finding{missing(name, "%s is no address: run hanzo unlink, and link again", address)}
	}
	began := p.now()
	resp, err := p.http.Do(req)
	if err != nil {
		return []finding{missing(name, "%s does not answer: %s", address, unreached(err))}
	}
	resp.Body.Close()
	ended := p.now()
	all := []finding{well(name, "%s answers from here, as this user, in %d ms", address, ended.Sub(began).Milliseconds())}
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return append(all, note(clock, "%s does not say what time it is", address))
	}
	// Date is cut to a second, of some moment in between.
	skew := theirs.Add(500 * time.Millisecond).Sub(began.Add(ended.Sub(began) / 2))
	side := "behind"
	if skew < 0 {
		side = "ahead of"
	}
	off := skew.Abs().Round(time.Second)
	switch {
	case off <= skewTold:
		return append(all, well(clock, "within %v of the control plane's", skewTold))
	case off <= skewWrong:
		return append(all, note(clock, "this machine's is %v %s the control plane's: set it (timedatectl set-ntp true)", off, side))
	}
	return append(all, missing(clock, "this machine's is %v %s the control plane's, so deadlines are judged wrongly: set it (timedatectl set-ntp true)", off, side))
}

// unreached says why a server was not, and what to do.
func unreached(err error) string {
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Sprintf("its certificate is of an authority that this machine does not know (%v): a proxy that reads along has its own, which belongs in the system's certificates", unknown)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return fmt.Sprintf("its certificate is not valid (%v): see whether this machine's clock is right", invalid)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("its name is not known (%v): see /etc/resolv.conf, or the proxy's variables", dns)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "nothing comes back: see whether a firewall or a missing proxy is in the way"
	}
	return err.Error()
}

var proxyNames = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"}

// proxies compares the proxy variables of this shell with those of the agent. Their
// values may hold passwords, and are not told.
func (p patient) proxies(ctx context.Context, r standing) []finding {
	const name = "proxy variables"
	here := proxiesIn(p.environ())
	if r.Presence {
		return nil
	}
	shown, err := p.show(ctx, "Id,Environment", agentUnit)
	if err != nil {
		return nil
	}
	there := proxiesIn(strings.Fields(shown[agentUnit]["Environment"]))
	switch {
	case len(here) == 0 && len(there) == 0:
		return []finding{well(name, "none, here or in %s", agentUnit)}
	case len(there) == 0:
		return []finding{note(name, "%s set here and not in %s: if this machine needs them, sudo systemctl edit %s, with Environment= lines below [Service]", strings.Join(here, ", "), agentUnit, agentUnit)}
	}
	return []finding{well(name, "%s in %s", strings.Join(there, ", "), agentUnit)}
}

// proxiesIn names the proxy variables among NAME=VALUE.
func proxiesIn(environ []string) (names []string) {
	for _, v := range environ {
		name, value, _ := strings.Cut(strings.Trim(v, `"'`), "=")
		if name = strings.ToUpper(name); value != "" && slices.Contains(proxyNames, name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
