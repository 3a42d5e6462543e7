// Package term is how a command of this repository meets a person: one table of
// subcommands, one table of exit statuses, errors on one line, progress that
// stays out of the way, and --json wherever there is a result.
//
// A command's whole behaviour is a function of its context, arguments and
// streams, so that a test can run it in-process. Nothing here reads the
// environment, and only [Exec] exits.
package term

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Status is how a command ended. The numbers are a contract with scripts.
type Status int

const (
	OK          Status = 0
	Failed      Status = 1
	Usage       Status = 2
	Rejected    Status = 3
	Refused     Status = 4
	Unsynced    Status = 5
	Interrupted Status = 130
)

// statuses is the table that help prints.
var statuses = []struct {
	status Status
	means  string
}{
	{OK, "done"},
	{Failed, "could not be done; the error says why and what is left"},
	{Usage, "unusable arguments, or a file that says something it may not"},
	{Rejected, "the run ended and its gate failed"},
	{Refused, "a row, a dataset or a purpose was refused before anything was trained"},
	{Unsynced, "something is not on the control plane, or differs there"},
	{Interrupted, "interrupted; a run that was begun is kept and can go on"},
}

// statusError is an error that knows its exit status.
type statusError struct {
	status Status
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// Exit gives err an exit status other than [Failed]. Exit of nil is nil.
func Exit(status Status, err error) error {
	if err == nil {
		return nil
	}
	return &statusError{status, err}
}

// Usagef is a mistake in how the command was called.
func Usagef(format string, args ...any) error {
	return Exit(Usage, fmt.Errorf(format, args...))
}

// StatusOf is the exit status of err.
func StatusOf(err error) Status {
	var known *statusError
	switch {
	case err == nil:
		return OK
	case errors.As(err, &known):
		return known.status
	case errors.Is(err, context.Canceled):
		return Interrupted
	}
	return Failed
}

// IO is the streams of one command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// Command is one subcommand. Setup declares its flags and returns what runs
// once they are parsed, with the arguments left over.
type Command struct {
	Name  string // "fit", or "data import" for one of a group
	Args  string // what stands after the name, as help shows it
	Short string // one line, lower case, no full stop
	Long  string // what the flags' own texts do not say
	Setup func(flags *flag.FlagSet) func(ctx context.Context, streams IO, args []string) error
}

// Program is a binary: a name, a sentence and its commands in help's order.
type Program struct {
	Name, About string
	Commands    []Command
	Statuses    []Status // those that help lists; nil is all
}

// Main runs the subcommand that args name and answers the exit status. An error
// is printed on one line, after the program's name.
func (p Program) Main(ctx context.Context, args []string, streams IO) Status {
	err := p.run(ctx, args, streams)
	status := StatusOf(err)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		if status == Interrupted {
			err = errors.New(strings.TrimSuffix(strings.TrimSuffix(err.Error(), context.Canceled.Error()), ": "))
			if err.Error() == "" {
				err = errors.New("interrupted")
			}
		}
		fmt.Fprintf(streams.Err, "%s: %s\n", p.Name, harmless(err.Error()))
	}
	if errors.Is(err, flag.ErrHelp) {
		return OK
	}
	return status
}

func (p Program) run(ctx context.Context, args []string, streams IO) error {
	if len(args) == 0 {
		p.help(streams.Err)
		return Usagef("no command given; the commands are above")
	}
	if slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		if len(args) == 1 {
			p.help(streams.Out)
			return nil
		}
		command, _, found := p.find(args[1:])
		if !found && p.helpOfGroup(args[1:], streams.Out) {
			return nil
		}
		if !found {
			return p.unknown(args[1:])
		}
		p.helpOf(command, streams.Out)
		return nil
	}
	command, rest, found := p.find(args)
	if !found && len(args) == 2 && slices.Contains([]string{"-h", "--help", "-help", "help"}, args[1]) && p.helpOfGroup(args[:1], streams.Out) {
		return nil
	}
	if !found {
		return p.unknown(args)
	}
	flags := flag.NewFlagSet(command.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	act := command.Setup(flags)
	left, err := parse(flags, rest)
	if errors.Is(err, flag.ErrHelp) {
		p.helpOf(command, streams.Out)
		return flag.ErrHelp
	}
	if err != nil {
		return Usagef("%s: %w (%s help %s)", command.Name, err, p.Name, command.Name)
	}
	return act(ctx, streams, left)
}

// parse is flag.Parse with flags and arguments in any order, as people type
// them; "--" ends the flags.
func parse(flags *flag.FlagSet, args []string) (left []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		rest := flags.Args()
		if len(rest) == 0 {
			return left, nil
		}
		if used := len(args) - len(rest); used > 0 && args[used-1] == "--" {
			return append(left, rest...), nil
		}
		left = append(left, rest[0])
		args = rest[1:]
	}
}

// find matches the longest command name at the head of args.
func (p Program) find(args []string) (command Command, rest []string, found bool) {
	for n := min(2, len(args)); n > 0; n-- {
		name := strings.Join(args[:n], " ")
		for _, c := range p.Commands {
			if c.Name == name {
				return c, args[n:], true
			}
		}
	}
	return Command{}, nil, false
}

// unknown says which commands args may have meant.
func (p Program) unknown(args []string) error {
	name := args[0]
	var names, group []string
	for _, c := range p.Commands {
		names = append(names, c.Name)
		if strings.HasPrefix(c.Name, args[0]+" ") {
			group = append(group, c.Name)
		}
	}
	switch {
	case len(group) > 0 && (len(args) == 1 || strings.HasPrefix(args[1], "-")):
		return Usagef("%s is one of: %s (%s help)", name, strings.Join(group, ", "), p.Name)
	case len(group) > 0:
		name, names = name+" "+args[1], group
	}
	return Usagef("unknown command %q; did you mean %q? (%s help)", name, Nearest(name, names), p.Name)
}

func (p Program) help(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n\n", p.Name, p.About)
	p.list(p.Commands, w)
	fmt.Fprintf(w, "\n%s help COMMAND says more. Exit statuses:\n", p.Name)
	p.statuses(w)
}

func (p Program) list(commands []Command, w io.Writer) {
	table := NewTable(w)
	for _, c := range commands {
		table.Row("  "+strings.TrimSpace(p.Name+" "+c.Name+" "+c.Args), c.Short)
	}
	table.Flush()
}

// helpOfGroup lists the commands of the group that args name, where they name one.
func (p Program) helpOfGroup(args []string, w io.Writer) bool {
	var group []Command
	for _, c := range p.Commands {
		if len(args) == 1 && strings.HasPrefix(c.Name, args[0]+" ") {
			group = append(group, c)
		}
	}
	if len(group) == 0 {
		return false
	}
	p.list(group, w)
	fmt.Fprintf(w, "\n%s help %s says more.\n", p.Name, group[0].Name)
	return true
}

func (p Program) helpOf(c Command, w io.Writer) {
	fmt.Fprintf(w, "%s\n\n%s.\n", strings.TrimSpace(p.Name+" "+c.Name+" [flags] "+c.Args), sentence(c.Short))
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.Long))
	}
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	c.Setup(flags)
	printed := false
	flags.VisitAll(func(f *flag.Flag) {
		if !printed {
			fmt.Fprint(w, "\nFlags:\n")
			printed = true
		}
		kind, usage := flag.UnquoteUsage(f)
		line := "  --" + f.Name
		if kind != "" {
			line += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(w, "%s\n      %s\n", line, usage)
	})
	fmt.Fprint(w, "\nExit statuses:\n")
	p.statuses(w)
}

func (p Program) statuses(w io.Writer) {
	for _, s := range statuses {
		if p.Statuses != nil && !slices.Contains(p.Statuses, s.status) {
			continue
		}
		fmt.Fprintf(w, "  %3d  %s\n", s.status, s.means)
	}
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// Nearest is the one of known closest to word by edit distance, for "did you
// mean"; ties go to the first.
func Nearest(word string, known []string) string {
	best, at := "", -1
	for _, k := range known {
		if d := distance(word, k); at < 0 || d < at {
			best, at = k, d
		}
	}
	return best
}

// distance is Levenshtein's, over bytes: two rows of the usual table.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
