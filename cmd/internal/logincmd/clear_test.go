package logincmd

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// elsewhere is a listener that other machines can reach, where this host has an address
// for one. It tells of every connection that is made to it.
func elsewhere(t *testing.T) (base string, reached func() bool) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.To4() == nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(ip.IP.String(), "0"))
		if err != nil {
			continue
		}
		came := make(chan struct{}, 1)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				select {
				case came <- struct{}{}:
				default:
				}
			}
		}()
		t.Cleanup(func() { l.Close() })
		return "http://" + l.Addr().String(), func() bool {
			// The kernel queues in order: when our own has been taken, so has any before.
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			<-came
			select {
			case <-came:
				return true
			default:
				return false
			}
		}
	}
	t.Skip("this host has no address that is not its own alone")
	return "", nil
}

// No token leaves this machine in clear, whoever named the address.
func TestNoTokenInClear(t *testing.T) {
	base, reached := elsewhere(t)
	c := start(t, "")
	name := c.tokenFile(0o600)
	status, _, errs := c.login(nil, base, "--token-file", name)
	if status != term.Failed || !strings.Contains(errs, "it must be https") {
		t.Errorf("login: status %d: %s", status, errs)
	}
	if _, err := os.Stat(filepath.Join(c.home, ".hanzo", "login.json")); err == nil {
		t.Error("the login was kept")
	}

	kept, err := canon.Marshal(login{API: base, Org: "acme", Name: "alice", TokenFile: name})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.home, ".hanzo"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.home, ".hanzo", "login.json"), kept, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, env := range [][2]string{{"", ""}, {base, ""}, {base + "/", ""}, {base, name}} {
		t.Setenv("HANZO_API", env[0])
		t.Setenv("HANZO_TOKEN_FILE", env[1])
		if client, err := Client(); err == nil || !strings.Contains(err.Error(), "it must be https") {
			t.Errorf("%v: %v, %v", env, client, err)
		}
	}
	if reached() {
		t.Error("it was called")
	}
}

func TestPrivate(t *testing.T) {
	for address, private := range map[string]bool{
		"https://control.example": true, "http://127.0.0.1:8334": true, "http://[::1]:8334": true, "http://localhost:1": true,
		"http://192.0.2.2:8378": false, "http://control.example": false, "http://127.0.0.1.example": false,
		"http://localhost.example": false, "http://0.0.0.0:1": false, "http://[::ffff:192.0.2.2]:1": false,
		"http://127.0.0.1@192.0.2.2": false, "ftp://127.0.0.1": false, "": false, "HTTP://192.0.2.2": false,
	} {
		if err := api.Private("it", address); (err == nil) != private {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A server that takes a call and never answers is told in plain words.
func TestSilence(t *testing.T) {
	late := &url.Error{Op: "Get", URL: "http://x", Err: context.DeadlineExceeded}
	if got := silence(late, "http://x").Error(); !strings.HasPrefix(got, "no answer from http://x within 30 s: ") {
		t.Error(got)
	}
	other := &url.Error{Op: "Get", URL: "http://x", Err: errors.New("refused")}
	if got := silence(other, "http://x"); got != error(other) {
		t.Error(got)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // which nobody accepts from
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	slow := &http.Client{Timeout: 1}
	if _, err := slow.Get("http://" + l.Addr().String()); !strings.HasPrefix(silence(err, "it").Error(), "no answer from it") {
		t.Error(err)
	}
}
