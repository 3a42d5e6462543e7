package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hanzoai/link/control/api"
)

// TestProxyAnswers: what a proxy or a portal says with 2xx in a control plane's place
// acknowledges nothing, for a report that is taken for heard is never sent again.
func TestProxyAnswers(t *testing.T) {
	var status int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			io.WriteString(w, "<html>log in</html>")
		}
	}))
	defer server.Close()
	c := &api.Client{Base: server.URL, Token: func() (string, error) { return "t", nil }}
	calls := map[string]func(context.Context) error{
		"report": func(ctx context.Context) error {
			return c.Report(ctx, "node", "act_1", api.StateReport{Key: "0123456789abcdef0123456789abcdef", State: "stopped", Reason: "done"})
		},
		"delete": func(ctx context.Context) error { return c.DeleteWorker(ctx, "node") },
		"put": func(ctx context.Context) error {
			_, err := c.PutWorker(ctx, "node", api.WorkerPut{})
			return err
		},
		"offers": func(ctx context.Context) error {
			_, err := c.Offers(ctx, "node", api.Claim{Wait: 1})
			return err
		},
	}
	for name, call := range calls {
		for status = range map[int]bool{200: true, 202: true, 204: true} {
			fine := status == http.StatusNoContent && name != "put"
			if err := call(t.Context()); (err == nil) != fine {
				t.Errorf("%s, answered %d: %v", name, status, err)
			}
		}
	}
}

// TestEndlessRefusal: of a page that has no end only the beginning is read, and its
// status counts.
func TestEndlessRefusal(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		for page := make([]byte, 64<<10); ; {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	c := &api.Client{Base: server.URL, Token: func() (string, error) { return "t", nil }}
	if retry, _ := api.Retryable(c.DeleteWorker(t.Context(), "node")); !retry {
		t.Error("it is no 503")
	}
}
