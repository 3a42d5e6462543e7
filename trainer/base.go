package trainer

import (
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
)

// BaselineKey is what two evaluations of a base have in common when one can stand
// for the other: the base, the sets that are answered and the scoring, in one
// version of this program. It is 16 hex digits.
func BaselineKey(base canon.SHA256, b *data.Build) (string, error) {
	sets := []canon.SHA256{}
	for _, s := range b.Role(record.RoleEvaluate) {
		sets = append(sets, *s.Dataset.SHA256)
	}
	h, err := canon.Of(struct {
		Base      canon.SHA256   `json:"base"`
		Sets      []canon.SHA256 `json:"sets"`
		Evaluator canon.Hash     `json:"evaluator"`
		Version   string         `json:"version"`
	}{base, sets, evaluator().DefinitionHash, Version()})
	if err != nil {
		return "", err
	}
	return h.Hex()[:16], nil
}

// BaselineRun names the run in which the base of run is evaluated: base_<key>_<run>.
// One of runs with the same key is taken instead, so that a base is evaluated once
// and read back by every later run that starts from it. It is named after its run
// because others have bases with this key too, evaluated elsewhere at another time.
func BaselineRun(key, run string, runs []string) string {
	prefix := "base_" + key + "_"
	for _, r := range runs {
		if strings.HasPrefix(r, prefix) {
			return r
		}
	}
	if name := prefix + run; record.ValidRun(name) {
		return name
	}
	return prefix + canon.HashOf([]byte(run)).Hex()[:16] // too long a name
}
