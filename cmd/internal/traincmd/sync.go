package traincmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/upload"
)

var syncCommand = term.Command{
	Name: "sync", Args: "",
	Short: "send what the control plane does not have, or compare with it",
	Long: `
The control plane is the one at $HANZO_API, its token in the file that
$HANZO_TOKEN_FILE names (default ~/.hanzo/token). Artifacts go first, then
datasets, gates, determinism reports and events; what was acknowledged is not sent again. A refusal
stops the run it concerns and no other. Until the server answers, sync waits and
tries again: Ctrl-C stops it and loses nothing.

A record belongs to the control plane it was first sent to, and another is refused,
because what was acknowledged is not there. --again forgets that and sends all of it
to the one at $HANZO_API.

Of a folder that another user writes, as the spool of an activity on a linked machine,
only the runs that are the activity's of the folder's name are sent: root sends them with
$HANZO_SPOOL set to that folder.

--check sends nothing: it compares the server's view of every run with what its
log here adds up to.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var r local.Record
		r.Flag(flags)
		check := flags.Bool("check", false, "compare and send nothing")
		again := flags.Bool("again", false, "forget what was acknowledged and send everything")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if *check && *again {
				return term.Usagef("--check sends nothing and --again everything: give one of them")
			}
			if len(args) > 0 {
				return term.Usagef("sync takes no arguments: it sends the whole spool")
			}
			s, only, err := r.OpenToSend()
			if err != nil {
				return err
			}
			client, err := api.FromEnvironment()
			if err != nil {
				return term.Exit(term.Unsynced, err)
			}
			if *check {
				return compare(ctx, streams, s, client, *asJSON)
			}
			waiting := func(d time.Duration, err error) {
				fmt.Fprintf(streams.Err, "waiting %v for the control plane: %v\n", d.Round(100*time.Millisecond), err)
			}
			report, err := upload.New(upload.Config{Spool: s, Client: client, Runs: only, Again: *again, Waiting: waiting}).Drain(ctx)
			if err := showSync(streams.Out, s, report, err == nil, *asJSON); err != nil {
				return err
			}
			switch {
			case errors.Is(err, context.Canceled):
				return term.Exit(term.Interrupted, errors.New("stopped; train sync goes on from here"))
			case err != nil:
				return term.Exit(term.Unsynced, err)
			case len(report.Refused) > 0:
				return term.Exit(term.Unsynced, fmt.Errorf("%d refused: each line above says why", len(report.Refused)))
			}
			return nil
		}
	},
}

// showSync prints what was sent and refused; that nothing was sent is news only when
// sync ended by itself.
func showSync(w io.Writer, s *spool.Spool, r upload.Report, ended, asJSON bool) error {
	if asJSON {
		type refusal struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Error   string `json:"error"`
		}
		out := struct {
			Artifacts int       `json:"artifacts"`
			Datasets  int       `json:"datasets"`
			Gates     int       `json:"gates"`
			Reports   int       `json:"determinism"`
			Events    int       `json:"events"`
			Refused   []refusal `json:"refused"`
		}{r.Artifacts, r.Datasets, r.Gates, r.Determinism, r.Events, nil}
		for _, x := range r.Refused {
			out.Refused = append(out.Refused, refusal{x.Subject, x.Seq, x.Err.Error()})
		}
		return term.PrintJSON(w, out)
	}
	for _, x := range r.Refused {
		fmt.Fprintf(w, "refused: %s\n", x)
	}
	if ended || r.Artifacts+r.Datasets+r.Gates+r.Determinism+r.Events > 0 {
		reports := ""
		if r.Determinism > 0 { // few spools have one
			reports = fmt.Sprintf("%d determinism reports, ", r.Determinism)
		}
		fmt.Fprintf(w, "%s: sent %d artifacts, %d datasets, %d gates, %s%d events\n", s.Dir(), r.Artifacts, r.Datasets, r.Gates, reports, r.Events)
	}
	return nil
}

// compare prints where the server's record differs from the spool's.
func compare(ctx context.Context, streams term.IO, s *spool.Spool, client *api.Client, asJSON bool) error {
	differences, err := upload.Check(ctx, s, client)
	if err != nil {
		return term.Exit(term.Unsynced, fmt.Errorf("comparing with the control plane: %w", err))
	}
	runs, err := s.Runs()
	if err != nil {
		return err
	}
	if asJSON {
		type difference struct {
			Subject string `json:"subject"`
			Field   string `json:"field"`
			Local   string `json:"local"`
			Server  string `json:"server"`
		}
		out := struct {
			Runs        int          `json:"runs"`
			Differences []difference `json:"differences"`
		}{Runs: len(runs)}
		for _, d := range differences {
			out.Differences = append(out.Differences, difference(d))
		}
		if err := term.PrintJSON(streams.Out, out); err != nil {
			return err
		}
	} else {
		for _, d := range differences {
			fmt.Fprintln(streams.Out, d)
		}
		if len(differences) == 0 {
			fmt.Fprintf(streams.Out, "complete: the control plane holds all %d runs as they are here\n", len(runs))
		}
	}
	if n := len(differences); n > 0 {
		return term.Exit(term.Unsynced, fmt.Errorf("%d differences; train sync sends what is missing", n))
	}
	return nil
}

// sendAside sends the spool while something else is done, when a control plane
// is named. The stop it returns says what of run is not there yet, and never waits
// for the network.
func sendAside(ctx context.Context, s *spool.Spool, run string, w io.Writer) (stop func()) {
	client, err := api.FromEnvironment()
	if errors.Is(err, api.ErrNoServer) {
		return func() {}
	}
	if err != nil {
		return func() { showLeft(w, s, run, err) }
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan func(), 1)
	uploader := upload.New(upload.Config{Spool: s, Client: client})
	go func() {
		report, err := uploader.Run(ctx)
		done <- func() {
			for _, x := range report.Refused {
				fmt.Fprintf(w, "refused: %s\n", x)
			}
			showLeft(w, s, run, err)
		}
	}()
	return func() {
		cancel()
		(<-done)()
	}
}

// showLeft says in one line what the control plane has not acknowledged of run, and
// what kept it from that.
func showLeft(w io.Writer, s *spool.Spool, run string, trouble error) {
	events, artifacts, err := upload.Left(s, run)
	if errors.Is(err, fs.ErrNotExist) {
		return // it ended before its run began
	}
	if err != nil {
		fmt.Fprintf(w, "run %s: what of it is acknowledged cannot be read: %v\n", run, err)
		return
	}
	because := ""
	if trouble != nil {
		because = fmt.Sprintf(" (the last error: %v)", trouble)
	}
	if events == 0 && artifacts == 0 {
		fmt.Fprintf(w, "run %s: all of it is acknowledged%s\n", run, because)
		return
	}
	fmt.Fprintf(w, "run %s: %d events and %d artifacts are not acknowledged yet; train sync sends them%s\n", run, events, artifacts, because)
}

var cancelCommand = term.Command{
	Name: "cancel", Args: "RUN",
	Short: "end an interrupted run for good, as cancelled",
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var r local.Record
		r.Flag(flags)
		asJSON := term.AsJSON(flags)
		return func(_ context.Context, streams term.IO, args []string) error {
			run, err := term.One(args, "the run to cancel")
			if err != nil {
				return err
			}
			s, err := r.Open()
			if err != nil {
				return err
			}
			log, err := s.Resume(run)
			if err != nil {
				return err
			}
			defer log.Close()
			view := log.View()
			if view.Ended != nil {
				return term.Usagef("run %s has ended already, %s", run, view.Status)
			}
			if _, err := log.Append(event.RunCompleted{Status: event.Cancelled, Steps: view.Steps, Tokens: view.Tokens, Batches: view.Steps}); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, struct {
					Run    string          `json:"run"`
					Status event.RunStatus `json:"status"`
					Steps  uint64          `json:"steps"`
				}{run, event.Cancelled, view.Steps})
			}
			fmt.Fprintf(streams.Out, "run %s is cancelled after step %d\n", run, view.Steps)
			return nil
		}
	},
}
