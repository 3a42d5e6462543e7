package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanzoai/link/control/api"
)

// silent is a server that takes a request and never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestNoAnswer: who waits for nothing is told so, for how long, and what to look at.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &api.Client{Base: "http://127.0.0.1:1", Token: func() (string, error) { return "t", nil }, HTTP: &http.Client{Transport: silent{}}}
		_, err := c.Workers(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no answer within 60 s: is the control plane running") {
			t.Errorf("%v", err)
		}
		if retry, _ := api.Retryable(err); !retry {
			t.Error("it is not worth another try")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.Workers(ctx); err == nil || !strings.Contains(err.Error(), "no answer within 10 s") {
			t.Errorf("%v", err)
		}
	})
}

// TestNotAControlPlane is told in plain words.
func TestNotAControlPlane(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "oh", http.StatusInternalServerError)
	}))
	defer server.Close()
	c := &api.Client{Base: server.URL, Token: func() (string, error) { return "t", nil }}
	_, err := c.Workers(t.Context())
	want := "answered 500 Internal Server Error: GET /v1/compute/fleet/workers: the answer is not a control plane's"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
}
