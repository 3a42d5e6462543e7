package trainer

import (
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/data"
)

// BaselineRun names the run in which a base is evaluated on a build. The same
// base, build and scoring have one in the same version of this program, so that
// it is evaluated once and read back by every later run that starts from it.
func BaselineRun(base canon.SHA256, b *data.Build) (string, error) {
	h, err := canon.Of(struct {
		Base      canon.SHA256 `json:"base"`
		Build     canon.Hash   `json:"build"`
		Evaluator canon.Hash   `json:"evaluator"`
		Version   string       `json:"version"`
	}{base, b.Hash, evaluator().DefinitionHash, Version()})
	if err != nil {
		return "", err
	}
	return "base_" + h.Hex()[:16], nil
}
