package nearest

import "testing"

func TestName(t *testing.T) {
	known := []string{"query", "value", "dense", "größe"}
	for name, want := range map[string]string{
		"qeury": "", "quer": "query", "Query": "query", "valuee": "value", "grosse": "", "größen": "größe", "": "", "attention": "",
	} {
		if got := Name(name, known); got != want {
			t.Errorf("Name(%q) = %q, want %q", name, got, want)
		}
	}
}
