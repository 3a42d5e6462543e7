package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hanzoai/link/spool/canon"
)

const (
	callTimeout = 60 * time.Second // a whole call, so that a server that never answers costs this much
	uploadFloor = 64 << 10         // bytes a second below which an upload is given up
	maxAnswer   = 64 << 20         // bytes of one JSON answer
	maxRefusal  = 64 << 10         // bytes of a refusal; what follows is not read
	largeBody   = 1 << 20          // a body over it is sent once the server agrees to read it, so that a refusal is heard
)

// Client calls a control plane. It retries nothing: [Retryable] says which
// errors are worth another try, and every write may be repeated. Its methods may
// be called concurrently once the fields are set.
//
// A method's error is a [*Problem] when the server refused, and otherwise says
// which call could not be made or answered. Neither holds the token or the
// signature of an upload address.
type Client struct {
	// Base is the server's address, as http://127.0.0.1:8334.
	Base string

	// Token gives the bearer token for each call.
	Token func() (string, error)

	// HTTP is the transport; nil means one without redirects. Deadlines are set
	// for each call.
	HTTP *http.Client

	prefix string // before every path; see RecordOf
}

// direct follows no redirect: none of our routes has one, and a token must not
// travel to where an answer points.
var direct = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// ErrNoServer is returned by [FromEnvironment] when no control plane is named.
var ErrNoServer = errors.New("no control plane: set HANZO_API to its address, as printed by hanzo-cloud serve")

// FromEnvironment makes the client of $HANZO_API, whose token is in the file
// $HANZO_TOKEN_FILE, by default ~/.hanzo/token. The file is read at each call.
func FromEnvironment() (*Client, error) {
	base := os.Getenv("HANZO_API")
	if base == "" {
		return nil, ErrNoServer
	}
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("HANZO_API=%s cannot be called: give http://HOST:PORT, as hanzo-cloud serve prints it", base)
	}
	if err := Private("HANZO_API", base); err != nil {
		return nil, err
	}
	name := os.Getenv("HANZO_TOKEN_FILE")
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("finding the token file: %w; set HANZO_TOKEN_FILE", err)
		}
		name = filepath.Join(home, ".hanzo", "token")
	}
	return &Client{Base: base, Token: TokenFile(name)}, nil
}

// Private refuses the address of what, to which a token goes, where others could
// listen in: plain http anywhere but on this machine.
func Private(what, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%s: %.200q is no address", what, address)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%s: %.200q is not encrypted, and tokens go there: it must be https", what, address)
	}
	return nil
}

// TokenFile reads a bearer token from a file that only its owner can read.
func TokenFile(name string) func() (string, error) {
	return func() (string, error) {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("reading the token: %w; hanzo-cloud serve prints where it keeps it, HANZO_TOKEN_FILE names it", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return "", fmt.Errorf("token file %s has mode %04o: others can read it; chmod 600 it", name, info.Mode().Perm())
		}
		b, err := io.ReadAll(io.LimitReader(f, 16<<10))
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		token := strings.TrimSpace(string(b))
		if token == "" {
			return "", fmt.Errorf("token file %s is empty", name)
		}
		return token, nil
	}
}

// transportError is a call that was not answered whole.
type transportError struct {
	call   string // method and path
	err    error
	waited time.Duration // for an answer, of which nothing came; 0 where some did
}

func (e *transportError) Error() string {
	if e.waited > 0 && errors.Is(e.err, context.DeadlineExceeded) {
		return fmt.Sprintf("%s: no answer within %d s: is the control plane running and reachable, and its address right?", e.call, e.waited/time.Second)
	}
	return e.call + ": " + e.err.Error()
}
func (e *transportError) Unwrap() error { return e.err }

// Retryable reports whether the same call may succeed later without a change:
// the network failed, the answer was cut short or did not come in time, or the
// server said 408, 429 or 5xx. The duration is what the server asked to wait,
// zero when it did not say. A cancelled context is not retryable.
func Retryable(err error) (bool, time.Duration) {
	if errors.Is(err, context.Canceled) {
		return false, 0
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		retry := p.Status == http.StatusRequestTimeout || p.Status == http.StatusTooManyRequests || p.Status >= 500
		return retry, p.RetryAfter
	}
	_, ok := errors.AsType[*transportError](err)
	return ok, 0
}

// call sends in (nil: no body) as canonical JSON and reads the answer into out
// (nil: discarded).
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	return c.callFor(ctx, method, path, query, in, out, maxAnswer)
}

// callFor is call of which the answer has at most so many bytes.
func (c *Client) callFor(ctx context.Context, method, path string, query url.Values, in, out any, most int64) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = canon.Marshal(in); err != nil {
			return fmt.Errorf("%s %s: encoding the request: %w", method, path, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(len(body)/uploadFloor)*time.Second)
	defer cancel()
	req, err := c.request(ctx, method, path, query, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if len(body) > largeBody {
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := c.send(req, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readAnswer(method+" "+path, resp, out, most)
}

// open reads the bytes at path from offset on. The caller closes them; they are as
// many as the answer says or the read ends in an error. The answer must begin within
// the time of a call; how long the bytes may take is for ctx to say.
func (c *Client) open(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	call := http.MethodGet + " " + path
	ctx, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(callTimeout, func() { cancel(context.DeadlineExceeded) })
	req, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		slow.Stop()
		cancel(nil)
		return nil, err
	}
	want := http.StatusOK
	if offset > 0 {
		want = http.StatusPartialContent
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := c.send(req, path)
	if !slow.Stop() && err != nil {
		err = &transportError{call, context.DeadlineExceeded, callTimeout}
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if resp.StatusCode != want {
		defer cancel(nil)
		defer resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			return nil, fmt.Errorf("%s: answered %d, and %d was due", call, resp.StatusCode, want)
		}
		return nil, readAnswer(call, resp, nil, maxAnswer)
	}
	return &body{resp.Body, cancel}, nil
}

// stream sends size bytes of r to path.
func (c *Client) stream(ctx context.Context, method, path string, size int64, r io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(size/uploadFloor)*time.Second)
	defer cancel()
	if size == 0 {
		r = http.NoBody
	}
	req, err := c.request(ctx, method, path, nil, r)
	if err != nil {
		return err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Expect", "100-continue") // a refusal comes before the bytes
	resp, err := c.send(req, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readAnswer(method+" "+path, resp, nil, maxAnswer)
}

// request makes one authenticated request.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	call := method + " " + path
	address := strings.TrimSuffix(c.Base, "/") + c.prefix + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, withoutURL(err))
	}
	token, err := c.Token()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	return req, nil
}

// send sends a request within the deadline of its context.
func (c *Client) send(req *http.Request, path string) (*http.Response, error) {
	began := time.Now()
	resp, err := c.client().Do(req)
	if err != nil {
		return nil, &transportError{req.Method + " " + path, withoutURL(err), time.Since(began).Round(time.Second)}
	}
	return resp, nil
}

func (c *Client) client() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return direct
}

// withoutURL drops the address that net/http puts before its errors: an upload
// address is a secret, and the call is named already.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// readAnswer turns a refusal into a Problem and decodes anything else into out. An
// answer of more than most bytes is an error, and is not read further.
func readAnswer(call string, resp *http.Response, out any, most int64) error {
	if resp.StatusCode/100 != 2 {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		if err != nil {
			return &transportError{call: call, err: fmt.Errorf("reading the answer: %w", err)}
		}
		return problemOf(call, resp, body)
	}
	// A proxy's page with 200 acknowledges nothing, and its 204 is no object.
	if empty := resp.StatusCode == http.StatusNoContent; empty != (out == nil) {
		switch out.(type) {
		case *Claimed, *Offered: // of which there may be none
			return nil
		}
		return fmt.Errorf("%s: answered %d, which is not this call's: is HANZO_API a control plane?", call, resp.StatusCode)
	}
	if out == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return &transportError{call: call, err: fmt.Errorf("reading the answer: %w", err)}
	}
	if int64(len(body)) > most {
		return fmt.Errorf("%s: the answer is over %d bytes", call, most)
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return fmt.Errorf("%s: answered %q, not application/json: is HANZO_API a control plane?", call, resp.Header.Get("Content-Type"))
	}
	if id, ok := out.(*Identity); ok {
		// An identity service answers more claims than these three.
		err = json.Unmarshal(body, id)
	} else {
		err = canon.Unmarshal(body, out)
	}
	if err != nil {
		return fmt.Errorf("%s: decoding the answer: %w", call, err)
	}
	return nil
}

// problemOf reads a refusal. One that is not a problem document (a proxy's page)
// keeps its status and gets no code.
func problemOf(call string, resp *http.Response, body []byte) *Problem {
	p := &Problem{}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" || json.Unmarshal(body, p) != nil {
		p = &Problem{Type: "about:blank", Title: http.StatusText(resp.StatusCode), Detail: "the answer is not a control plane's: a proxy, or something else at that address, gave it"}
	}
	p.Status = resp.StatusCode
	p.Detail = call + ": " + p.Detail
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
		p.RetryAfter = time.Duration(s) * time.Second
	} else if at, err := http.ParseTime(resp.Header.Get("Retry-After")); err == nil {
		p.RetryAfter = max(0, time.Until(at))
	}
	return p
}
