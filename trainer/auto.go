package trainer

import (
	"encoding/json"
	"fmt"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/kai"
)

// Choose settles what an adaptation of auto is over the base m: full, every
// parameter that is not frozen, unless the memory that takes is more than is
// available, in bytes (0: unknown); then lora, whose moments are of its factors
// alone. It returns the stage file with the choice and its reason in
// adaptation.chose, so that a resumed run does not choose again, and any other
// stage file as it is.
func Choose(src []byte, m *kai.Model, available uint64) ([]byte, error) {
	doc, err := canon.Canonicalize(src)
	if err != nil {
		return nil, fmt.Errorf("stage file: %w", err)
	}
	var stage map[string]json.RawMessage
	if err := json.Unmarshal(doc, &stage); err != nil {
		return nil, fmt.Errorf("stage file: %w", err)
	}
	var a map[string]any
	if json.Unmarshal(stage["adaptation"], &a) != nil || a["mode"] != Auto || a["chose"] != nil {
		return src, nil
	}
	full, err := ParseStage(src) // which auto is until it has chosen
	if err != nil {
		return nil, err
	}
	learns, err := full.learns(m)
	if err != nil {
		return nil, err
	}
	// A parameter that learns is, beside its weight, the base's, the change, two
	// moments, and a gradient with its open block.
	need := 4 * uint64(m.Size())
	for _, p := range m.Params() {
		if learns(p.Name) {
			need += 6 * 4 * uint64(p.W.Len)
		}
	}
	a["chose"] = fmt.Sprintf("%s: every parameter that is not frozen, which takes %d MiB beside the activations", Full, need>>20)
	if available > 0 && need > available {
		a["chose"] = fmt.Sprintf("%s: full takes %d MiB beside the activations, and %d MiB are available", LoRA, need>>20, available>>20)
	}
	if stage["adaptation"], err = canon.Marshal(a); err != nil {
		return nil, err
	}
	return canon.Marshal(stage)
}
