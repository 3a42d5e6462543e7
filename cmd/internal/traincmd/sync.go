package traincmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

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
datasets, gates and events; what was acknowledged is not sent again. A refusal
stops the run it concerns and no other. Until the server answers, sync waits and
tries again: Ctrl-C stops it and loses nothing.

--check sends nothing: it compares the server's view of every run with what its
log here adds up to.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var r local.Record
		r.Flag(flags)
		check := flags.Bool("check", false, "compare and send nothing")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("sync takes no arguments: it sends the whole spool")
			}
			s, err := r.Open()
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
			report, err := upload.New(upload.Config{Spool: s, Client: client, Log: slog.New(slog.NewTextHandler(streams.Err, nil))}).Drain(ctx)
			if err := showSync(streams.Out, s, report, *asJSON); err != nil {
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

func showSync(w io.Writer, s *spool.Spool, r upload.Report, asJSON bool) error {
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
			Events    int       `json:"events"`
			Refused   []refusal `json:"refused"`
		}{r.Artifacts, r.Datasets, r.Gates, r.Events, nil}
		for _, x := range r.Refused {
			out.Refused = append(out.Refused, refusal{x.Subject, x.Seq, x.Err.Error()})
		}
		return term.PrintJSON(w, out)
	}
	for _, x := range r.Refused {
		fmt.Fprintf(w, "refused: %s\n", x)
	}
	fmt.Fprintf(w, "%s: sent %d artifacts, %d datasets, %d gates, %d events\n", s.Dir(), r.Artifacts, r.Datasets, r.Gates, r.Events)
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
// is named. The stop it returns never waits for the network.
func sendAside(ctx context.Context, s *spool.Spool, w io.Writer) (stop func()) {
	client, err := api.FromEnvironment()
	if err != nil {
		if !errors.Is(err, api.ErrNoServer) {
			fmt.Fprintf(w, "nothing is sent on the side: %v\n", err)
		}
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan upload.Report, 1)
	uploader := upload.New(upload.Config{Spool: s, Client: client})
	go func() { done <- uploader.Run(ctx) }()
	return func() {
		cancel()
		for _, x := range (<-done).Refused {
			fmt.Fprintf(w, "the control plane refused %s\n", x)
		}
	}
}

var cancelCommand = term.Command{
	Name: "cancel", Args: "RUN",
	Short: "end an interrupted run for good, as cancelled",
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var r local.Record
		r.Flag(flags)
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
			fmt.Fprintf(streams.Out, "run %s is cancelled after step %d\n", run, view.Steps)
			return nil
		}
	},
}
