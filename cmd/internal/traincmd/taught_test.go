package traincmd

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// TestTaught asks a checkpoint what it was taught, that, and something else.
func TestTaught(t *testing.T) {
	s := newShell(t)
	model, err := kai.Load("new", cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	q, err := decision.ParseQuestion(canon.Raw(queue))
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Teach([]decision.Asked{{Key: "queue", Question: q}}); err != nil {
		t.Fatal(err)
	}
	if err := model.Save("taught"); err != nil {
		t.Fatal(err)
	}
	const note = "note: not a question this checkpoint was taught; train ask"
	for line, noted := range map[string]bool{
		"ask taught hello": false,
		"ask taught hello --type choice --instructions which --options a,b": true,
		"ask taught hello --type noul --instructions late --json":           true,
		"ask new hello --type noul --instructions late":                     true,
	} {
		status, out := s.types(t.Context(), line)
		if status != term.OK || strings.Contains(out, note) != noted {
			t.Errorf("train %s: status %d, want a note: %t: %s", line, status, noted, out)
		}
	}
	status, out := s.types(t.Context(), "ask taught --taught")
	if want := `{"queue":{"criteria":["billing","delivery","other"],"instructions":"which queue","type":"choice"}}` + "\n"; status != term.OK || out != want {
		t.Fatalf("ask --taught: status %d: %s", status, out)
	}
	d, err := newDecider("taught", model, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for questions, want := range map[string]string{
		strings.Trim(out, "{}\n") + "}":        served,
		`"renamed":` + queue:                   served,
		`"late":` + noul:                       untaught,
		`"queue":` + queue + `,"late":` + noul: untaught + ": late",
	} {
		code, _, body := post(t, d, asking(questions))
		if code != http.StatusOK || !strings.Contains(string(body), `"reason":"`+want+`"`) {
			t.Errorf("%s: %d, %s; want the reason %q", questions, code, body, want)
		}
	}
}
