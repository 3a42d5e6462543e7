package linkcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/systemd"
)

// Status is hanzo status.
var Status = term.Command{
	Name:  "status",
	Short: "show whether this machine is linked, and what it does",
	Long: `
It asks nobody but this machine, and needs no root: what it shows is what the agent says
of itself, how the services are, and what the policy admits. It exits 1 when the machine
is not linked. hanzo doctor says what is wrong and what to do.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("status takes no arguments")
			}
			r := thisLooker().look(ctx)
			if *asJSON {
				if err := term.PrintJSON(streams.Out, r); err != nil {
					return err
				}
			} else {
				r.print(streams.Out, time.Now())
			}
			if !r.Linked {
				return fmt.Errorf("this machine is not linked: run %s", r.again)
			}
			return nil
		}
	},
}

// The units that run a linked machine, and the file in which its agent says how it is.
const (
	agentUnit    = "hanzo-link.service"
	launcherUnit = "hanzo-link-launcher.service"
	socketUnit   = "hanzo-link-launcher.socket"

	statusFile = "/run/hanzo-link/agent/status.json"
)

// A standing is what a machine says of its link.
type standing struct {
	Linked   bool   `json:"linked"`
	Presence bool   `json:"presence"` // it is listed and runs no work
	ID       string `json:"id,omitzero"`
	Org      string `json:"org,omitzero"`
	API      string `json:"api,omitzero"`
	LinkedBy string `json:"linkedBy,omitzero"`

	Agent    *agent.Status `json:"agent"`            // null: it does not run, or does not say
	Silent   string        `json:"silent,omitzero"`  // why it does not say
	Services []service     `json:"services"`         // of systemd; none for presence
	Policy   *admits       `json:"policy,omitempty"` // null for presence
	Kept     []string      `json:"kept"`             // activities of which something stays in the spool

	again string // the command that links
	dir   string // the state directory of a host that runs work
}

// A service is a unit of systemd, as it is.
type service struct {
	Unit  string `json:"unit"`
	State string `json:"state"` // active (running), failed (exit-code), not installed
	OK    bool   `json:"ok"`
}

// admits is what the policy says, or why it says nothing.
type admits struct {
	Error string   `json:"error,omitzero"`
	Kinds []string `json:"kinds"`
	Room  string   `json:"room,omitzero"` // how much work may take together
}

// A looker knows where a machine's link is told of.
type looker struct {
	dir, status string // of a host that runs work
	presence    string // the folder of a link for presence
	again       string // the command that links
	show        func(ctx context.Context, properties string, units ...string) (map[string]map[string]string, error)
	admits      func() *admits
}

func thisLooker() looker {
	l := looker{dir: systemd.State, status: statusFile, again: "sudo hanzo link", show: systemctl, admits: readPolicy}
	if onlyPresence() {
		l.again = "hanzo link"
	}
	if home, err := os.UserHomeDir(); err == nil {
		l.presence = filepath.Join(home, ".hanzo", "link")
	}
	return l
}

// look finds out how the machine stands.
func (l looker) look(ctx context.Context) standing {
	r := standing{again: l.again, dir: l.dir, Services: []service{}}
	status := l.status
	link, err := agent.ReadLink(l.dir)
	if err != nil && l.presence != "" {
		if of, personal := agent.ReadLink(l.presence); personal == nil {
			link, err = of, nil
			r.Presence, status, r.again = true, filepath.Join(l.presence, "status.json"), "hanzo link"
		}
	}
	if err == nil {
		r.Linked, r.ID, r.Org, r.API, r.LinkedBy = true, link.ID, link.Org, link.API, link.LinkedBy
	}
	dir, start := l.dir, "sudo systemctl start "+agentUnit+" starts it, and journalctl -u "+agentUnit+" says why it ended"
	if r.Presence {
		dir, start = l.presence, startPresence(l.presence)
	}
	if s, err := agent.ReadStatus(status); err == nil && s.Lives(dir) {
		r.Agent = &s
	} else if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.Silent = "the agent does not run: " + start
	} else {
		r.Silent = "what the agent says of itself cannot be read: " + err.Error()
	}
	r.Kept = []string{}
	if r.Agent != nil {
		r.Kept = append(r.Kept, r.Agent.Kept...)
	} else if !r.Presence {
		r.Kept = append(r.Kept, kept(l.dir)...)
	}
	if !r.Presence {
		r.Services = l.services(ctx)
		r.Policy = l.admits()
	}
	return r
}

// startPresence says what starts the agent of a link for presence.
func startPresence(dir string) string {
	path := filepath.Join(dir, "bin", program)
	if _, err := os.Lstat(path); err != nil {
		return "hanzo link installs and starts it"
	}
	home := filepath.Dir(filepath.Dir(dir))
	switch m := findManager(home).(type) {
	case userUnit:
		if m.installed() {
			return "systemctl --user start " + userService + " starts it, and journalctl --user -u " + userService + " says why it ended"
		}
	case launchAgent:
		if m.installed() {
			return fmt.Sprintf("launchctl kickstart %s/%s starts it", m.domain, label)
		}
	}
	return "this command keeps the machine online while it runs: " + path + " --presence"
}

// services tells the state of the units; none where there is no systemd.
func (l looker) services(ctx context.Context) []service {
	all := []service{}
	units := []string{agentUnit, launcherUnit, socketUnit}
	shown, err := l.show(ctx, "Id,LoadState,ActiveState,SubState,Result", units...)
	if err != nil {
		return all
	}
	for _, unit := range units {
		p := shown[unit]
		s := service{Unit: unit, OK: p["ActiveState"] == "active"}
		switch {
		case p["LoadState"] == "not-found":
			s.State = "not installed"
		case p["LoadState"] == "masked":
			s.State = "masked"
		case p["ActiveState"] == "failed":
			s.State = fmt.Sprintf("failed (%s)", p["Result"])
		default:
			s.State = fmt.Sprintf("%s (%s)", p["ActiveState"], p["SubState"])
		}
		all = append(all, s)
	}
	return all
}

// systemctl asks systemd for properties of units, by unit.
func systemctl(ctx context.Context, properties string, units ...string) (map[string]map[string]string, error) {
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"show", "--no-pager", "--property=" + properties}, units...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("systemctl show: %w", err)
	}
	return parseShow(string(out)), nil
}

// parseShow reads what systemctl show prints: a block of lines for each unit, of which
// one is its Id.
func parseShow(out string) map[string]map[string]string {
	all := make(map[string]map[string]string)
	for block := range strings.SplitSeq(strings.TrimSpace(out), "\n\n") {
		properties := make(map[string]string)
		for line := range strings.Lines(block) {
			if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
				properties[name] = value
			}
		}
		all[properties["Id"]] = properties
	}
	return all
}

// seconds is a time for a person; what is none is left as it is.
func seconds(at string) string {
	if t, err := time.Parse(time.RFC3339, at); err == nil {
		return t.Format(time.RFC3339)
	}
	return at
}

func (r standing) print(w io.Writer, now time.Time) {
	table := term.NewTable(w)
	row := func(name, format string, args ...any) { table.Row(name, term.Plain(fmt.Sprintf(format, args...))) }
	if r.Linked {
		row("machine", "%s of %s at %s, linked by %s", r.ID, r.Org, r.API, r.LinkedBy)
	}
	if r.Presence {
		row("", "for presence only: it is listed, and runs no work")
	}
	if s := r.Agent; s != nil {
		state := "not connected"
		if s.Connected {
			state = "connected"
		}
		if at, err := time.Parse(time.RFC3339, s.LastClaim); err == nil {
			state += fmt.Sprintf(", and asked for work %s ago", now.Sub(at).Round(time.Second))
		}
		row("agent", "%s; version %s, since %s", state, s.Version, seconds(s.Since))
		if s.Problem != "" {
			row("problem", "%s", s.Problem)
		}
		if len(s.Offers) > 0 {
			row("offers", "%s", strings.Join(s.Offers, ", "))
		} else {
			row("offers", "nothing")
		}
		for _, reason := range s.Reasons {
			row("", "%s", reason)
		}
		for _, a := range s.Activities {
			state := string(a.State)
			if a.Total > 0 && a.State == activity.Pulling {
				state += fmt.Sprintf(" %s of %s", term.Bytes(a.Done), term.Bytes(a.Total))
			}
			row("work", "%s: %s, %s, since %s", a.Activity, a.Kind, state, seconds(a.Since))
		}
		if s.Unsent > 0 {
			row("unsent", "the records of %d that ended", s.Unsent)
		}
	} else if r.Linked {
		row("agent", "%s", r.Silent)
	}
	if len(r.Kept) > 0 {
		row("kept", "%s", tellKept(r.dir, r.API, r.Kept))
	}
	for _, s := range r.Services {
		if r.Linked || s.State != "not installed" {
			row("service", "%s: %s", s.Unit, s.State)
		}
	}
	switch p := r.Policy; {
	case p == nil || !r.Linked && p.Error != "":
	case p.Error != "":
		row("policy", "%s", p.Error)
	case len(p.Kinds) == 0:
		row("policy", "admits nothing")
	default:
		row("policy", "admits %s, with %s", strings.Join(p.Kinds, ", "), p.Room)
	}
	table.Flush()
}
