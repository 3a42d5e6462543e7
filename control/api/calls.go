package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

const research = "/v1/research/"

// Whoami answers whom the token speaks for.
func (c *Client) Whoami(ctx context.Context) (Identity, error) {
	var id Identity
	err := c.call(ctx, http.MethodGet, "/v1/iam/oauth/userinfo", nil, nil, &id)
	if err == nil && id.Owner == "" {
		err = fmt.Errorf("GET /v1/iam/oauth/userinfo: the answer names no owner: the token belongs to no org")
	}
	return id, err
}

// CreateDataset creates d, open. What the server sets (state, items, sha256 and
// the instants) is not sent. Repeated with the same content it answers the
// dataset as it is now.
func (c *Client) CreateDataset(ctx context.Context, d record.Dataset) (record.Dataset, error) {
	in := DatasetCreate{
		ID: d.ID, Purpose: d.Purpose, Title: d.Title, License: d.License, Origin: d.Origin,
		Parents: d.Parents, Benchmark: d.Benchmark,
	}
	var out record.Dataset
	err := c.call(ctx, http.MethodPost, research+"datasets", nil, in, &out)
	return out, err
}

// Dataset answers one dataset.
func (c *Client) Dataset(ctx context.Context, id string) (record.Dataset, error) {
	var out record.Dataset
	err := c.call(ctx, http.MethodGet, research+"datasets/"+url.PathEscape(id), nil, nil, &out)
	return out, err
}

// Datasets lists datasets.
func (c *Client) Datasets(ctx context.Context, q DatasetQuery) ([]record.Dataset, error) {
	v := values("purpose", string(q.Purpose), "benchmark", q.Benchmark, "after", q.After, "limit", limit(q.Limit))
	return list[record.Dataset](ctx, c, "datasets", v)
}

// DeleteDataset deletes a dataset that no run attached.
func (c *Client) DeleteDataset(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, research+"datasets/"+url.PathEscape(id), nil, nil, nil)
}

// AppendItems appends at most MaxItems items to an open dataset, all or none.
func (c *Client) AppendItems(ctx context.Context, dataset string, items []record.DatasetItem) (ItemsAppended, error) {
	var out ItemsAppended
	err := c.call(ctx, http.MethodPost, research+"datasets/"+url.PathEscape(dataset)+"/items", nil, ItemsAppend{Items: items}, &out)
	return out, err
}

// Items answers at most n items (0: MaxPage) in item_id order from the first
// after the id after. A sealed_eval dataset's are answered only for a run that
// attached it with role evaluate; otherwise run is empty. Their gold is null.
func (c *Client) Items(ctx context.Context, dataset, after string, n int, run string) ([]record.DatasetItem, error) {
	v := values("after", after, "limit", limit(n), "run", run)
	return list[record.DatasetItem](ctx, c, "datasets/"+url.PathEscape(dataset)+"/items", v)
}

// SealDataset seals a dataset; its answer has the sha256 to compare with one's own.
func (c *Client) SealDataset(ctx context.Context, id string) (record.Dataset, error) {
	var out record.Dataset
	err := c.call(ctx, http.MethodPost, research+"datasets/"+url.PathEscape(id)+"/seal", nil, nil, &out)
	return out, err
}

// RegisterArtifact registers a. With content (at most MaxInline bytes, as
// a.Compression says) the artifact is stored at once, and an empty a.SHA256 is
// taken from it; with nil the answer says stored or holds a grant for
// [Client.Upload].
func (c *Client) RegisterArtifact(ctx context.Context, a record.Artifact, content []byte) (Registered, error) {
	in := Registration{
		Kind: a.Kind, MediaType: a.MediaType, SchemaVersion: a.SchemaVersion, Purpose: a.Purpose,
		Size: a.Size, CompressedSize: a.CompressedSize, Compression: a.Compression, Producer: a.Producer, Parents: a.Parents,
	}
	if a.SHA256 != "" {
		in.SHA256 = &a.SHA256
	}
	if content != nil {
		s := base64.StdEncoding.EncodeToString(content)
		in.Content = &s
	}
	var out Registered
	err := c.call(ctx, http.MethodPost, research+"artifacts", nil, in, &out)
	return out, err
}

// Upload sends what g grants. r is read from the artifact's first byte, as it
// travels (compressed, when the registration said so); parts that the server
// already holds are read and skipped. It stops at the first part that fails;
// to go on, register again and upload what the new grant still lists.
func (c *Client) Upload(ctx context.Context, g Grant, r io.Reader) error {
	parts := g.Parts
	if g.Upload != nil {
		parts = []Upload{*g.Upload}
	}
	var at uint64
	for _, u := range parts {
		if u.Offset < at {
			return fmt.Errorf("upload: part %d starts at byte %d, before the end of the one before it", u.Number, u.Offset)
		}
		if _, err := io.CopyN(io.Discard, r, int64(u.Offset-at)); err != nil {
			return fmt.Errorf("upload: skipping to part %d: %w", u.Number, err)
		}
		if err := c.put(ctx, u, io.LimitReader(r, int64(u.Size))); err != nil {
			return err
		}
		at = u.Offset + u.Size
	}
	return nil
}

// put sends one part. Its errors name the part and never the address.
func (c *Client) put(ctx context.Context, u Upload, r io.Reader) error {
	call := fmt.Sprintf("PUT of part %d", u.Number)
	base, err := url.Parse(c.Base)
	if err != nil {
		return fmt.Errorf("%s: HANZO_API is not an address: %w", call, withoutURL(err))
	}
	address, err := base.Parse(u.URL)
	if err != nil {
		return fmt.Errorf("%s: the grant's url is not one: %w", call, withoutURL(err))
	}
	// A grant is followed without being believed: it sends these bytes to the control
	// plane itself, or by https to a store of its choosing, and nothing else anywhere.
	if u.Method != http.MethodPut || address.Scheme != "https" && (address.Scheme != base.Scheme || address.Host != base.Host) {
		return fmt.Errorf("%s: the grant asks for %.20q of another address by %.20q: want PUT, and https to any but the control plane", call, u.Method, address.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(u.Size/uploadFloor)*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, u.Method, address.String(), r)
	if err != nil {
		return fmt.Errorf("%s: %w", call, withoutURL(err))
	}
	req.ContentLength = int64(u.Size)
	req.Header.Set("Expect", "100-continue") // a refusal comes before the bytes
	if u.Size == 0 {
		req.Body = http.NoBody
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return &transportError{call: call, err: withoutURL(err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil // in whatever words: whether it came the registration says, which is asked again
	}
	return readAnswer(call, resp, nil, maxAnswer)
}

// Artifact answers a stored artifact's bytes, uncompressed. The caller closes
// them; they are as long as the artifact's size or the read ends in an error. The
// answer must begin within the time of a call; how long the bytes may take is for
// ctx to say.
func (c *Client) Artifact(ctx context.Context, sha256 canon.SHA256) (io.ReadCloser, error) {
	return c.open(ctx, research+"artifacts/"+url.PathEscape(string(sha256)), 0)
}

// body ends its call's context when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// Artifacts lists artifacts.
func (c *Client) Artifacts(ctx context.Context, q ArtifactQuery) ([]record.Artifact, error) {
	v := values("kind", string(q.Kind), "run", q.Run, "purpose", string(q.Purpose), "since", q.Since, "after", q.After, "limit", limit(q.Limit))
	return list[record.Artifact](ctx, c, "artifacts", v)
}

// PutGate stores g.
func (c *Client) PutGate(ctx context.Context, g gate.Gate) (GateStored, error) {
	var out GateStored
	err := c.call(ctx, http.MethodPost, research+"gates", nil, g, &out)
	return out, err
}

// Gate answers one gate.
func (c *Client) Gate(ctx context.Context, hash canon.Hash) (StoredGate, error) {
	var out StoredGate
	err := c.call(ctx, http.MethodGet, research+"gates/"+url.PathEscape(string(hash)), nil, nil, &out)
	return out, err
}

// Gates lists the versions of one name, or of all when it is empty.
func (c *Client) Gates(ctx context.Context, name string) ([]StoredGate, error) {
	return list[StoredGate](ctx, c, "gates", values("name", name))
}

// PutDeterminism stores r, whose environment the server must hold stored.
func (c *Client) PutDeterminism(ctx context.Context, r record.DeterminismReport) (DeterminismStored, error) {
	var out DeterminismStored
	err := c.call(ctx, http.MethodPost, research+"determinism", nil, r, &out)
	return out, err
}

// Determinism lists determinism reports.
func (c *Client) Determinism(ctx context.Context, q DeterminismQuery) ([]StoredDeterminism, error) {
	v := values("environment", string(q.Environment), "after", q.After, "limit", limit(q.Limit))
	return list[StoredDeterminism](ctx, c, "determinism", v)
}

// AppendEvents appends events, each the canonical bytes of one, in seq order and
// at most MaxEvents. When one is refused the error is a Problem whose Batch says
// what was applied before it and whose Seq is its seq.
func (c *Client) AppendEvents(ctx context.Context, run string, events []canon.Raw) (Appended, error) {
	var out Appended
	err := c.call(ctx, http.MethodPost, research+"runs/"+url.PathEscape(run)+"/events", nil, EventsAppend{Events: events}, &out)
	return out, err
}

// Events answers at most n events (0: MaxPage) of the log from the first after
// the seq after, verbatim.
func (c *Client) Events(ctx context.Context, run string, after uint64, n int) ([]canon.Raw, error) {
	v := values("after", strconv.FormatUint(after, 10), "limit", limit(n))
	return list[canon.Raw](ctx, c, "runs/"+url.PathEscape(run)+"/events", v)
}

// Run answers the view of one run.
func (c *Client) Run(ctx context.Context, run string) (Run, error) {
	var out Run
	err := c.call(ctx, http.MethodGet, research+"runs/"+url.PathEscape(run), nil, nil, &out)
	return out, err
}

// Runs lists views.
func (c *Client) Runs(ctx context.Context, q RunQuery) ([]Run, error) {
	v := values("kind", q.Kind, "status", q.Status, "tag", q.Tag, "job", q.Job,
		"since", q.Since, "until", q.Until, "after", q.After, "limit", limit(q.Limit))
	return list[Run](ctx, c, "runs", v)
}

// Evaluation answers one evaluation.
func (c *Client) Evaluation(ctx context.Context, id string) (Evaluation, error) {
	var out Evaluation
	err := c.call(ctx, http.MethodGet, research+"evaluations/"+url.PathEscape(id), nil, nil, &out)
	return out, err
}

// Evaluations lists evaluations.
func (c *Client) Evaluations(ctx context.Context, q EvaluationQuery) ([]Evaluation, error) {
	v := values("run", q.Run, "dataset", q.Dataset, "subject", q.Subject, "purpose", string(q.Purpose), "after", q.After, "limit", limit(q.Limit))
	return list[Evaluation](ctx, c, "evaluations", v)
}

// list reads one page of a listing.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	var page Page[T]
	err := c.call(ctx, http.MethodGet, research+path, query, nil, &page)
	return page.Data, err
}

// values makes a query of the pairs whose value is not empty.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

func limit(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
