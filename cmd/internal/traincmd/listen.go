package traincmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// Limits of POST /v1/decisions.
const (
	maxBody   = 12 << 20 // a state of 10 MB and its questions
	bodyTime  = 30 * time.Second
	drainTime = 5 * time.Second // what a request in flight is given when the server stops
)

// What routing.reason says.
const (
	served   = "the checkpoint being served"
	untaught = "not a question this checkpoint was taught" // answered near to uniformly, as a rule
)

// decider answers POST /v1/decisions with one checkpoint. The model answers one
// request at a time: its device already uses every core.
type decider struct {
	name string // what routing.checkpoint says
	log  *slog.Logger

	mu        sync.Mutex // held while the predictor computes
	model     *kai.Model
	predictor *kai.Predictor
	taught    map[canon.Hash]bool // questions
}

// newDecider answers with a model under a name.
func newDecider(name string, model *kai.Model, log *slog.Logger) (*decider, error) {
	d := &decider{name: name, model: model, predictor: model.NewPredictor(), log: log, taught: make(map[canon.Hash]bool)}
	questions, err := model.Questions()
	if err != nil {
		return nil, err
	}
	for _, a := range questions {
		d.taught[a.Question.Hash()] = true
	}
	return d, nil
}

type usage struct {
	InputTokens  int `json:"input_tokens"`
	OutputTokens int `json:"output_tokens"`
}

// routing says what answered.
type routing struct {
	Backend      string   `json:"backend"`
	Checkpoint   string   `json:"checkpoint"`
	SHA256       string   `json:"sha256"`
	Calibration  string   `json:"calibration"` // the id of the temperatures, "" when none were fitted
	Device       string   `json:"device"`
	Trained      int      `json:"trained"`      // tokens of one question's context the model was made for
	Extrapolated bool     `json:"extrapolated"` // never: what does not fit is cut, and Truncated says so
	Truncated    []string `json:"truncated"`    // questions whose state was cut to fit
	Reason       string   `json:"reason"`
}

type decisions struct {
	ID        string                     `json:"id"`
	Model     string                     `json:"model"`
	Provider  string                     `json:"provider"`
	Answers   map[string]json.RawMessage `json:"answers"`
	Usage     usage                      `json:"usage"`
	Routing   routing                    `json:"routing"`
	StateHash canon.Hash                 `json:"state_hash"`
	LatencyMS float64                    `json:"latency_ms"`
}

// refusal is an error with the status and code it is answered with.
type refusal struct {
	status int
	code   string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Errorf(format, args...)}
}

// ServeHTTP answers POST /v1/decisions and GET /healthz.
func (d *decider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/healthz" && r.Method == http.MethodGet:
		fmt.Fprintln(w, "ok")
	case r.URL.Path != "/v1/decisions":
		d.problem(w, refuse(http.StatusNotFound, "not_found", "only POST /v1/decisions is served here"))
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		d.problem(w, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "POST a state and its questions"))
	default:
		body, err := readBody(w, r)
		if err != nil {
			d.problem(w, err)
			return
		}
		answer, err := d.decide(body, time.Now())
		if err != nil {
			d.problem(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			d.log.Info("answer not delivered", "err", err)
		}
	}
}

// readBody reads a request whole. A caller that stopped sending may listen still.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, refuse(http.StatusRequestEntityTooLarge, "too_large", "the request is over %d bytes", maxBody)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, refuse(http.StatusRequestTimeout, "timeout", "the request did not come within %s", bodyTime)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "invalid", "the request does not read to its end: %w", err)
	}
	return body, nil
}

// request is the body of POST /v1/decisions.
type request struct {
	Model     string    `json:"model"`
	State     canon.Raw `json:"state"`
	Questions canon.Raw `json:"questions"`
}

func (d *decider) decide(body []byte, began time.Time) (decisions, error) {
	var req request
	if err := canon.Unmarshal(body, &req); err != nil {
		return decisions{}, refuse(http.StatusBadRequest, "invalid", "%w", err)
	}
	if req.Model != "kai" && req.Model != "hanzo/kai" {
		return decisions{}, refuse(http.StatusBadRequest, "unknown_model", "unknown model %q: this server answers as kai", req.Model)
	}
	row, boolean, err := parseQuestions(req)
	if err != nil {
		return decisions{}, refuse(http.StatusUnprocessableEntity, "invalid_question", "%w", err)
	}
	state, err := canon.Of(req.State)
	if err != nil {
		return decisions{}, refuse(http.StatusBadRequest, "invalid", "state: %w", err)
	}
	answers, err := d.answer(row)
	if err != nil {
		return decisions{}, refuse(http.StatusUnprocessableEntity, "invalid_question", "%w", err)
	}
	id, err := canon.Of(struct {
		Request canon.Raw `json:"request"`
		Weights string    `json:"weights"`
		At      string    `json:"at"`
	}{canon.Raw(body), d.model.SHA256, began.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return decisions{}, fmt.Errorf("naming the answer: %w", err)
	}
	out := decisions{
		ID: "dec_" + id.Hex()[:16], Model: req.Model, Provider: "local",
		Answers:   make(map[string]json.RawMessage, len(answers)),
		StateHash: state,
		Routing: routing{
			Backend: "kai", Checkpoint: d.name, SHA256: d.model.SHA256, Calibration: d.model.Calibration(),
			Device: d.model.Device().Name(), Trained: d.model.Config.MaxLen, Truncated: []string{}, Reason: d.reason(row.Asked),
		},
	}
	for i, a := range answers {
		key := row.Asked[i].Key
		raw, err := answerJSON(a, boolean[key])
		if err != nil {
			return decisions{}, fmt.Errorf("answer %s: %w", key, err)
		}
		out.Answers[key] = raw
		out.Usage.InputTokens += a.Tokens
		if a.Cut > 0 {
			out.Routing.Truncated = append(out.Routing.Truncated, key)
		}
	}
	out.LatencyMS = float64(time.Since(began).Microseconds()) / 1000
	return out, nil
}

// reason says what answers these questions, and which of them it was not taught.
func (d *decider) reason(asked []decision.Asked) string {
	var keys []string
	for _, a := range asked {
		if !d.taught[a.Question.Hash()] {
			keys = append(keys, a.Key)
		}
	}
	switch len(keys) {
	case 0:
		return served
	case len(asked):
		return untaught
	}
	return untaught + ": " + strings.Join(keys, ", ")
}

// parseQuestions reads the state and questions, and which of them were asked as
// "boolean", whose answer has another member.
func parseQuestions(req request) (row decision.Row, boolean map[string]bool, err error) {
	if row.State, err = decision.State(req.State); err != nil {
		return decision.Row{}, nil, err
	}
	if row.Asked, err = new(decision.Reader).Asked(req.Questions, nil); err != nil {
		return decision.Row{}, nil, err
	}
	members, err := canon.Members(req.Questions)
	if err != nil {
		return decision.Row{}, nil, err
	}
	boolean = make(map[string]bool)
	for _, m := range members {
		kind, err := canon.Tag(m.Value, "type")
		if err != nil {
			return decision.Row{}, nil, fmt.Errorf("questions: %s: %w", m.Name, err)
		}
		boolean[m.Name] = kind == "boolean"
	}
	return row, boolean, nil
}

func (d *decider) answer(row decision.Row) ([]kai.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.predictor.Answer(row)
}

// answerJSON shapes one answer; one asked as boolean says probability where a
// noul says noul.
func answerJSON(a kai.Answer, boolean bool) (json.RawMessage, error) {
	if !boolean {
		return json.Marshal(a)
	}
	return json.Marshal(struct {
		Probability      *float64 `json:"probability"`
		AnswerConfidence float64  `json:"answer_confidence"`
		Confidence       float64  `json:"confidence"`
	}{a.Noul, a.AnswerConfidence, a.Confidence})
}

// problem answers a refusal as RFC 9457 has it. What is not a refusal is our
// fault and says no more than that.
func (d *decider) problem(w http.ResponseWriter, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		d.log.Error("answering", "err", err)
		r = &refusal{http.StatusInternalServerError, "internal", errors.New("the server failed; its log says why")}
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(r.status)
	body := map[string]any{"type": "about:blank", "title": http.StatusText(r.status), "status": r.status, "code": r.code, "detail": r.Error()}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		d.log.Info("problem not delivered", "err", err)
	}
}

// here answers requests that name this machine alone. A page that a browser shows
// may reach a loopback address under a name of its own; its Host tells.
func (d *decider) here() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopbackHost(r.Host) {
			d.problem(w, refuse(http.StatusForbidden, "forbidden", "Host %q is not this machine: ask at localhost or a loopback address", r.Host))
			return
		}
		d.ServeHTTP(w, r)
	})
}

// loopbackHost reports whether a Host is localhost or a loopback IP. Only such
// addresses are listened at.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// listen serves until ctx ends. It binds loopback addresses only: it
// authenticates nobody, so what others may ask belongs behind a gateway.
func (d *decider) listen(ctx context.Context, address string, ready func(net.Addr)) error {
	if err := term.Loopback("--listen", address, "nobody is authenticated here; put a gateway in front of 127.0.0.1"); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: d.here(), ReadTimeout: bodyTime, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelInfo)}
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(listener) }()
	ready(listener.Addr())
	select {
	case err := <-stopped:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err = server.Shutdown(drain)
	<-stopped
	if err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}
