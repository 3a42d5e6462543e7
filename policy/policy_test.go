package policy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
)

// written is what hanzo link writes on a fresh host, HIP-1172 A3.
const written = `{
"kinds": [],
"orgs": ["acme"],
"sources": [{"prefix": "huggingface.co/zenlm/", "hosts": ["huggingface.co", "*.hf.co"]}],
"models": [],
"caps": {"vram": 0, "memory": 0, "cpus": 0, "disk": 0},
"concurrency": 1,
"idleSec": 600,
"maxSec": 86400
}`

var zen = []Source{{Prefix: "huggingface.co/zenlm/", Hosts: []string{"huggingface.co", "*.hf.co"}}}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      Policy
	}{
		{"as hanzo link writes it", written,
			Policy{Kinds: []string{}, Orgs: []string{"acme"}, Sources: zen, Models: []string{}, Concurrency: 1, IdleSec: 600, MaxSec: 86400}},
		{"what is absent has its default", `{}`,
			Policy{Sources: zen, Concurrency: 1, IdleSec: 600, MaxSec: 86400}},
		{"a cap that is absent is 0", `{"caps": {"memory": 7}}`,
			Policy{Sources: zen, Caps: Caps{Memory: 7}, Concurrency: 1, IdleSec: 600, MaxSec: 86400}},
		{"0 and [] are not absent", `{"sources": [], "concurrency": 0, "idleSec": 0, "maxSec": 0}`,
			Policy{Sources: []Source{}}},
		{"everything at its highest", `{
			"kinds": ["engine.serve", "studio.render", "fn.run", "train.fit"],
			"orgs": ["acme", "Acme", "built-in"],
			"sources": [{"prefix": "example.com/", "hosts": []}],
			"models": ["example.com/a/b", "example.com/a/b@0123456789abcdef0123456789abcdef01234567"],
			"caps": {"vram": 9007199254740992, "memory": 9007199254740992, "cpus": 1024, "disk": 9007199254740992},
			"concurrency": 1024, "idleSec": 31622400, "maxSec": 31622400}`,
			Policy{
				Kinds:       []string{EngineServe, StudioRender, FnRun, TrainFit},
				Orgs:        []string{"acme", "Acme", "built-in"},
				Sources:     []Source{{Prefix: "example.com/", Hosts: []string{}}},
				Models:      []string{"example.com/a/b", "example.com/a/b@0123456789abcdef0123456789abcdef01234567"},
				Caps:        Caps{maxBytes, maxBytes, 1024, maxBytes},
				Concurrency: 1024, IdleSec: maxSeconds, MaxSec: maxSeconds,
			}},
	} {
		got, err := Parse([]byte(tt.src))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s:\n%s", tt.name, d)
		}
	}
}

// TestParseFaults holds each refusal to its words, for they are all that an owner
// has to mend the file by.
func TestParseFaults(t *testing.T) {
	const known = `["caps" "concurrency" "idleSec" "kinds" "maxSec" "models" "orgs" "sources"]`
	for _, tt := range []struct{ name, src, want string }{
		{"an empty file", "", `the file is empty; write at least {}, which admits nothing`},
		{"white space", " \n", `the file is empty; write at least {}, which admits nothing`},
		{"half a file", `{"kinds": [`, `line 1, byte 11 of it, is no JSON: it ends too early: a } or ] or a quote is missing`},
		{"two values", `{}{}`, `more than one JSON value`},
		{"a comment", "// mine\n{}", `line 1, byte 1 of it, is no JSON: invalid character '/' at start of value`},
		{"not UTF-8", "{\"orgs\": [\"\xff\"]}", `/orgs/0: invalid UTF-8 (byte 11)`},
		{"a byte order mark", "\ufeff{}", `line 1, byte 1 of it, is no JSON: invalid character '\ufeff' at start of value`},
		{"no object", `[]`, `an array where an object is required`},
		{"null", `null`, `null where an object is required`},
		{"deep", `{"caps": ` + strings.Repeat("[", 1000), `/caps: an array where an object is required`},

		{"an unknown field", `{"kind": []}`, `/kind: unknown member; known are ` + known},
		{"another case", `{"Kinds": []}`, `/Kinds: unknown member; known are ` + known},
		{"an unknown cap", `{"caps": {"ram": 1}}`, `/caps/ram: unknown member; known are ["cpus" "disk" "memory" "vram"]`},
		{"an unknown field of a source", `{"sources": [{"prefix": "a.b/", "hosts": [], "mirror": 1}]}`,
			`/sources/0/mirror: unknown member; known are ["hosts" "prefix"]`},
		{"a source without hosts", `{"sources": [{"prefix": "a.b/"}]}`, `/sources/0/hosts: member is missing`},
		{"a field twice", `{"kinds": [], "kinds": ["fn.run"]}`, `/kinds: duplicate object member name (byte 14)`},
		{"a cap twice", `{"caps": {"cpus": 0, "cpus": 9}}`, `/caps/cpus: duplicate object member name (byte 21)`},
		{"null for a list", `{"kinds": null}`, `/kinds: null where an array is required`},
		{"null for a number", `{"concurrency": null}`, `/concurrency: null where an integer is required`},
		{"a list as a string", `{"kinds": "fn.run"}`, `/kinds: a string where an array is required`},

		{"a number as a string", `{"maxSec": "60"}`, `/maxSec: a string where an integer is required`},
		{"a fraction", `{"caps": {"cpus": 1.5}}`, `/caps/cpus: 1.5 is not an integer within int`},
		{"a whole fraction", `{"caps": {"cpus": 1.0}}`, `/caps/cpus: 1.0 is not an integer within int`},
		{"an exponent", `{"caps": {"disk": 1e9}}`, `/caps/disk: 1e9 is not an integer within int64`},
		{"past an int64", `{"caps": {"memory": 9223372036854775808}}`, `/caps/memory: 9223372036854775808 is not an integer within int64`},
		{"past the highest", `{"caps": {"memory": 9007199254740993}}`, `/caps/memory: 9007199254740993 is not within 0 to 9007199254740992`},
		{"negative", `{"caps": {"vram": -1}}`, `/caps/vram: -1 is not within 0 to 9007199254740992`},
		{"negative cores", `{"caps": {"cpus": -1}}`, `/caps/cpus: -1 is not within 0 to 1024`},
		{"negative disk", `{"caps": {"disk": -1}}`, `/caps/disk: -1 is not within 0 to 9007199254740992`},
		{"negative concurrency", `{"concurrency": -1}`, `/concurrency: -1 is not within 0 to 1024`},
		{"idle for ever", `{"idleSec": 31622401}`, `/idleSec: 31622401 is not within 0 to 31622400`},
		{"live for ever", `{"maxSec": 31622401}`, `/maxSec: 31622401 is not within 0 to 31622400`},

		{"an unknown kind", `{"kinds": ["shell.run"]}`,
			`/kinds/0: "shell.run" is no kind; kinds are ["engine.serve" "studio.render" "fn.run" "train.fit"]`},
		{"a kind twice", `{"kinds": ["fn.run", "fn.run"]}`, `/kinds/1: "fn.run" stands twice`},
		{"no org", `{"orgs": [""]}`, `/orgs/0: "" is no org's name: 1 to 63 of A-Z a-z 0-9 . _ -, the first a letter or digit`},
		{"every org", `{"orgs": ["*"]}`, `/orgs/0: "*" is no org's name: 1 to 63 of A-Z a-z 0-9 . _ -, the first a letter or digit`},
		{"a prefix without its slash", `{"sources": [{"prefix": "huggingface.co/zenlm", "hosts": []}]}`,
			`/sources/0/prefix: "huggingface.co/zenlm" does not end in a slash, so it would also admit owners whose names begin the same`},
		{"a prefix with a scheme", `{"sources": [{"prefix": "https://huggingface.co/", "hosts": []}]}`,
			`/sources/0/prefix: "https://huggingface.co/" is no host and path, such as huggingface.co/zenlm/`},
		{"a prefix that climbs", `{"sources": [{"prefix": "huggingface.co/../", "hosts": []}]}`,
			`/sources/0/prefix: "huggingface.co/../" is no host and path, such as huggingface.co/zenlm/`},
		{"a host in upper case", `{"sources": [{"prefix": "a.b/", "hosts": ["HF.co"]}]}`,
			`/sources/0/hosts/0: "HF.co" is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co`},
		{"every host", `{"sources": [{"prefix": "a.b/", "hosts": ["a.b", "*"]}]}`,
			`/sources/0/hosts/1: "*" is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co`},
		{"every company's host", `{"sources": [{"prefix": "a.b/", "hosts": ["*.co"]}]}`,
			`/sources/0/hosts/0: "*.co" is every host of a top-level domain; name more of it`},
		{"a star inside", `{"sources": [{"prefix": "a.b/", "hosts": ["cdn.*.hf.co"]}]}`,
			`/sources/0/hosts/0: "cdn.*.hf.co" is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co`},
		{"an address", `{"sources": [{"prefix": "a.b/", "hosts": ["127.0.0.1"]}]}`,
			`/sources/0/hosts/0: "127.0.0.1" is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co`},
		{"a port", `{"sources": [{"prefix": "a.b/", "hosts": ["hf.co:443"]}]}`,
			`/sources/0/hosts/0: "hf.co:443" is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co`},
		{"a model without an owner", `{"models": ["huggingface.co"]}`,
			`/models/0: "huggingface.co" is no repository, such as huggingface.co/owner/name`},
		{"a model that climbs", `{"models": ["huggingface.co/zenlm/../evil"]}`,
			`/models/0: "huggingface.co/zenlm/../evil" is no repository, such as huggingface.co/owner/name`},
		{"a model at a branch", `{"models": ["huggingface.co/zenlm/zen6@main"]}`,
			`/models/0: "huggingface.co/zenlm/zen6@main" is not pinned by 40 lower-case hex digits of a commit after its @`},
		{"a model at an upper-case commit", `{"models": ["huggingface.co/a/b@` + strings.Repeat("A", 40) + `"]}`,
			`/models/0: "huggingface.co/a/b@` + strings.Repeat("A", 40) + `" is not pinned by 40 lower-case hex digits of a commit after its @`},
	} {
		p, err := Parse([]byte(tt.src))
		if err == nil {
			t.Errorf("%s: accepted", tt.name)
			continue
		}
		if err.Error() != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, err, tt.want)
		}
		if d := cmp.Diff(Policy{}, p); d != "" {
			t.Errorf("%s: an error came with a policy:\n%s", tt.name, d)
		}
	}
}

func TestAdmitsHost(t *testing.T) {
	s := Source{Prefix: "huggingface.co/zenlm/", Hosts: []string{"huggingface.co", "*.hf.co"}}
	for host, want := range map[string]bool{
		"huggingface.co":                    true,
		"HuggingFace.co":                    true,
		"cdn.hf.co":                         true,
		"us.aws.cdn.hf.co":                  true,
		"hf.co":                             false,
		"evilhf.co":                         false,
		"hf.co.attacker.net":                false,
		"cdn.hf.co.attacker.net":            false,
		"cdn.hf.co.":                        false,
		".hf.co":                            false,
		"*.hf.co":                           false,
		"a..hf.co":                          false,
		"cdn.huggingface.co":                false,
		"cas-bridge.xethub.hf.co":           true,
		"cdn.hf.co:443":                     false,
		"attacker.net/.hf.co":               false,
		"attacker.net#.hf.co":               false,
		"user@cdn.hf.co":                    false,
		"127.0.0.1":                         false,
		"::1":                               false,
		"":                                  false,
		"cdn.hf.co\x00":                     false,
		"cdn.hf.co\n":                       false,
		strings.Repeat("a.", 200) + "hf.co": false,
	} {
		if got := s.AdmitsHost(host); got != want {
			t.Errorf("AdmitsHost(%q) = %v, want %v", host, got, want)
		}
	}
}

// FuzzParse: no text panics; what is accepted is within range, admits nothing that
// it does not name, and reads back equal from its own canonical form.
func FuzzParse(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"kinds":["train.fit"],"orgs":["acme"],"caps":{"memory":1,"cpus":1,"disk":1},"maxSec":60}`))
	f.Add([]byte(`{"models":["huggingface.co/zenlm/zen6@0123456789abcdef0123456789abcdef01234567"]}`))
	f.Add([]byte(`{"concurrency":0,"idleSec":0,"maxSec":0,"sources":[]}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := Parse(src)
		if err != nil {
			return
		}
		if err := p.check(); err != nil {
			t.Errorf("accepted, and then: %v", err)
		}
		text, err := canon.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%s does not read back: %v", text, err)
		}
		second, err := canon.Marshal(again)
		if err != nil || !bytes.Equal(text, second) {
			t.Errorf("%s reads back as %s (%v)", text, second, err)
		}
		for _, kind := range kinds {
			if a := (Ask{Kind: kind, Org: "", Memory: 1, CPUs: 1, Disk: 1, MaxSec: 1}); p.Admit(a, Held{}) == nil {
				t.Errorf("%s admits no org in particular", text)
			}
		}
	})
}

func Example() {
	p, _ := Parse([]byte(`{
		"kinds": ["train.fit"],
		"orgs": ["acme"],
		"caps": {"memory": 8589934592, "cpus": 4, "disk": 10737418240}
	}`))
	a := Ask{Kind: TrainFit, Org: "acme", Memory: 4 << 30, CPUs: 8, Disk: 1 << 30, MaxSec: 3600}
	fmt.Println(p.Admit(a, Held{}))
	a.CPUs = 4
	fmt.Println(p.Admit(a, Held{}))
	// Output:
	// policy refuses by rule caps.cpus: asked for 8, allowed are 4
	// <nil>
}

// What is no JSON is told by its line, in words.
func TestPlace(t *testing.T) {
	for src, want := range map[string]string{
		"{\n \"kinds\": [\"train.fit\n\"]}": "line 2, byte 22 of it, is no JSON: a string does not end",
		"{\"kinds\":[],}":                   "line 1, byte 13 of it, is no JSON: ",
		"{\n\"kinds\":":                     "line 2, byte 8 of it, is no JSON: it ends too early",
		"{\"kinds\":[]}\nx":                 "line 2, byte 1 of it, is no JSON: ",
		"{\"kind\":[]}":                     "/kind: unknown member",
	} {
		if _, err := Parse([]byte(src)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", src, err)
		}
	}
}
