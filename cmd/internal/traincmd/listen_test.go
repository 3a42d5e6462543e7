package traincmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/kai"
)

// untaught is a decider with a small model that knows nothing.
var small = sync.OnceValues(func() (*decider, error) {
	model, _, err := kai.Init(kai.InitConfig{
		Size: "nano", Texts: []string{"my card was charged twice", "the parcel has not arrived"}, MaxLen: 64,
	}, cpu.New(2))
	if err != nil {
		return nil, err
	}
	return newDecider("nano", model, slog.New(slog.DiscardHandler))
})

func untrained(t *testing.T) *decider {
	t.Helper()
	d, err := small()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// post sends a body and returns the status and the answer.
func post(t *testing.T, d *decider, body string) (int, http.Header, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/decisions", strings.NewReader(body)))
	return w.Code, w.Header(), w.Body.Bytes()
}

// answered posts a body that must be answered.
func answered(t *testing.T, d *decider, body string) decisions {
	t.Helper()
	status, header, raw := post(t, d, body)
	if status != http.StatusOK || header.Get("Content-Type") != "application/json" {
		t.Fatalf("%.200s: %d %v %s", body, status, header, raw)
	}
	var out decisions
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	queue = `{"type":"choice","instructions":"which queue","criteria":["billing","delivery","other"]}`
	noul  = `{"type":"noul","instructions":"is it late"}`
)

// asking is a request with these questions, as JSON members.
func asking(questions string) string {
	return `{"model":"kai","state":"my parcel is late","questions":{` + questions + `}}`
}

// nouls are n questions.
func nouls(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"q%d":%s`, i, noul))
	}
	return strings.Join(list, ",")
}

// TestDecisionsRefuse is every refusal of POST /v1/decisions, one row each.
func TestDecisionsRefuse(t *testing.T) {
	question := func(q string) string { return asking(`"q":` + q) }
	tests := []struct {
		name, body string
		status     int
		code       string
		says       string
	}{
		{"not JSON", `hello`, 400, "invalid", "invalid character"},
		{"cut short", `{"model":"kai"`, 400, "invalid", "EOF"},
		{"a list", `[]`, 400, "invalid", ""},
		{"nothing", ``, 400, "invalid", ""},
		{"two documents", asking(`"q":`+noul) + `{}`, 400, "invalid", ""},
		{"an unknown member", `{"model":"kai","state":"s","questions":{"q":` + noul + `},"stream":true}`, 400, "invalid", "stream"},
		{"a member twice", `{"model":"kai","model":"kai","state":"s","questions":{"q":` + noul + `}}`, 400, "invalid", "model"},
		{"no model", `{"state":"s","questions":{"q":` + noul + `}}`, 400, "invalid", "model"},
		{"no state", `{"model":"kai","questions":{"q":` + noul + `}}`, 422, "invalid_question", "state is missing"},
		{"no questions", `{"model":"kai","state":"s"}`, 422, "invalid_question", "questions"},

		{"another model", `{"model":"gpt-4","state":"s","questions":{"q":` + noul + `}}`, 400, "unknown_model", "gpt-4"},
		{"another spelling", `{"model":"Kai","state":"s","questions":{"q":` + noul + `}}`, 400, "unknown_model", "Kai"},

		{"a state that is a number", `{"model":"kai","state":7,"questions":{"q":` + noul + `}}`, 422, "invalid_question", "state is a number"},
		{"a state that is null", `{"model":"kai","state":null,"questions":{"q":` + noul + `}}`, 422, "invalid_question", "state is null"},
		{"an empty state", `{"model":"kai","state":" ","questions":{"q":` + noul + `}}`, 422, "invalid_question", "state is empty"},
		{"nothing asked", asking(""), 422, "invalid_question", "none is asked"},
		{"questions that are a list", `{"model":"kai","state":"s","questions":[]}`, 422, "invalid_question", "questions"},
		{"101 questions", asking(nouls(101)), 422, "invalid_question", "101 are asked; at most 100"},
		{"an unknown member of a question", question(`{"type":"noul","instructions":"i","weight":1}`), 422, "invalid_question", "weight"},
		{"levels", question(`{"type":"score","instructions":"i","levels":["low","high"]}`), 422, "invalid_question", "levels"},
		{"an unknown type", question(`{"type":"rank","instructions":"i"}`), 422, "invalid_question", "rank"},
		{"no type", question(`{"instructions":"i"}`), 422, "invalid_question", "type"},
		{"no instructions", question(`{"type":"noul"}`), 422, "invalid_question", "instructions are empty"},
		{"a choice of one", question(`{"type":"choice","instructions":"i","criteria":["a"]}`), 422, "invalid_question", "at least 2"},
		{"a choice without criteria", question(`{"type":"choice","instructions":"i"}`), 422, "invalid_question", "criteria"},
		{"equal options", question(`{"type":"choice","instructions":"i","criteria":["a"," a "]}`), 422, "invalid_question", ""},
		{"instructions over the limit", question(`{"type":"noul","instructions":"` + strings.Repeat("why ", 200) + `"}`), 422, "invalid_question", "instructions"},

		{"over the limit", `{"model":"kai","state":"` + strings.Repeat("s", maxBody) + `","questions":{"q":` + noul + `}}`, 413, "too_large", "bytes"},
	}
	d := untrained(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, header, body := post(t, d, tt.body)
			if header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%d, not a problem: %.300s", status, body)
			}
			var p struct {
				Type, Title, Code, Detail string
				Status                    int
			}
			if err := json.Unmarshal(body, &p); err != nil {
				t.Fatal(err)
			}
			if status != tt.status || p.Status != status || p.Code != tt.code || !strings.Contains(p.Detail, tt.says) || p.Title == "" {
				t.Errorf("%d %+v, want %d %s saying %q", status, p, tt.status, tt.code, tt.says)
			}
		})
	}
}

// TestDecisionsRoutes asks for what is not there.
func TestDecisionsRoutes(t *testing.T) {
	d := untrained(t)
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/decisions", 405}, {"PUT", "/v1/decisions", 405}, {"POST", "/v1/decisions/x", 404},
		{"POST", "/", 404}, {"GET", "/healthz", 200},
	} {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, nil))
		if w.Code != tt.status {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.path, w.Code, tt.status)
		}
	}
}

// TestDecisionsHalfClosed has a caller stop before the end of what it promised,
// or take too long over it, and still listen: it is not told that all is well.
func TestDecisionsHalfClosed(t *testing.T) {
	d := untrained(t)
	for _, tt := range []struct {
		err    error
		status int
	}{{io.ErrUnexpectedEOF, 400}, {os.ErrDeadlineExceeded, 408}} {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/decisions", io.MultiReader(strings.NewReader(`{"model":`), failing{tt.err})))
		if w.Code != tt.status {
			t.Errorf("a body that ends in %v: %d, want %d", tt.err, w.Code, tt.status)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestDecisionsAnswer reads each kind of answer: which members it has, and that
// its numbers are those of a distribution.
func TestDecisionsAnswer(t *testing.T) {
	d := untrained(t)
	out := answered(t, d, asking(`"c":`+queue+`,"n":`+noul+`,"b":{"type":"boolean","instructions":"is it late"},`+
		`"s":{"type":"score","instructions":"how bad","criteria":["fine","bad","awful"]}`))
	type answer struct {
		Choice           *string
		Noul             *float64
		Probability      *float64
		Score            *float64
		Legend           map[string]string
		Probabilities    map[string]float64
		AnswerConfidence float64 `json:"answer_confidence"`
		Confidence       float64
	}
	answers := make(map[string]answer)
	for key, raw := range out.Answers {
		var a answer
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&a); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		answers[key] = a
		n, sum := 2., 1.
		if a.Probabilities != nil {
			n, sum = float64(len(a.Probabilities)), 0
			for _, p := range a.Probabilities {
				sum += p
			}
		}
		if math.Abs(sum-1) > 1e-12 {
			t.Errorf("%s: probabilities sum to %v", key, sum)
		}
		if want := (a.AnswerConfidence - 1/n) / (1 - 1/n); a.AnswerConfidence < 1/n || a.Confidence != want {
			t.Errorf("%s: answer_confidence %v, confidence %v, want %v", key, a.AnswerConfidence, a.Confidence, want)
		}
	}
	c, n, b, s := answers["c"], answers["n"], answers["b"], answers["s"]
	if c.Choice == nil || c.Probabilities[*c.Choice] != c.AnswerConfidence || c.Noul != nil || c.Score != nil {
		t.Errorf("the choice is %+v", c)
	}
	if n.Noul == nil || n.Probability != nil || n.Probabilities != nil {
		t.Errorf("the noul is %+v", n)
	}
	if b.Probability == nil || b.Noul != nil || *b.Probability != *n.Noul {
		t.Errorf("the boolean is %+v, and as a noul %v", b, *n.Noul)
	}
	if want := s.Probabilities["1"] + 2*s.Probabilities["2"]; s.Score == nil || math.Abs(*s.Score-want) > 1e-12 {
		t.Errorf("the score is %+v, want the expected level %v", s, want)
	}
	if diff := cmp.Diff(map[string]string{"0": "fine", "1": "bad", "2": "awful"}, s.Legend); diff != "" {
		t.Errorf("legend (-want +got):\n%s", diff)
	}
	r := out.Routing
	if !strings.HasPrefix(out.ID, "dec_") || out.Model != "kai" || out.Provider == "" || out.Usage.InputTokens == 0 || out.Usage.OutputTokens != 0 ||
		!out.StateHash.Valid() || r.Checkpoint != "nano" || r.SHA256 != d.model.SHA256 || r.Trained != 64 || r.Extrapolated || len(r.Truncated) != 0 {
		t.Errorf("the answer is %+v", out)
	}
	if r.Reason != untaught {
		t.Errorf("the reason of a checkpoint that was taught nothing is %q", r.Reason)
	}
	if long := answered(t, d, strings.Replace(asking(`"n":`+noul), `"kai"`, `"hanzo/kai"`, 1)); long.Model != "hanzo/kai" {
		t.Errorf("asked as hanzo/kai, %s answered", long.Model)
	}
}

// TestDecisionsAnyOrder lists options and questions in other orders, and expects
// the same bits.
func TestDecisionsAnyOrder(t *testing.T) {
	d := untrained(t)
	orders := []string{
		`"c":{"type":"choice","instructions":"which","criteria":{"a":"first","b":"second","c":"third"}},"n":` + noul,
		`"n":` + noul + `,"c":{"criteria":{"c":"third","a":"first","b":"second"},"instructions":"which","type":"choice"}`,
	}
	first := answered(t, d, asking(orders[0]))
	second := answered(t, d, asking(orders[1]))
	if diff := cmp.Diff(first.Answers, second.Answers); diff != "" {
		t.Errorf("the answers depend on the order (-first +second):\n%s", diff)
	}
	list := func(options string) map[string]float64 {
		var a struct{ Probabilities map[string]float64 }
		raw := answered(t, d, asking(`"c":{"type":"choice","instructions":"which","criteria":[`+options+`]}`)).Answers["c"]
		if err := json.Unmarshal(raw, &a); err != nil {
			t.Fatal(err)
		}
		return a.Probabilities
	}
	if a, b := list(`"x","y","z"`), list(`"z","x","y"`); !maps.Equal(a, b) {
		t.Errorf("%v in one order, %v in another", a, b)
	}
}

// TestDecisionsMany asks the most questions that one request may.
func TestDecisionsMany(t *testing.T) {
	if out := answered(t, untrained(t), asking(nouls(100))); len(out.Answers) != 100 {
		t.Errorf("100 questions have %d answers", len(out.Answers))
	}
}

// TestDecisionsLongState asks about 10 MB, of which the model reads the beginning
// and says so.
func TestDecisionsLongState(t *testing.T) {
	d := untrained(t)
	long := strings.Repeat("the parcel is late ", 10<<20/19)
	out := answered(t, d, `{"model":"kai","state":"`+long+`","questions":{"n":`+noul+`}}`)
	if diff := cmp.Diff([]string{"n"}, out.Routing.Truncated); diff != "" {
		t.Errorf("truncated (-want +got):\n%s", diff)
	}
	if out.Usage.InputTokens > 64 {
		t.Errorf("%d tokens were read of a context of 64", out.Usage.InputTokens)
	}
	short := answered(t, d, `{"model":"kai","state":"`+long[:1900]+`","questions":{"n":`+noul+`}}`)
	if diff := cmp.Diff(short.Answers, out.Answers); diff != "" {
		t.Errorf("what was cut changed the answer (-short +long):\n%s", diff)
	}
}

// TestListen binds where only this machine can ask, answers, and stops when told.
func TestListen(t *testing.T) {
	d := untrained(t)
	for _, address := range []string{"8080", "0.0.0.0:0", ":0", "192.0.2.1:80", "example.com:80", "[::]:0"} {
		err := d.listen(t.Context(), address, func(net.Addr) { t.Errorf("%s is served", address) })
		if term.StatusOf(err) != term.Usage || !strings.Contains(err.Error(), "--listen "+address) {
			t.Errorf("--listen %s: %v", address, err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan net.Addr, 1)
	done := make(chan error, 1)
	go func() { done <- d.listen(ctx, "127.0.0.1:0", func(at net.Addr) { served <- at }) }()
	var at net.Addr
	select {
	case at = <-served:
	case err := <-done:
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+at.String()+"/v1/decisions", "application/json", strings.NewReader(asking(`"n":`+noul)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:80": 200, "127.0.0.2:1": 200, "[::1]:8080": 200, "[::1]": 200, at.String(): 200,
		"evil.example": 403, "evil.example:8080": 403, "127.0.0.1.evil.example": 403, "192.0.2.1": 403, "localhost.evil.example": 403,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host %s: status %d, want %d", host, resp.StatusCode, want)
		}
	}
	stop()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("listen ended with %v", err)
	}
}
