package control_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

const installKey = "9b1c0e6f2a4d4e0b8c7f3a5d1e2b6c90"

// A machine is a linked node, as the client of its credential.
type machine struct {
	*client
	id, key string
}

// with makes a client of any token.
func (c *cloud) with(token string) *client {
	return &client{c.t, &api.Client{Base: c.base, Token: func() (string, error) { return token, nil }}}
}

// person makes a client of a fresh token.
func (c *cloud) person(id api.Identity) *client {
	c.t.Helper()
	token, err := c.store.Mint(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.with(token)
}

// link registers a node of a person's org, whose owner admits train.fit.
func (p *client) link(s *cloud, id string) *machine {
	p.t.Helper()
	return p.linkAs(s, id, installKey)
}

// linkAs is link, of the install of a key.
func (p *client) linkAs(s *cloud, id, key string) *machine {
	p.t.Helper()
	const text = `{"kinds":["train.fit"],"orgs":["acme","globex"],"caps":{"cpus":8,"disk":1073741824,"memory":1073741824,"vram":0},"concurrency":4}`
	stored, err := p.PutWorker(p.t.Context(), id, api.WorkerPut{Key: key, WorkerFacts: api.WorkerFacts{
		Hostname: id, OS: "linux", Arch: "x86_64", CPUs: 8, Memory: 1 << 34, Disk: 1 << 40, GPUs: []api.GPU{}, Lanes: []string{},
		Offers: []string{policy.TrainFit}, Policy: canon.Raw(text), PolicySHA256: string(canon.Sum([]byte(text))), Version: "test",
	}})
	p.must(err)
	m := &machine{s.with(stored.Credential), id, key}
	_, err = m.Claim(p.t.Context(), id, api.Claim{Key: m.key, Wait: 1, Running: []api.Running{}}) // online from now on
	p.must(err)
	return m
}

// tree puts a tree of files whole.
func (p *client) tree(files map[string]string) string {
	p.t.Helper()
	hash, t := treeOf(files)
	stored, err := p.PutTree(p.t.Context(), hash, t)
	p.must(err)
	for _, sha := range stored.Missing {
		for _, content := range files {
			if string(canon.Sum([]byte(content))) == sha {
				p.must(p.PutBlob(p.t.Context(), sha, int64(len(content)), strings.NewReader(content)))
			}
		}
	}
	return hash
}

func treeOf(files map[string]string) (string, api.Tree) {
	var list []policy.TreeFile
	var t api.Tree
	for path, content := range files {
		f := policy.TreeFile{Path: path, SHA256: string(canon.Sum([]byte(content))), Size: int64(len(content))}
		list, t.Files = append(list, f), append(t.Files, api.TreeFile(f))
	}
	return policy.TreeHash(list), t
}

// fit asks a node to train on two trees.
func (p *client) fit(node, stage, base string) api.Activity {
	p.t.Helper()
	input := fmt.Sprintf(`{"stage":%q,"base":%q,"memory":67108864,"cpus":1,"disk":1048576,"vram":0,"gpus":[],"maxSec":60}`, stage, base)
	a, err := p.Enqueue(p.t.Context(), api.Enqueue{Node: node, Kind: policy.TrainFit, Input: canon.Raw(input)})
	p.must(err)
	return a
}

// report says how an activity is.
func (m *machine) report(act string, r api.StateReport) {
	m.t.Helper()
	r.Key = m.key
	m.must(m.Report(m.t.Context(), m.id, act, r))
}

// end reports an activity's end.
func (m *machine) end(act string) {
	m.t.Helper()
	m.report(act, api.StateReport{State: activity.Stopped, Reason: activity.Done})
}

// send makes a request whose path is sent as it is given, byte for byte.
func (c *client) send(method, path, body string) (int, http.Header, api.Problem) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.Base, strings.NewReader(body))
	c.must(err)
	path, query, _ := strings.Cut(path, "?")
	req.URL.Opaque, req.URL.RawQuery = path, query
	if token, _ := c.Token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	direct := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := direct.Do(req)
	c.must(err)
	defer resp.Body.Close()
	var p api.Problem
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode >= 400 && method != http.MethodHead {
		if err := json.Unmarshal(b.Bytes(), &p); err != nil {
			c.t.Errorf("%s %s: %d without a problem: %.200q", method, path, resp.StatusCode, b.Bytes())
		}
	}
	return resp.StatusCode, resp.Header, p
}

// TestAccess is the whole table of routes and credentials. Every route of the
// document stands in it, and those that the document leaves out.
func TestAccess(t *testing.T) {
	const node = "/v1/compute/fleet/workers/{id}"
	const act = node + "/activities/{activity}"
	const record = act + "/record/v1"
	const anyone, people, nodes, both = "anyone", "people", "nodes", "both"
	table := map[string]string{
		"GET /healthz":                          anyone,
		"GET /openapi.json":                     anyone,
		"GET /.well-known/openid-configuration": anyone,
		"PUT /v1/research/uploads/{sha256}":     anyone,

		"GET /v1/iam/oauth/userinfo":            people,
		"POST /v1/research/datasets":            people,
		"GET /v1/research/datasets":             people,
		"GET /v1/research/datasets/{id}":        people,
		"DELETE /v1/research/datasets/{id}":     people,
		"POST /v1/research/datasets/{id}/items": people,
		"GET /v1/research/datasets/{id}/items":  people,
		"POST /v1/research/datasets/{id}/seal":  people,
		"POST /v1/research/artifacts":           people,
		"GET /v1/research/artifacts":            people,
		"GET /v1/research/artifacts/{sha256}":   people,
		"POST /v1/research/gates":               people,
		"GET /v1/research/gates":                people,
		"GET /v1/research/gates/{hash}":         people,
		"POST /v1/research/determinism":         people,
		"GET /v1/research/determinism":          people,
		"POST /v1/research/runs/{id}/events":    people,
		"GET /v1/research/runs/{id}/events":     people,
		"GET /v1/research/runs/{id}":            people,
		"GET /v1/research/runs":                 people,
		"GET /v1/research/evaluations":          people,
		"GET /v1/research/evaluations/{id}":     people,

		"GET /v1/compute/fleet/workers":                  people,
		"POST /v1/compute/fleet/activities":              people,
		"GET /v1/compute/fleet/activities":               people,
		"GET /v1/compute/fleet/activities/{activity}":    people,
		"DELETE /v1/compute/fleet/activities/{activity}": people,
		"GET /v1/compute/fleet/events":                   people,
		"PUT /v1/compute/fleet/trees/{hash}":             people,
		"PUT /v1/compute/fleet/blobs/{sha256}":           people,

		"PUT " + node:                           both,
		"DELETE " + node:                        both,
		"POST " + node + "/claim":               nodes,
		"POST " + act + "/state":                nodes,
		"GET " + act + "/trees/{hash}":          nodes,
		"GET " + act + "/trees/{hash}/{sha256}": nodes,

		"GET " + record + "/iam/oauth/userinfo":                nodes,
		"POST " + record + "/research/artifacts":               nodes,
		"POST " + record + "/research/datasets":                nodes,
		"POST " + record + "/research/datasets/{object}/items": nodes,
		"POST " + record + "/research/datasets/{object}/seal":  nodes,
		"POST " + record + "/research/gates":                   nodes,
		"POST " + record + "/research/runs/{object}/events":    nodes,
	}

	s := start(t)
	member := s.client("acme")
	_, _, body := member.raw("GET", "/openapi.json", nil)
	var doc struct{ Paths map[string]map[string]any }
	member.must(json.Unmarshal(body, &doc))
	for path, methods := range doc.Paths {
		for method := range methods {
			if _, decided := table[strings.ToUpper(method)+" "+path]; !decided {
				t.Errorf("%s %s is in the document, and nobody decided whom it opens to", strings.ToUpper(method), path)
			}
		}
	}

	credential := func(org, id string) string {
		c, err := s.store.MintNode(t.Context(), org, id, installKey, org+"/alice")
		member.must(err)
		return c
	}
	gone := credential("acme", "gone")
	member.must(s.store.RevokeNode(t.Context(), "acme", "gone"))
	replaced := credential("acme", "evo")
	own := credential("acme", "evo")
	if _, ok, err := s.store.IdentifyNode(t.Context(), own); !ok || err != nil { // its first use ends the one before
		t.Fatal(ok, err)
	}
	callers := []struct {
		name string
		*client
		may func(who, id string) string // the code of the refusal; empty: none of ours
	}{
		{"nobody", s.with(""), func(string, string) string { return "unauthorized" }},
		{"an unknown token", s.with(strings.Repeat("A", 43)), func(string, string) string { return "unauthorized" }},
		{"a token with dots", s.with("eyJhbGciOiJub25lIn0.e30."), func(string, string) string { return "unauthorized" }},
		{"a credential that was replaced", s.with(replaced), func(string, string) string { return "unauthorized" }},
		{"a member", member, func(who, _ string) string {
			if who == nodes {
				return "forbidden"
			}
			return ""
		}},
		{"an admin", s.person(api.Identity{Owner: "acme", Name: "root", Project: "default", Admin: true}), func(who, _ string) string {
			if who == nodes {
				return "forbidden"
			}
			return ""
		}},
		{"the node", s.with(own), func(who, id string) string {
			if who == people || id != "evo" {
				return "forbidden"
			}
			return ""
		}},
		{"a removed node", s.with(gone), func(who, id string) string {
			if who == people || id != "gone" {
				return "unauthorized"
			}
			return "gone"
		}},
	}
	hash := strings.Repeat("0", 64)
	for route, who := range table {
		for _, c := range callers {
			for _, id := range []string{"evo", "gone", "ovo"} {
				method, path, _ := strings.Cut(route, " ")
				below := strings.HasPrefix(path, node)
				if !below && id != "evo" {
					continue
				}
				if below {
					path = strings.Replace(path, "{id}", id, 1)
				}
				path = strings.NewReplacer("{id}", "x", "{activity}", "act_1", "{hash}", hash, "{sha256}", hash, "{object}", "act_1").Replace(path)
				want := c.may(who, id)
				if who == anyone {
					want = ""
				}
				status, _, p := c.send(method, path, "")
				if ours := map[api.Code]bool{"unauthorized": true, "forbidden": true, "gone": true}; string(p.Code) != want && (want != "" || ours[p.Code]) {
					t.Errorf("%s: %s %s = %d %s (%s), want %q", c.name, method, path, status, p.Code, p.Detail, want)
				}
				// HEAD is GET without a body, and no way round.
				if method == "GET" {
					if head, _, _ := c.send("HEAD", path, ""); head != status {
						t.Errorf("%s: HEAD %s = %d, and GET %d", c.name, path, head, status)
					}
				}
			}
		}
	}

	// What is no route: a person is told so, a node only that it is not its own.
	for _, tt := range []struct{ method, path string }{
		{"GET", "/v1/nothing"}, {"PATCH", "/v1/compute/fleet/workers/evo"}, {"GET", "/v1/compute/fleet/workers/evo"},
		{"POST", "/v1/compute/fleet/workers/evo/activities/act_1/trees/" + hash}, {"GET", "/v1/compute/fleet/workers/evo/claim"},
		{"PUT", "/v1/compute/fleet/workers/evo/claim"}, {"GET", "/v1/compute/fleet/workers/evo/"}, {"POST", "/v1/research/uploads/" + hash},
		{"OPTIONS", "/v1/compute/fleet/workers/evo/claim"}, {"TRACE", "/v1/compute/fleet/workers/evo/claim"},
	} {
		if status, _, p := s.with(own).send(tt.method, tt.path, ""); status != 403 || p.Code != api.Forbidden {
			t.Errorf("the node: %s %s = %d %s", tt.method, tt.path, status, p.Code)
		}
		if status, _, p := member.send(tt.method, tt.path, ""); status != 404 && status != 405 {
			t.Errorf("a member: %s %s = %d %s", tt.method, tt.path, status, p.Code)
		}
	}
}

// TestPathTricks spells routes in ways that two readers could read differently. None
// opens what the plain spelling does not, and none is redirected, token and all.
func TestPathTricks(t *testing.T) {
	s := start(t)
	alice := s.client("acme")
	m := alice.link(s, "evo")
	alice.link(s, "ovo")
	stage := alice.tree(map[string]string{"stage.json": "{}"})
	mine, other := alice.fit("evo", stage, stage), alice.fit("ovo", stage, stage)
	base := "/v1/compute/fleet/workers/evo/activities/" + mine.Activity
	before := alice.datasets()
	for _, path := range []string{
		// Out of the node, and into another.
		"/v1/compute/fleet/workers/evo/../ovo/activities/" + other.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/evo/%2e%2e/ovo/activities/" + other.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/evo%2f..%2fovo/activities/" + other.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers//evo/activities/" + mine.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/./evo/activities/" + mine.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/%65vo/activities/" + mine.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/EVO/activities/" + mine.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/evo/activities/" + other.Activity + "/trees/" + stage,
		"/v1/compute/fleet/workers/evo/activities/..%2f..%2fovo%2factivities%2f" + other.Activity + "/trees/" + stage,
		// Files that no tree of the activity names.
		base + "/trees/..%2f..%2fcontrol.db",
		base + "/trees/" + stage + "/..%2fresearch.db",
		base + "/trees/" + stage + "/%2e%2e",
		base + "/trees/" + stage + "/..",
		base + "/trees/" + strings.ToUpper(stage),
		// Out of the record.
		base + "/record/v1/research/runs",
		base + "/record/v1/research/runs/" + mine.Activity,
		base + "/record/v1/research/runs/" + mine.Activity + "/events",
		base + "/record/v1/research/datasets",
		base + "/record/v1/research/artifacts",
		base + "/record/v1/research/artifacts/" + stage,
		base + "/record/v1/compute/fleet/workers",
		base + "/record/v1/iam/oauth/../../research/runs",
		base + "/record/v1/iam%2foauth%2fuserinfo",
		base + "/record%2fv1/iam/oauth/userinfo",
		base + "/record/v1//iam/oauth/userinfo",
		base + "/record/openapi.json",
		base + "/record",
		base + "/record/",
		"/v1/compute/fleet/workers/evo/activities/x/record/v1/iam/oauth/userinfo",
		"/v1/compute/fleet/workers/evo/activities/record%2fv1/record/v1/iam/oauth/userinfo",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			if status, header, _ := m.send(method, path, ""); status != 403 && status != 404 || header.Get("Location") != "" {
				t.Errorf("%s %s = %d, Location %q", method, path, status, header.Get("Location"))
			}
		}
	}
	create, err := json.Marshal(api.DatasetCreate{ID: "evil", Purpose: "train", Title: "x", License: "x", Origin: "x", Parents: []string{}})
	alice.must(err)
	for _, path := range []string{
		base + "/record/v1/research/datasets/..%2f..%2fdatasets/items",
		base + "/record/v1/research/datasets/%2e%2e/seal",
		base + "/record/v1/research/./datasets",
		base + "/record/v1/research//datasets",
		base + "/record/v1/research/datasets/",
		base + "/record/v1/research/datasets%2f",
		base + "/record/v1/research%2fdatasets",
		base + "/record/../record/v1/research/datasets",
		base + "/record/v1/research/runs/..%2f..%2fdatasets/events",
		base + "/record/v1/research/runs/other/events",
		base + "/record/v1/research/runs/" + other.Activity + "/events",
		base + "/record/v1/research/runs/" + mine.Activity + "%00/events",
		base + "/record/v1/research/runs/" + mine.Activity + "%20/events",
		base + "/record/v1/research/runs/" + strings.ToLower(mine.Activity) + "/events",
		base + "/record/v1/research/runs/" + url.PathEscape("../"+mine.Activity) + "/events",
		base + "/record/v1/research/runs/" + mine.Activity + "%2fevents",
		base + "/record/v1/compute/fleet/activities",
		base + "/record/v1/compute/fleet/workers/evo/claim",
		base + "/record/v1/compute/fleet/workers/evo/activities/" + mine.Activity + "/record/v1/research/datasets",
		"/v1/compute/fleet/workers/evo/activities/" + other.Activity + "/record/v1/research/datasets",
		"/v1/compute/fleet/workers/ovo/activities/" + other.Activity + "/record/v1/research/datasets",
		"/v1/compute/fleet/workers/ovo/activities/" + mine.Activity + "/record/v1/research/datasets",
		"/v1/compute/fleet/workers/evo/activities/act_unknown/record/v1/research/datasets",
		"/v1/research/datasets",
	} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			if status, header, p := m.send(method, path, string(create)); status < 400 || header.Get("Location") != "" {
				t.Errorf("%s %s = %d %s, Location %q", method, path, status, p.Code, header.Get("Location"))
			}
		}
	}
	if after := alice.datasets(); after != before {
		t.Errorf("%d datasets were made", after-before)
	}
	// The plain spellings of both do open.
	if status, _, p := m.send("GET", base+"/trees/"+stage, ""); status != 200 {
		t.Errorf("the tree: %d %s", status, p.Code)
	}
	if status, _, p := m.send("POST", base+"/record/v1/research/datasets", string(create)); status != 200 {
		t.Errorf("the record: %d %s %s", status, p.Code, p.Detail)
	}
}

func (c *client) datasets() int {
	c.t.Helper()
	list, err := c.Datasets(c.t.Context(), api.DatasetQuery{})
	c.must(err)
	return len(list)
}
