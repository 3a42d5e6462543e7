package linkcmd

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/systemd"
)

// program is the agent's, and its name in the folder of a link for presence.
const program = "hanzo-link"

// A presence is a link of a host that cannot run work: the agent is the person's own
// program, under their own service manager where they have one.
type presence struct {
	place
	why     string // why it is for presence only
	uid     int
	bin     string
	manager manager // nil where there is none
}

// A manager keeps a person's program running.
type manager interface {
	install(ctx context.Context, program string, fresh bool) ([]systemd.Step, error)
	remove(ctx context.Context) ([]systemd.Step, error)
	installed() bool
}

func thisPresence(bin, why string) (presence, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return presence{}, fmt.Errorf("where to keep this machine's link: %w: set HOME", err)
	}
	dir := filepath.Join(home, ".hanzo", "link")
	return presence{
		place: place{
			dir: dir, again: "hanzo link",
			session: func() (logincmd.Saved, error) { return logincmd.Session("") },
			facts:   readFacts(bin, dir), credential: ownCredential(dir),
		},
		why: why, uid: os.Geteuid(), bin: bin, manager: findManager(home),
	}, nil
}

// findManager is the service manager that this person has.
func findManager(home string) manager {
	switch runtime.GOOS {
	case "linux":
		dir := os.Getenv("XDG_RUNTIME_DIR")
		if _, err := os.Stat(filepath.Join(dir, "systemd", "private")); dir == "" || err != nil {
			return nil
		}
		units := filepath.Join(home, ".config")
		if config := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(config) {
			units = config
		}
		return userUnit{filepath.Join(units, "systemd", "user"), systemd.Command}
	case "darwin":
		return launchAgent{filepath.Join(home, "Library", "LaunchAgents"), fmt.Sprintf("gui/%d", os.Getuid()), systemd.Command}
	}
	return nil
}

// ownCredential reads that of a link of the person's own.
func ownCredential(dir string) func() (string, error) {
	return func() (string, error) {
		text, err := os.ReadFile(filepath.Join(dir, credentialFile))
		return strings.TrimSpace(string(text)), err
	}
}

func (p presence) program() string { return filepath.Join(p.dir, "bin", program) }

func (p presence) status() string { return filepath.Join(p.dir, "status.json") }

// notRoot refuses to be present as root, which the agent refuses to be.
func (p presence) notRoot(command string) error {
	if p.uid == 0 {
		return fmt.Errorf("this host can be linked for presence only (%s), which takes no root: run hanzo %s as yourself, without sudo", p.why, command)
	}
	return nil
}

func (p presence) link(ctx context.Context, out io.Writer) error {
	if err := p.notRoot("link"); err != nil {
		return err
	}
	from := filepath.Join(p.bin, program)
	if err := isAgent(from); err != nil {
		return err
	}
	l, session, err := p.before()
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	fmt.Fprintf(out, "presence only: this host cannot build the sandbox, for %s\n", p.why)
	if err := p.make(ctx, out, l, session, p.settle); err != nil {
		return err
	}
	var none []offer.Verdict
	for _, kind := range offer.Kinds {
		none = append(none, offer.Verdict{Kind: kind, Why: "presence only"})
	}
	fmt.Fprintln(out, "this host, now:")
	offer.Print(out, none)
	return nil
}

// settle puts the agent in place and starts it, where something here keeps it running.
func (p presence) settle(ctx context.Context, out io.Writer, l agent.Link, credential string) error {
	if credential != "" {
		if err := l.Write(p.dir, credential, -1, -1); err != nil {
			return err
		}
	}
	if err := removeFile(filepath.Join(p.dir, markerFile)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(p.bin, program))
	if err != nil {
		return fmt.Errorf("%w: the machine is registered; run hanzo link again", err)
	}
	copied, err := put(p.program(), text, 0o700)
	if err != nil {
		return fmt.Errorf("%w: the machine is registered; run hanzo link again", err)
	}
	tell(out, copied)
	if p.manager == nil {
		fmt.Fprintf(out, "there is no service manager of yours here; this command keeps the machine online while it runs:\n  %s --presence\n", p.program())
		return nil
	}
	steps, err := p.manager.install(ctx, p.program(), copied.Did == systemd.Wrote || credential != "")
	tell(out, steps...)
	if err != nil {
		return fmt.Errorf("%w: the machine is registered; run hanzo link again", err)
	}
	if err := p.connected(ctx, p.status()); err != nil {
		return err
	}
	fmt.Fprintf(out, "connected: the agent runs as you\n")
	return nil
}

func (p presence) unlink(ctx context.Context, out io.Writer) error {
	if err := p.notRoot("unlink"); err != nil {
		return err
	}
	credential, err := p.credential()
	linked := err == nil
	if !linked && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Lstat(p.program()); !linked && err != nil && (p.manager == nil || !p.manager.installed()) {
		fmt.Fprintln(out, "this machine is not linked: nothing to do")
		return nil
	}
	if err := durable.WriteFile(filepath.Join(p.dir, markerFile), nil, 0o600); err != nil {
		fmt.Fprintf(out, "%v: so the agent's audit log will not say that it ended for this; going on\n", err)
	}
	if p.manager != nil {
		steps, err := p.manager.remove(ctx)
		tell(out, steps...)
		if err != nil {
			return fmt.Errorf("%w: run hanzo unlink again", err)
		}
	}
	var cloud error
	if linked {
		l, err := agent.ReadLink(p.dir)
		var note string
		if err == nil {
			note, err = p.leave(ctx, l, credential)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: run hanzo unlink again", ctx.Err())
		}
		if note != "" {
			fmt.Fprintln(out, note)
		}
		cloud = err
	}
	// One that a person started themselves ends when the control plane has said so to it.
	if pid, runs := p.runs(ctx, cloud == nil); runs {
		err := fmt.Errorf("an agent still runs on this link, as process %d: stop it (kill %d), and run hanzo unlink again", pid, pid)
		if cloud != nil {
			err = fmt.Errorf("the control plane does not know yet: %w; and %w", cloud, err)
		}
		return err
	}
	err = errors.Join(os.RemoveAll(filepath.Join(p.dir, "bin")), removeFile(filepath.Join(p.dir, markerFile)))
	if err == nil && cloud == nil {
		err = errors.Join(p.forget(), removeFile(p.status()))
	}
	if cloud != nil {
		cloud = fmt.Errorf("no agent runs, and the control plane does not know yet: %w: run hanzo unlink again when it can", cloud)
		return errors.Join(cloud, err)
	}
	if err != nil {
		return fmt.Errorf("%w: run hanzo unlink again", err)
	}
	fmt.Fprintf(out, "unlinked; the audit log stays in %s\n", p.dir)
	return nil
}

// endTime is how long an agent may take that was told that its machine is removed.
const endTime = 10 * time.Second

// runs reports whether an agent runs on the link, after waiting for it to end if it may.
func (p presence) runs(ctx context.Context, ends bool) (pid int, runs bool) {
	for began := time.Now(); ; {
		pid, runs, err := agent.Running(p.dir)
		if err != nil || !runs || !ends || time.Since(began) > cmp.Or(p.wait, endTime) {
			return pid, runs
		}
		select {
		case <-ctx.Done():
			return pid, runs
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// isAgent refuses a release without the agent, before anything is done.
func isAgent(path string) error {
	build, err := buildinfo.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: install every binary of the release beside hanzo, and link again", path)
	}
	if err != nil || build.Path != "github.com/hanzoai/link/cmd/"+program {
		return fmt.Errorf("%s is another program: install the release again, and link again", path)
	}
	return nil
}

// put writes a file of the person's, unless it is there.
func put(path string, text []byte, mode fs.FileMode) (systemd.Step, error) {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return systemd.Step{Did: systemd.Current, What: path}, os.Chmod(path, mode)
	}
	if err := durable.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return systemd.Step{}, err
	}
	if err := durable.WriteFile(path, text, mode); err != nil {
		return systemd.Step{}, err
	}
	return systemd.Step{Did: systemd.Wrote, What: path}, os.Chmod(path, mode) // whatever the umask
}

func ran(command string) systemd.Step { return systemd.Step{Did: systemd.Ran, What: command} }

// A userUnit is a service of a person's own systemd.
type userUnit struct {
	dir string // of their units
	run func(ctx context.Context, name string, args ...string) error
}

const userService = "hanzo-link.service"

// presenceUnit is what keeps the agent running, as its person. Confining it is the
// system manager's to do, and what a person's own can is in vain against themselves.
const presenceUnit = `# Keeps this machine listed in its org's fleet; hanzo unlink removes it.
[Unit]
Description=Hanzo link agent (presence only)
Documentation=https://github.com/hanzoai/link
ConditionPathExists=%%h/.hanzo/link/credential
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart="%s" --presence
Restart=on-failure
RestartSec=5
WatchdogSec=2min
NoNewPrivileges=yes

[Install]
WantedBy=default.target
`

func (u userUnit) path() string { return filepath.Join(u.dir, userService) }

func (u userUnit) installed() bool {
	_, err := os.Lstat(u.path())
	return err == nil
}

// install writes the unit and starts it, again when the program is another.
func (u userUnit) install(ctx context.Context, program string, fresh bool) ([]systemd.Step, error) {
	unit, err := put(u.path(), fmt.Appendf(nil, presenceUnit, strings.ReplaceAll(program, "%", "%%")), 0o644)
	if err != nil {
		return nil, err
	}
	steps := []systemd.Step{unit}
	commands := [][]string{{"daemon-reload"}, {"enable", "--quiet", userService}, {"start", userService}}
	if fresh || unit.Did == systemd.Wrote {
		commands[2][0] = "restart"
	}
	for _, args := range commands {
		if err := u.run(ctx, "systemctl", append([]string{"--user"}, args...)...); err != nil {
			return steps, err
		}
		steps = append(steps, ran("systemctl --user "+strings.Join(args, " ")))
	}
	// Without it the person's services end with their last session.
	if err := u.run(ctx, "loginctl", "enable-linger"); err != nil {
		return append(steps, systemd.Step{Did: "note", What: "your services end when you log out: sudo loginctl enable-linger " + os.Getenv("USER")}), nil
	}
	return append(steps, ran("loginctl enable-linger")), nil
}

func (u userUnit) remove(ctx context.Context) (steps []systemd.Step, err error) {
	if !u.installed() {
		return nil, nil
	}
	for _, args := range [][]string{{"stop", userService}, {"disable", "--quiet", userService}} {
		if err := u.run(ctx, "systemctl", append([]string{"--user"}, args...)...); err != nil {
			return steps, err
		}
		steps = append(steps, ran("systemctl --user "+strings.Join(args, " ")))
	}
	if err := removeFile(u.path()); err != nil {
		return steps, err
	}
	return append(steps, systemd.Step{Did: systemd.Removed, What: u.path()}), u.run(ctx, "systemctl", "--user", "daemon-reload")
}

// A launchAgent is a service of a person's launchd. It has been compiled and never
// run: nobody who wrote it had the system at hand.
type launchAgent struct {
	dir    string // of their property lists
	domain string // gui/UID
	run    func(ctx context.Context, name string, args ...string) error
}

const label = "ai.hanzo.link"

const propertyList = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
	<key>Label</key><string>` + label + `</string>
	<key>ProgramArguments</key><array><string>%s</string><string>--presence</string></array>
	<key>RunAtLoad</key><true/>
	<key>KeepAlive</key><true/>
	<key>ThrottleInterval</key><integer>10</integer>
	<key>ProcessType</key><string>Background</string>
</dict>
</plist>
`

func (a launchAgent) path() string { return filepath.Join(a.dir, label+".plist") }

func (a launchAgent) installed() bool {
	_, err := os.Lstat(a.path())
	return err == nil
}

func (a launchAgent) install(ctx context.Context, program string, fresh bool) ([]systemd.Step, error) {
	var escaped strings.Builder
	if err := xml.EscapeText(&escaped, []byte(program)); err != nil {
		return nil, err
	}
	list, err := put(a.path(), fmt.Appendf(nil, propertyList, escaped.String()), 0o644)
	if err != nil {
		return nil, err
	}
	steps := []systemd.Step{list}
	loaded := a.run(ctx, "launchctl", "print", a.domain+"/"+label) == nil
	if loaded && !fresh && list.Did == systemd.Current {
		return append(steps, systemd.Step{Did: systemd.Current, What: label + " is loaded"}), nil
	}
	if loaded {
		if err := a.run(ctx, "launchctl", "bootout", a.domain+"/"+label); err != nil {
			return steps, err
		}
	}
	if err := a.run(ctx, "launchctl", "bootstrap", a.domain, a.path()); err != nil {
		return steps, err
	}
	return append(steps, ran("launchctl bootstrap "+a.domain+" "+a.path())), nil
}

func (a launchAgent) remove(ctx context.Context) (steps []systemd.Step, err error) {
	if !a.installed() {
		return nil, nil
	}
	if a.run(ctx, "launchctl", "print", a.domain+"/"+label) == nil {
		if err := a.run(ctx, "launchctl", "bootout", a.domain+"/"+label); err != nil {
			return steps, err
		}
		steps = append(steps, ran("launchctl bootout "+a.domain+"/"+label))
	}
	if err := removeFile(a.path()); err != nil {
		return steps, err
	}
	return append(steps, systemd.Step{Did: systemd.Removed, What: a.path()}), nil
}
