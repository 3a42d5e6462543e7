package research

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

const (
	artifactsPath = "/v1/research/artifacts"
	uploadsPath   = "/v1/research/uploads"
)

func (p *Plane) artifacts(mux *http.ServeMux) {
	handle(p, route.Op{
		Method: http.MethodPost, Path: artifactsPath, Summary: "Register an artifact, with its bytes or for an upload grant",
		Takes: api.Registration{}, Limit: maxRegister, Gives: api.Registered{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var reg api.Registration
		if err := route.Read(in.RawBody, &reg); err != nil {
			return nil, err
		}
		return p.register(ctx, org, reg)
	})
	handle(p, route.Op{
		Method: http.MethodGet, Path: artifactsPath, Summary: "List artifacts", Gives: api.Page[record.Artifact]{},
	}, func(ctx context.Context, org *db.Org, in *struct {
		Kind    record.Kind    `query:"kind"`
		Run     string         `query:"run"`
		Purpose record.Purpose `query:"purpose" enum:"train,dev,eval_only,sealed_eval,teacher_mining"`
		Since   string         `query:"since" doc:"created at or after, RFC 3339"`
		Paging
	}) (any, error) {
		if in.Kind != "" && !in.Kind.Valid() {
			return nil, api.Refuse(api.Invalid, "kind: %q is not a kind of artifact", in.Kind)
		}
		if err := instantQuery("since", in.Since); err != nil {
			return nil, err
		}
		return page(org.Artifacts(ctx, api.ArtifactQuery{
			Kind: in.Kind, Run: in.Run, Purpose: in.Purpose, Since: in.Since, After: in.After, Limit: in.Limit,
		}))
	})

	// Bytes of any size are streamed, which huma's bodies are not.
	mux.HandleFunc("GET "+artifactsPath+"/{sha256}", p.serveBytes)
	mux.HandleFunc("PUT "+uploadsPath+"/{sha256}", p.receivePart)
	p.documentBytes()
}

func (p *Plane) register(ctx context.Context, org *db.Org, reg api.Registration) (any, error) {
	if run := reg.Producer.Run; run != nil {
		if err := route.From(ctx).MayRecord(*run); err != nil {
			return nil, err
		}
	}
	a := record.Artifact{
		Kind: reg.Kind, MediaType: reg.MediaType, SchemaVersion: reg.SchemaVersion, Purpose: reg.Purpose,
		Size: reg.Size, CompressedSize: reg.CompressedSize, Compression: reg.Compression,
		Producer: reg.Producer, Parents: reg.Parents,
	}
	known := reg.SHA256 != nil
	if known {
		a.SHA256 = *reg.SHA256
	}
	var err error
	if reg.Content != nil {
		content, err := base64.StdEncoding.Strict().DecodeString(*reg.Content)
		if err != nil {
			return nil, api.Refuse(api.Invalid, "content: %v", err)
		}
		if len(content) > api.MaxInline {
			return nil, api.Refuse(api.TooLarge, "content has %d bytes; over %d register without it, for a grant", len(content), api.MaxInline)
		}
		if a, err = org.StoreArtifact(ctx, a, known, bytes.NewReader(content)); err != nil {
			return nil, err
		}
	} else {
		if !known {
			return nil, api.Refuse(api.Invalid, "sha256: required without content")
		}
		if a, err = org.RegisterArtifact(ctx, a); err != nil {
			return nil, err
		}
	}
	out := api.Registered{Artifact: a, Stored: a.State == record.Stored}
	if !out.Stored {
		out.Grant, err = p.grant(org, route.From(ctx).Owner, a)
	}
	return out, err
}

// serveBytes is GET /v1/research/artifacts/{sha256}.
func (p *Plane) serveBytes(w http.ResponseWriter, r *http.Request) {
	org, err := p.org(r.Context())
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	a, f, err := org.OpenArtifact(r.Context(), canon.SHA256(r.PathValue("sha256")))
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	defer f.Close()
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(route.Transfer(int64(a.Size))))
	h := w.Header()
	h.Set("Content-Type", a.MediaType)
	h.Set("ETag", strconv.Quote(string(a.SHA256)))
	h.Set("Cache-Control", "private, immutable, max-age=31536000")
	// The bytes are a tenant's: a browser must not run them as a page of ours.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	http.ServeContent(w, r, "", time.Time{}, f)
}

// receivePart is the PUT that a grant signs.
func (p *Plane) receivePart(w http.ResponseWriter, r *http.Request) {
	c, err := p.verify(canon.SHA256(r.PathValue("sha256")), r.URL.Query())
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	if r.ContentLength != int64(c.Size) {
		p.Refuse(w, r, api.Refuse(api.LengthMismatch, "Content-Length must be %d, the size that was granted", c.Size))
		return
	}
	org, err := p.store.Org(c.Org)
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(route.Transfer(int64(c.Size))))
	a, err := org.PutPart(r.Context(), c.SHA256, c.part(), c.Total, c.Compression, r.Body)
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	body, err := canon.Marshal(api.Registered{Artifact: a, Stored: a.State == record.Stored})
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}

// documentBytes describes the two streamed routes.
func (p *Plane) documentBytes() {
	name := &huma.Param{Name: "sha256", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}}
	query := func(name string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Required: true, Schema: &huma.Schema{Type: "string"}}
	}
	binary := map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}}}

	get := p.Responses(nil, 0)
	get["200"] = &huma.Response{Description: "The bytes, uncompressed, typed by media_type", Content: binary}
	p.API.OpenAPI().AddOperation(&huma.Operation{
		OperationID: p.OperationID(http.MethodGet, artifactsPath+"/{sha256}"), Method: http.MethodGet, Path: artifactsPath + "/{sha256}",
		Summary: "An artifact's bytes", Tags: []string{"research"}, Security: []map[string][]string{{"token": {}}},
		Parameters: []*huma.Param{name}, Responses: get,
	})
	p.API.OpenAPI().AddOperation(&huma.Operation{
		OperationID: p.OperationID(http.MethodPut, uploadsPath+"/{sha256}"), Method: http.MethodPut, Path: uploadsPath + "/{sha256}",
		Summary: "The PUT of an upload grant; its address is its authority", Tags: []string{"research"},
		Parameters:  []*huma.Param{name, query("grant"), query("signature")},
		RequestBody: &huma.RequestBody{Required: true, Content: binary},
		Responses:   p.Responses(api.Registered{}, http.StatusOK),
	})
}
