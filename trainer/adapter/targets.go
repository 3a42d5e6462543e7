package adapter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/nearest"
)

// module is what a parameter's module is called: "encoder." or "head." and the
// name of the layer, without ".weight".
func module(param string) string { return strings.TrimSuffix(param, ".weight") }

// matches reports whether a target names a module: it is the module's name, or
// the end of it from a dot on. PEFT matches its target_modules so.
func matches(module, target string) bool {
	return module == target || strings.HasSuffix(module, "."+target)
}

// Targets are the weights that want names, sorted by name. A name is a module's
// or the end of one, as in PEFT: "dense" is every dense layer, "query" BERT's
// queries and also the head's retrieval.query, "self.query" BERT's alone. With no
// names it is every linear of the encoder and the head but head.score.out, whose
// single row no factors make smaller. A name that is no module's is an error that
// says which may be meant, and one given twice is an error too.
func Targets(linears []kai.Linear, want []string) ([]*kai.Param, error) {
	var all []*kai.Param
	for _, l := range linears {
		all = append(all, l.Params...)
	}
	slices.SortFunc(all, func(a, b *kai.Param) int { return strings.Compare(a.Name, b.Name) })
	if len(want) == 0 {
		return slices.DeleteFunc(all, func(p *kai.Param) bool { return p.Shape[0] == 1 }), nil
	}
	for i, w := range want {
		if slices.Contains(want[:i], w) {
			return nil, fmt.Errorf("%q is there twice", w)
		}
		if !slices.ContainsFunc(all, func(p *kai.Param) bool { return matches(module(p.Name), w) }) {
			return nil, unknown(w, all)
		}
	}
	return slices.DeleteFunc(all, func(p *kai.Param) bool {
		return !slices.ContainsFunc(want, func(w string) bool { return matches(module(p.Name), w) })
	}), nil
}

// unknown says that a target names no module, which one it may mean, and which
// names there are.
func unknown(name string, all []*kai.Param) error {
	var ends []string // the last parts of the modules' names, as they come
	for _, p := range all {
		m := module(p.Name)
		if end := m[strings.LastIndexByte(m, '.')+1:]; !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	slices.Sort(ends)
	meant := ""
	if near := nearest.Name(name, ends); near != "" {
		meant = fmt.Sprintf("did you mean %q? ", near)
	}
	return fmt.Errorf("this model has no linear layer %q: %sthere are %s, or a module's whole name as %s",
		name, meant, strings.Join(ends, ", "), module(all[0].Name))
}
