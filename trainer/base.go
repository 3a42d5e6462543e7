package trainer

import (
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
)

// BaselineKey is what two evaluations of a base have in common when one can stand
// for the other: the base, the build and the scoring, in one version of this program.
// It is 16 hex digits.
func BaselineKey(base canon.SHA256, b *data.Build) (string, error) {
	h, err := canon.Of(struct {
		Base      canon.SHA256 `json:"base"`
		Build     canon.Hash   `json:"build"`
		Evaluator canon.Hash   `json:"evaluator"`
		Version   string       `json:"version"`
	}{base, b.Hash, evaluator().DefinitionHash, Version()})
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
