package policycmd

import (
	"testing"

	"github.com/hanzoai/link/policy"
)

// written is the file as hanzo link writes it.
const written = `{
  "kinds": [],
  "orgs": ["acme"],
  "sources": [{"prefix": "huggingface.co/zenlm/", "hosts": ["huggingface.co", "*.hf.co"]}],
  "models": [],
  "caps": {"vram": 0, "memory": 0, "cpus": 0, "disk": 0},
  "concurrency": 1,
  "idleSec": 600,
  "maxSec": 86400
}
`

func TestEdits(t *testing.T) {
	allowed := func(kind string) func([]byte) ([]byte, error) {
		return func(src []byte) ([]byte, error) { return allow(src, kind) }
	}
	denied := func(kind string) func([]byte) ([]byte, error) {
		return func(src []byte) ([]byte, error) { return deny(src, kind) }
	}
	cap := func(name string, value int64) func([]byte) ([]byte, error) {
		return func(src []byte) ([]byte, error) { return putCap(src, name, value) }
	}
	for _, c := range []struct {
		what      string
		src, want string
		edit      func([]byte) ([]byte, error)
	}{
		{"allow the first", `{ "kinds" : [ ],"maxSec":60 }`, `{ "kinds" : ["train.fit"],"maxSec":60 }`, allowed(policy.TrainFit)},
		{"allow another", `{"kinds": ["fn.run"]}`, `{"kinds": ["fn.run", "train.fit"]}`, allowed(policy.TrainFit)},
		{
			"allow on lines of their own", "{\n\t\"kinds\": [\n\t\t\"fn.run\"\n\t]\n}", "{\n\t\"kinds\": [\n\t\t\"fn.run\",\n\t\t\"train.fit\"\n\t]\n}",
			allowed(policy.TrainFit),
		},
		{"allow where kinds are absent", "{\n  \"orgs\": [\"a\"]\n}\n", "{\n  \"orgs\": [\"a\"],\n  \"kinds\": [\"train.fit\"]\n}\n", allowed(policy.TrainFit)},
		{"allow in nothing", " {}\n", " {\"kinds\": [\"train.fit\"]}\n", allowed(policy.TrainFit)},
		{"allow in nothing, set out", "{\n}\n", "{\"kinds\": [\"train.fit\"]}\n", allowed(policy.TrainFit)},
		{"deny the only", `{"kinds": [ "train.fit" ]}`, `{"kinds": []}`, denied(policy.TrainFit)},
		{"deny the first", `{"kinds": ["train.fit", "fn.run"]}`, `{"kinds": ["fn.run"]}`, denied(policy.TrainFit)},
		{"deny the last", `{"kinds": ["fn.run", "train.fit"]}`, `{"kinds": ["fn.run"]}`, denied(policy.TrainFit)},
		{"deny the middle", `{"kinds": ["fn.run", "train.fit", "engine.serve"]}`, `{"kinds": ["fn.run", "engine.serve"]}`, denied(policy.TrainFit)},
		{
			"deny by another spelling", `{"\u006binds": ["train\u002efit"]}`, `{"\u006binds": []}`,
			denied(policy.TrainFit),
		},
		{"deny what is not there", `{"kinds": ["fn.run"]}`, `{"kinds": ["fn.run"]}`, denied(policy.TrainFit)},
		{"deny where kinds are absent", `{}`, `{}`, denied(policy.TrainFit)},
		{"a cap", `{"caps": {"vram": 0, "memory": 0}}`, `{"caps": {"vram": 0, "memory": 42}}`, cap("memory", 42)},
		{"a cap that is absent", `{"caps": {"vram": 0}}`, `{"caps": {"vram": 0, "disk": 42}}`, cap("disk", 42)},
		{"no caps", `{"kinds": []}`, `{"kinds": [], "caps": {"cpus": 3}}`, cap("cpus", 3)},
		{"empty caps", `{"caps": { }}`, `{"caps": {"cpus": 3}}`, cap("cpus", 3)},
		{"braces in text", `{"models": ["a.co/b/c"], "orgs": ["}{"]}`, `{"models": ["a.co/b/c"], "orgs": ["}{"], "kinds": ["fn.run"]}`, allowed(policy.FnRun)},
	} {
		got, err := c.edit([]byte(c.src))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\ngot  %q\nwant %q", c.what, err, got, c.want)
		}
	}
}
