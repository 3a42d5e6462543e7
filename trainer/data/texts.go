package data

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
)

// Texts returns what a model reads of the suite in dir, in the order of its rows:
// each state, and once each question's prompt and options. A vocabulary is
// learned on them. Rows that judge, because their file says so or because the
// default split will, are left out.
func Texts(dir string) ([]string, error) {
	src := source{path: filepath.Join(dir, itemsFile)}
	var texts []string
	var reader decision.Reader
	seen := make(map[string]bool)
	once := func(text string) {
		if !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	err := src.each(io.Discard, func(n int, _ int64, line []byte) error {
		var it stagedItem
		if err := canon.Unmarshal(line, &it); err != nil {
			return fmt.Errorf("%s line %d: %w: %w", src.path, n, ErrCorrupt, err)
		}
		purpose := defaultFractions.of(it.CanonicalExampleID)
		if it.Purpose != nil {
			purpose = *it.Purpose
		}
		if purpose.Evaluation() {
			return nil
		}
		asked, err := reader.Asked(it.Payload.Input.Questions, nil)
		if err != nil {
			return fmt.Errorf("%s line %d: %w: %w", src.path, n, ErrCorrupt, err)
		}
		state, err := decision.State(it.Payload.Input.State)
		if err != nil {
			return fmt.Errorf("%s line %d: %w: %w", src.path, n, ErrCorrupt, err)
		}
		texts = append(texts, state)
		for _, a := range asked {
			once(a.Question.Prompt())
			for _, o := range a.Question.Options {
				once(o.Text)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading a suite (train data import writes them): %w", err)
	}
	return texts, nil
}
