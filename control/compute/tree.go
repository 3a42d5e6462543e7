package compute

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/policy"
)

// maxTree bounds the body that says what files a tree has: api.MaxTreeFiles of
// them, at the longest path that policy.CheckTree takes.
const maxTree = 16 << 20

const (
	treesPath = root + "/trees/{hash}"
	blobsPath = root + "/blobs/{sha256}"

	nodeTree = nodePath + "/activities/{activity}/trees/{hash}"
	nodeBlob = nodeTree + "/{sha256}"
)

// trees are the files that inputs name: a person of the org puts them, and a node
// reads those that a live activity of its own names.
func (p *Plane) trees(mux *http.ServeMux) {
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodPut, Path: treesPath, Summary: "Say what files a tree has, and learn which to send",
		Takes: api.Tree{}, Limit: maxTree, Gives: api.TreeStored{},
	}, func(ctx context.Context, in *struct {
		Hash    string `path:"hash"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		return p.putTree(ctx, in.Hash, in.RawBody)
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodGet, Path: nodeTree, Summary: "The files of a tree that a live activity names", Gives: api.Tree{},
	}, func(ctx context.Context, in *struct {
		ID       string `path:"id"`
		Activity string `path:"activity"`
		Hash     string `path:"hash"`
	}) (any, error) {
		_, t, err := p.named(ctx, in.ID, in.Activity, in.Hash)
		return t, err
	})

	// Bytes of any size are streamed, which huma's bodies are not.
	mux.HandleFunc("PUT "+blobsPath, p.putBlob)
	mux.HandleFunc("GET "+nodeBlob, p.serveBlob)
	p.documentBlobs()
}

// putTree checks that a tree is one and has the name that it is put under.
func (p *Plane) putTree(ctx context.Context, hash string, body []byte) (any, error) {
	var t api.Tree
	if err := route.Read(body, &t); err != nil {
		return nil, err
	}
	if len(t.Files) > api.MaxTreeFiles {
		return nil, api.Refuse(api.TooLarge, "a tree of %d files; it has at most %d", len(t.Files), api.MaxTreeFiles)
	}
	files := make([]policy.TreeFile, len(t.Files))
	for i, f := range t.Files {
		files[i] = policy.TreeFile(f)
	}
	if err := policy.CheckTree(files); err != nil {
		return nil, api.Refuse(api.Invalid, "files: %v", err)
	}
	if got := policy.TreeHash(files); got != hash {
		return nil, api.Refuse(api.AddressMismatch, "these files are tree %s, not %.80q", got, hash)
	}
	org, err := p.store.Org(route.From(ctx).Owner)
	if err != nil {
		return nil, err
	}
	missing, err := org.PutTree(hash, t)
	return api.TreeStored{Missing: missing}, err
}

// putBlob is PUT /v1/compute/fleet/blobs/{sha256}.
func (p *Plane) putBlob(w http.ResponseWriter, r *http.Request) {
	org, err := p.store.Org(route.From(r.Context()).Owner)
	if err == nil {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(route.Transfer(r.ContentLength)))
		err = org.PutBlob(r.PathValue("sha256"), r.ContentLength, r.Body)
	}
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// named answers a tree that a live activity of the caller's own node names.
func (p *Plane) named(ctx context.Context, id, act, hash string) (*db.Org, api.Tree, error) {
	n := route.From(ctx).Node
	if n == nil || n.ID != id {
		return nil, api.Tree{}, api.Refuse(api.Forbidden, "only the credential of node %.80q opens this route", id)
	}
	a, err := p.store.NodeActivity(ctx, n.Org, n.ID, n.Key, act)
	if err != nil {
		return nil, api.Tree{}, err
	}
	if a.State.Ended() {
		return nil, api.Tree{}, api.Refuse(api.NotFound, "activity %s has ended: its trees are not its node's any more", act)
	}
	in, err := policy.ParseTrainFit(a.Input)
	if a.Kind != policy.TrainFit || err != nil || hash != in.Stage && hash != in.Base {
		return nil, api.Tree{}, api.Refuse(api.NotFound, "activity %s names no tree %.80q", act, hash)
	}
	org, err := p.store.Org(n.Org)
	if err != nil {
		return nil, api.Tree{}, err
	}
	t, err := org.Tree(hash)
	return org, t, err
}

// serveBlob is GET of the bytes of one file of such a tree, whole or a range.
func (p *Plane) serveBlob(w http.ResponseWriter, r *http.Request) {
	org, t, err := p.named(r.Context(), r.PathValue("id"), r.PathValue("activity"), r.PathValue("hash"))
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	sha := r.PathValue("sha256")
	i := fileOf(t, sha)
	if i < 0 {
		p.Refuse(w, r, api.Refuse(api.NotFound, "tree %s has no file %.80q", r.PathValue("hash"), sha))
		return
	}
	f, err := org.OpenBlob(sha)
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	defer f.Close()
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(route.Transfer(t.Files[i].Size)))
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", strconv.Quote(sha))
	h.Set("Cache-Control", "private, immutable, max-age=31536000")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(&ranged{ResponseWriter: w}, r, "", time.Time{}, f)
}

// ranged makes what net/http says of a range that there is not the problem document
// that every refusal here is.
type ranged struct {
	http.ResponseWriter
	refused bool
}

func (w *ranged) WriteHeader(status int) {
	if status != http.StatusRequestedRangeNotSatisfiable {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.refused = true
	h := w.Header()
	for _, name := range []string{"ETag", "Cache-Control", "Content-Length"} {
		h.Del(name) // they are the file's
	}
	api.Refuse(api.RangeInvalid, "the file has no such range; Content-Range says how long it is").Write(w.ResponseWriter)
}

func (w *ranged) Write(b []byte) (int, error) {
	if w.refused {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// ReadFrom lets a file go to the socket without a copy in between.
func (w *ranged) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

// fileOf is the index of a file with these bytes, -1 when there is none.
func fileOf(t api.Tree, sha string) int {
	for i, f := range t.Files {
		if f.SHA256 == sha {
			return i
		}
	}
	return -1
}

// documentBlobs describes the two streamed routes.
func (p *Plane) documentBlobs() {
	binary := map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}}}
	params := func(names ...string) (list []*huma.Param) {
		for _, name := range names {
			list = append(list, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
		return list
	}
	add := func(method, path, summary string, op huma.Operation) {
		op.OperationID, op.Method, op.Path, op.Summary = p.OperationID(method, path), method, path, summary
		op.Tags, op.Security = []string{p.Tag}, []map[string][]string{{"token": {}}}
		p.API.OpenAPI().AddOperation(&op)
	}
	put, get := p.Responses(nil, http.StatusNoContent), p.Responses(nil, http.StatusOK)
	put["204"] = &huma.Response{Description: "The bytes are held"}
	get["200"] = &huma.Response{Description: "The bytes; 206 for a range of them", Content: binary}
	add(http.MethodPut, blobsPath, "One file's bytes", huma.Operation{
		Parameters: params("sha256"), RequestBody: &huma.RequestBody{Required: true, Content: binary}, Responses: put,
	})
	add(http.MethodGet, nodeBlob, "The bytes of a file of a tree that a live activity names", huma.Operation{
		Parameters: params("id", "activity", "hash", "sha256"), Responses: get,
	})
}
