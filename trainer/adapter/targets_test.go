package adapter

import (
	"strings"
	"testing"
)

func names(t *testing.T, family string, want ...string) string {
	t.Helper()
	list, err := Targets(open(t, family).Linears(), want)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range list {
		all = append(all, module(p.Name))
	}
	return strings.Join(all, " ")
}

func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		family string
		want   []string
		names  string
	}{
		{"bert", []string{"value", "self.query"},
			"encoder.encoder.layer.0.attention.self.query encoder.encoder.layer.0.attention.self.value " +
				"encoder.encoder.layer.1.attention.self.query encoder.encoder.layer.1.attention.self.value"},
		{"bert", []string{"query"},
			"encoder.encoder.layer.0.attention.self.query encoder.encoder.layer.1.attention.self.query head.retrieval.query"},
		{"modernbert", []string{"1.attn.Wqkv", "encoder.layers.0.mlp.Wo"}, "encoder.layers.0.mlp.Wo encoder.layers.1.attn.Wqkv"},
		{"modernbert", []string{"score.out"}, "head.score.out"},
	} {
		if got := names(t, tt.family, tt.want...); got != tt.names {
			t.Errorf("%s %v: %s, want %s", tt.family, tt.want, got, tt.names)
		}
	}
}

func TestNoTargetsAreEveryLinear(t *testing.T) {
	for _, family := range families {
		all := 0
		for _, l := range open(t, family).Linears() {
			all += len(l.Params)
		}
		got := strings.Fields(names(t, family))
		if len(got) != all-1 {
			t.Errorf("%s: %d of %d linears are adapted, want all but one", family, len(got), all)
		}
		for _, name := range got {
			if name == "head.score.out" {
				t.Errorf("%s: head.score.out is adapted, which has one row", family)
			}
		}
	}
}

func TestTargetsRefuses(t *testing.T) {
	for _, tt := range []struct {
		want []string
		says []string
	}{
		{[]string{"dense", "qury"}, []string{`"qury"`, `did you mean "query"?`}},
		{[]string{"q_proj"}, []string{`"q_proj"`, "there are dense, down, key, out, probe, qkv, query, up, value", "encoder.encoder.layer.0.attention.output.dense"}},
		{[]string{"ense"}, []string{`did you mean "dense"?`}}, // an end, but not from a dot on
		{[]string{""}, []string{`""`}},
		{[]string{"query", "dense", "query"}, []string{`"query" is there twice`}},
		{[]string{"LayerNorm"}, []string{`no linear layer "LayerNorm"`}},
	} {
		_, err := Targets(open(t, "bert").Linears(), tt.want)
		if err == nil {
			t.Errorf("%v: no error", tt.want)
			continue
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v: %v does not say %q", tt.want, err, s)
			}
		}
	}
}
