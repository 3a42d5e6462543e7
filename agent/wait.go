package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hanzoai/link/control/api"
)

// pace is how long an agent waits for things. Tests have less time.
type pace struct {
	first, most time.Duration // the first wait of a back-off, and the longest
	longest     time.Duration // the most of a Retry-After that is obeyed
	rest        time.Duration // the longest step of a wait: each feeds the watchdog
	hello       time.Duration // for the launcher's first word, before the node registers without it
	again       time.Duration // from a lost launcher to the registration that says so
	progress    time.Duration // between two reports of a pull's progress
	write       time.Duration // for the launcher to take a request
	facts       time.Duration // for what the host is
	end         time.Duration // from the context's end to Run's return
	unlink      time.Duration // the same, where records are still to be sent
}

var usual = pace{
	first: time.Second, most: time.Minute, longest: 10 * time.Minute, rest: 30 * time.Second,
	hello: 5 * time.Second, again: 5 * time.Second, progress: 5 * time.Second,
	write: 10 * time.Second, facts: 30 * time.Second, end: 25 * time.Second, unlink: 80 * time.Second,
}

// backoff is how long to wait before the same is tried again. The zero backoff is
// that of something which has not failed.
type backoff struct{ last time.Duration }

// next is the wait after one more failure: twice the last one, a quarter more at
// random so that many machines do not come back at once, and what the server asked
// for at least. A failure that time alone will not mend waits the longest at once.
func (b *backoff) next(p pace, slow bool, asked time.Duration) time.Duration {
	switch {
	case slow:
		b.last = p.most
	case b.last == 0:
		b.last = p.first
	default:
		b.last = min(2*b.last, p.most)
	}
	return max(b.last+rand.N(b.last/4+1), min(asked, p.longest))
}

// explain says what a failed call means for the owner, and whether time alone may
// mend it.
func explain(err error) (problem string, slow bool) {
	if expired, ok := errors.AsType[x509.CertificateInvalidError](err); ok && expired.Reason == x509.Expired {
		return fmt.Sprintf("the cloud's certificate is not valid at the time of this machine's clock, %s: check the clock (timedatectl)", time.Now().UTC().Format(time.RFC3339)), false
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return plain("the cloud's certificate is not trusted here: a proxy that opens TLS needs its authority among the system's: " + err.Error()), false
	}
	p, ok := errors.AsType[*api.Problem](err)
	switch {
	case !ok:
		return plain(err.Error()), false
	case p.Status == http.StatusUnauthorized:
		return plain("the cloud does not accept this machine's credential: to link it again, run sudo hanzo link: " + p.Error()), true
	case api.Is(err, api.Conflict):
		return plain("this machine's name is linked by another install, whose key is another: to link this one again, run sudo hanzo link: " + p.Error()), true
	case p.Status == http.StatusForbidden:
		return plain("the cloud does not let this machine ask: " + p.Error()), true
	}
	return plain(p.Error()), false
}

// clock is how far this machine's clock is from the cloud's, by the dates of answers.
type clock struct{ skew atomic.Int64 } // the cloud's time less ours, in seconds

// tolerated is the difference of clocks that is not worth a word.
const tolerated = 30 * time.Second

// problem names a difference that matters: deadlines are absolute times.
func (c *clock) problem() string {
	skew := time.Duration(c.skew.Load()) * time.Second
	side := "behind"
	if skew < 0 {
		side = "ahead of"
	}
	if skew.Abs() <= tolerated {
		return ""
	}
	return fmt.Sprintf("this machine's clock is about %v %s the cloud's: deadlines are judged by it; set the clock (timedatectl)", skew.Abs().Round(10*time.Second), side)
}

// dated notes the dates of answers.
type dated struct {
	http.RoundTripper
	clock *clock
}

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			d.clock.skew.Store(int64(time.Until(date).Round(time.Second) / time.Second))
		}
	}
	return resp, err
}

// CloseIdleConnections makes [http.Client.CloseIdleConnections] reach the transport.
func (d dated) CloseIdleConnections() {
	if c, ok := d.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// transport makes the client of every call. Ours speaks HTTP/1.1, where a call that
// was given up takes its connection along: with HTTP/2 the next call would share the
// dead one.
func transport(given *http.Client, c *clock) *http.Client {
	var client http.Client
	if given != nil {
		client = *given
	}
	if client.CheckRedirect == nil {
		// A credential must not travel to where an answer points.
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	if client.Transport == nil {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		dialer := &net.Dialer{Timeout: 10 * time.Second}
		client.Transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			Protocols:           protocols,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConnsPerHost: 4,
			ReadBufferSize:      4 << 10,
			WriteBufferSize:     4 << 10,
			// Expect: 100-continue of an upload.
			ExpectContinueTimeout: 5 * time.Second,
		}
	}
	client.Transport = dated{client.Transport, c}
	return &client
}
