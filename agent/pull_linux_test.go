package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/agent/store"
)

// TestPullOverTheWire pulls the trees of an activity from the real control plane, with
// a node's credential, over a connection that breaks in the middle of its bodies.
func TestPullOverTheWire(t *testing.T) {
	c, r, act, _ := spools(t)
	a, err := c.person.Activity(t.Context(), act)
	if err != nil {
		t.Fatal(err)
	}
	_, stage, _ := strings.Cut(string(a.Input), `"stage":"`)
	stage = stage[:64]
	dir := t.TempDir()
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	trees := trees{kept, r.client, r.node}

	// What is not the activity's is refused, and nothing of it stays.
	other := c.tree("stage.json", `{"not":"asked for"}`)
	err = trees.Pull(t.Context(), act, other, 1<<40, 0, nil)
	if codeOf(err, "") != activity.Pull {
		t.Errorf("another tree: %v", err)
	}

	var ranges []string
	c.on("/trees/"+stage+"/"+hexOf("{}"), func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		ranges = append(ranges, r.Header.Get("Range"))
		if len(ranges) > 1 {
			next.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		io.CopyN(w, answer.Body, 1)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	var last int64
	err = trees.Pull(t.Context(), act, stage, 1<<40, 0, func(done, total int64) { last = total - done })
	if err != nil || last != 0 {
		t.Fatalf("Pull = %v, %d bytes before the end", err, last)
	}
	if fmt.Sprint(ranges) != "[ bytes=1-]" {
		t.Errorf("the ranges asked for are %q, want the rest after the break", ranges)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "trees", stage, "stage.json")); !bytes.Equal(b, []byte("{}")) {
		t.Errorf("the stage is %q, %v", b, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "tmp")); len(entries) != 0 {
		t.Errorf("the temporary folder holds %v, %v", entries, err)
	}
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
