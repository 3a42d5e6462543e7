package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const fleet = "/v1/compute/fleet/"

// grace is how long after a long poll's wait its answer may still come. A
// connection that is silent for longer is dead.
const grace = 15 * time.Second

// worker is the address of one node, and below it those that its credential opens.
func worker(id string) string { return fleet + "workers/" + url.PathEscape(id) }

// of is the address of one activity below its node.
func of(id, act string) string { return worker(id) + "/activities/" + url.PathEscape(act) }

// PutWorker registers or refreshes a node. 409 conflict: the id is another
// install's; 410 gone: the node was removed.
func (c *Client) PutWorker(ctx context.Context, id string, w WorkerPut) (WorkerStored, error) {
	var out WorkerStored
	err := c.call(ctx, http.MethodPut, worker(id), nil, w, &out)
	return out, err
}

// DeleteWorker removes a node and revokes its credential.
func (c *Client) DeleteWorker(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, worker(id), nil, nil, nil)
}

// Workers lists the org's nodes.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	var out Workers
	err := c.call(ctx, http.MethodGet, fleet+"workers", nil, nil, &out)
	return out.Workers, err
}

// Claim waits for work, at most in.Wait seconds and a grace of fifteen. Nothing to
// do is the zero Claimed. 409 conflict: the key is not the node's; 410 gone: the
// node was removed.
func (c *Client) Claim(ctx context.Context, id string, in Claim) (Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Wait)*time.Second+grace)
	defer cancel()
	var out Claimed
	err := c.call(ctx, http.MethodPost, worker(id)+"/claim", nil, in, &out)
	return out, err
}

// Offers is Claim with the envelopes unread: one that is not of its form is that
// activity's failure, and keeps its node neither from the others nor from the stops.
// An answer of more than 1 MiB, which is far more than [MaxStarts] envelopes and a
// thousand stops take, is an error: what asks all day must not be made to hold more.
func (c *Client) Offers(ctx context.Context, id string, in Claim) (Offered, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Wait)*time.Second+grace)
	defer cancel()
	var out Offered
	err := c.callFor(ctx, http.MethodPost, worker(id)+"/claim", nil, in, &out, 1<<20)
	return out, err
}

// Report says how an activity is. 409 illegal_transition, 410 gone: it was
// cancelled. A repeated report is answered as the first was.
func (c *Client) Report(ctx context.Context, id, act string, r StateReport) error {
	return c.call(ctx, http.MethodPost, of(id, act)+"/state", nil, r, nil)
}

// NodeTree answers the files of a tree that the activity names.
func (c *Client) NodeTree(ctx context.Context, id, act, hash string) (Tree, error) {
	var out Tree
	err := c.call(ctx, http.MethodGet, of(id, act)+"/trees/"+url.PathEscape(hash), nil, nil, &out)
	return out, err
}

// NodeBlob answers the bytes of a file of that tree from offset on, as
// [Client.Artifact] does its own.
func (c *Client) NodeBlob(ctx context.Context, id, act, hash, sha256 string, offset int64) (io.ReadCloser, error) {
	return c.open(ctx, of(id, act)+"/trees/"+url.PathEscape(hash)+"/"+url.PathEscape(sha256), offset)
}

// RecordOf is a client that writes the record of one activity with its node's
// credential: its research calls go below the node's own address, and reach the run
// of the activity's name and no other.
func (c *Client) RecordOf(id, act string) *Client {
	below := *c
	below.prefix = of(id, act) + "/record"
	return &below
}

// PutTree says what files a tree has, and learns which of them to send.
func (c *Client) PutTree(ctx context.Context, hash string, t Tree) (TreeStored, error) {
	var out TreeStored
	err := c.call(ctx, http.MethodPut, fleet+"trees/"+url.PathEscape(hash), nil, t, &out)
	return out, err
}

// PutBlob sends one file's bytes.
func (c *Client) PutBlob(ctx context.Context, sha256 string, size int64, r io.Reader) error {
	return c.stream(ctx, http.MethodPut, fleet+"blobs/"+url.PathEscape(sha256), size, r)
}

// Enqueue asks a node for work. 403 denied names the rule of the node's policy,
// 404 an unknown node, 409 one that is offline or serves that model already.
func (c *Client) Enqueue(ctx context.Context, in Enqueue) (Activity, error) {
	var out Activity
	err := c.call(ctx, http.MethodPost, fleet+"activities", nil, in, &out)
	return out, err
}

// Activity answers one activity.
func (c *Client) Activity(ctx context.Context, act string) (Activity, error) {
	var out Activity
	err := c.call(ctx, http.MethodGet, fleet+"activities/"+url.PathEscape(act), nil, nil, &out)
	return out, err
}

// Activities lists activities, the newest first.
func (c *Client) Activities(ctx context.Context, q ActivityQuery) ([]Activity, error) {
	var out Activities
	v := values("node", q.Node, "state", string(q.State), "after", q.After, "limit", limit(q.Limit))
	err := c.call(ctx, http.MethodGet, fleet+"activities", v, nil, &out)
	return out.Activities, err
}

// Cancel asks for an activity's end, and answers it as it is.
func (c *Client) Cancel(ctx context.Context, act string) (Activity, error) {
	var out Activity
	err := c.call(ctx, http.MethodDelete, fleet+"activities/"+url.PathEscape(act), nil, nil, &out)
	return out, err
}

// WorkloadEvents answers the feed after a seq, waiting up to wait seconds for the
// first when there is none; 0 does not wait.
func (c *Client) WorkloadEvents(ctx context.Context, after uint64, wait int) ([]WorkloadEvent, error) {
	v := url.Values{"after": {strconv.FormatUint(after, 10)}}
	if wait > 0 {
		v.Set("wait", strconv.Itoa(wait))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Second+grace)
	defer cancel()
	var out Page[WorkloadEvent]
	err := c.call(ctx, http.MethodGet, fleet+"events", v, nil, &out)
	return out.Data, err
}
