package traincmd

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

var askCommand = term.Command{
	Name: "ask", Args: "CHECKPOINT [STATE]",
	Short: "ask a checkpoint about a state, and get probabilities",
	Long: `
STATE is text; without it, it is read from standard input. The question is the
one the checkpoint was taught, or the one that --question, or --type with
--options and --instructions, says. --request answers a whole POST /v1/decisions
request from a file ("-" for standard input). --taught prints the questions that
the checkpoint was taught, as the questions of such a request; to others it
answers, but knows no better than chance.

--listen HOST:PORT serves POST /v1/decisions on a loopback address instead, in
the shape that the public clients send. It authenticates nobody; put a gateway in
front of it to serve others.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var m local.Machine
		m.Flag(flags)
		question := flags.String("question", "", `the question, as the JSON of /v1/decisions: {"type", "instructions", "criteria"}`)
		kind := flags.String("type", "choice", "the question's `type`: choice, score or noul")
		options := flags.String("options", "", "its answers, separated by commas; a score's lowest first")
		instructions := flags.String("instructions", "", "the question, in `words`")
		request := flags.String("request", "", "answer the request in this `file`")
		listen := flags.String("listen", "", "serve POST /v1/decisions at this `address`")
		taught := flags.Bool("taught", false, "print the questions the checkpoint was taught, as the JSON of /v1/decisions")
		addrFile := flags.String("addr-file", "", "with --listen: write the address served to this `file`")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) == 0 {
				return term.Usagef("name the checkpoint to ask")
			}
			if len(args) > 1 && (*listen != "" || *request != "" || *taught) {
				return term.Usagef("--listen, --request and --taught take no state: leave %q out", args[1])
			}
			given := make(map[string]bool)
			flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
			made := ""
			for _, name := range []string{"type", "options", "instructions"} {
				if given[name] {
					made = "--" + name
				}
			}
			switch {
			case given["question"] && made != "":
				return term.Usagef("--question is a whole question: leave %s out", made)
			case (made != "" || given["question"]) && (*listen != "" || *request != "" || *taught):
				return term.Usagef("--listen, --request and --taught take no question: leave --question, --type, --options and --instructions out")
			}
			dir := args[0]
			model, err := m.Load(dir)
			if err != nil {
				return err
			}
			d, err := newDecider(filepath.Base(filepath.Clean(dir)), model, slog.New(slog.NewTextHandler(streams.Err, nil)))
			if err != nil {
				return err
			}
			switch {
			case *taught:
				return printTaught(streams.Out, model)
			case *listen != "":
				return d.listen(ctx, *listen, func(at net.Addr) {
					fmt.Fprintf(streams.Err, "serving POST http://%s/v1/decisions; stop with Ctrl-C\n", at)
					if *addrFile != "" {
						if err := durable.WriteFile(*addrFile, []byte("http://"+at.String()+"\n"), 0o644); err != nil {
							fmt.Fprintf(streams.Err, "train: %v\n", err)
						}
					}
				})
			case *request != "":
				return d.reply(streams, *request)
			}
			asked, err := d.questions(*question, given["question"], *kind, *options, *instructions, made != "")
			if err != nil {
				return err
			}
			state, err := readState(args[1:], streams.In)
			if err != nil {
				return err
			}
			row := decision.Row{State: state, Asked: asked}
			answers, err := d.answer(row)
			if err != nil {
				return err
			}
			notes := streams.Out
			if *asJSON {
				notes = streams.Err
				byKey := make(map[string]kai.Answer, len(answers))
				for i, a := range answers {
					byKey[asked[i].Key] = a
				}
				if err := json.NewEncoder(streams.Out).Encode(byKey); err != nil {
					return err
				}
			} else {
				for i, a := range answers {
					showAnswer(streams.Out, asked[i], a, len(asked) > 1)
				}
			}
			if reason := d.reason(asked); reason != served {
				fmt.Fprintf(notes, "note: %s; train ask %s --taught prints those it was\n", reason, dir)
			}
			return nil
		}
	},
}

// reply answers one request from a file as the server would.
func (d *decider) reply(streams term.IO, name string) error {
	var body []byte
	var err error
	if name == "-" {
		name = "standard input"
		body, err = io.ReadAll(streams.In)
	} else {
		body, err = os.ReadFile(name)
	}
	if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	answer, err := d.decide(body, time.Now())
	if err != nil {
		return term.Exit(term.Usage, fmt.Errorf("%s: %w", name, err))
	}
	return json.NewEncoder(streams.Out).Encode(answer)
}

// questions are those the flags say, else those the checkpoint was taught.
func (d *decider) questions(question string, whole bool, kind, options, instructions string, made bool) ([]decision.Asked, error) {
	switch {
	case whole:
		q, err := decision.ParseQuestion(canon.Raw(question))
		if err != nil {
			return nil, term.Usagef("--question: %w", err)
		}
		return []decision.Asked{{Key: "answer", Question: q}}, nil
	case made:
		t, err := decision.ParseType(kind)
		if err != nil {
			return nil, term.Usagef("--type: %w", err)
		}
		var criteria []decision.Criterion
		for _, label := range term.List(options) {
			criteria = append(criteria, decision.Criterion{Label: label})
		}
		q, err := decision.New(t, instructions, criteria)
		if err != nil {
			return nil, term.Usagef("%w; --type, --options and --instructions make the question", err)
		}
		return []decision.Asked{{Key: "answer", Question: q}}, nil
	}
	taught, err := d.model.Taught()
	if err != nil {
		return nil, err
	}
	if len(taught) == 0 {
		return nil, term.Usagef("%s names no question that it was taught: ask one with --type, --options and --instructions", d.name)
	}
	return taught, nil
}

// printTaught prints the questions that a model was taught, by key, as those of a
// POST /v1/decisions.
func printTaught(w io.Writer, model *kai.Model) error {
	asked, err := model.Questions()
	if err != nil {
		return err
	}
	byKey := make(map[string]canon.Raw, len(asked))
	for _, a := range asked {
		byKey[a.Key], _ = a.Question.JSON()
	}
	return term.PrintJSON(w, byKey)
}

// readState is the state of the arguments, or all of standard input.
func readState(args []string, in io.Reader) (string, error) {
	state := strings.Join(args, " ")
	if len(args) == 0 {
		text, err := io.ReadAll(in)
		if err != nil {
			return "", fmt.Errorf("reading the state: %w", err)
		}
		state = strings.TrimSpace(string(text))
	}
	if !utf8.ValidString(state) {
		return "", term.Usagef("the state is not UTF-8: convert it")
	}
	if strings.TrimSpace(state) == "" {
		return "", term.Usagef("the state is empty: give it as an argument or on standard input")
	}
	return state, nil
}

// showAnswer prints an answer's options, most probable first.
func showAnswer(w io.Writer, asked decision.Asked, a kai.Answer, named bool) {
	if named {
		fmt.Fprintf(w, "%s: %s\n", asked.Key, asked.Question.Instructions)
	}
	type line struct {
		label string
		p     float64
	}
	var lines []line
	switch asked.Question.Type {
	case decision.Noul:
		lines = []line{{"true", *a.Noul}, {"false", 1 - *a.Noul}}
	case decision.Score:
		for level, p := range a.Probabilities {
			lines = append(lines, line{level + ": " + a.Legend[level], p})
		}
	default:
		for label, p := range a.Probabilities {
			lines = append(lines, line{label, p})
		}
	}
	sort.Slice(lines, func(i, j int) bool {
		if lines[i].p != lines[j].p {
			return lines[i].p > lines[j].p
		}
		return lines[i].label < lines[j].label
	})
	table := term.NewTable(w)
	for _, l := range lines[:min(len(lines), shown)] {
		table.Row(fmt.Sprintf("%.3f", l.p), l.label)
	}
	table.Flush()
	if n := len(lines) - shown; n > 0 {
		fmt.Fprintf(w, "       and %d less probable\n", n)
	}
	if a.Score != nil {
		fmt.Fprintf(w, "expected level %.2f\n", *a.Score)
	}
	if a.Cut > 0 {
		fmt.Fprintf(w, "note: %d tokens of the state did not fit and were not read\n", a.Cut)
	}
}
