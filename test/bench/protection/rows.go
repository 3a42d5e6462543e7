package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// A suite is a data set as it is used here.
type suite struct {
	name     string
	question string
	label    string   // the column of the answer
	files    []source // below -data

	train, validation, test int // rows of each split at most
}

// A source is a file, and the split of its rows where it has no column of that name.
type source struct{ name, split string }

// The suites that the base knows, the one that it was not trained on, and the targets.
var suites = []suite{
	{"debian", "which section is this package in", "section", []source{{"debian-packages/sections-en.jsonl", ""}}, 4000, 300, 700},
	{"foods", "how does the customer rate it", "label", []source{{"small-fine-foods/train.jsonl", "train"}, {"small-fine-foods/test.jsonl", "test"}}, 3000, 0, 700},
	{"spam", "is this mail spam", "label", []source{{"spamassassin-text/emails.jsonl", ""}}, 2000, 300, 571},
	{"clinc150", "what does the user want", "label", []source{{"clinc150/clinc150.jsonl", ""}}, 4000, 300, 700},

	{"snips", "what does the user want", "label", []source{{"snips/snips.jsonl", ""}}, 13784, 0, 700},
	{"banking77", "what does the customer want", "label", []source{{"banking77/banking77.jsonl", ""}}, 10003, 0, 1000},
}

// protected are the suites that a target's training may damage. The base was
// trained on all but the last.
var protected = suites[:4]

func findSuite(name string) (suite, error) {
	for _, s := range suites {
		if s.name == name {
			return s, nil
		}
	}
	return suite{}, fmt.Errorf("there is no suite %q", name)
}

// A row is a line of a suite's file as the stage reads it.
type row struct {
	Text  string `json:"text"`
	Label string `json:"label"`
	Split string `json:"split"`
}

// prepare writes every suite's file.
func (b *bench) prepare() error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	for _, s := range suites {
		var all []row
		for _, f := range s.files {
			rows, err := read(filepath.Join(b.data, f.name), s.label, f.split)
			if err != nil {
				return err
			}
			all = append(all, rows...)
		}
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		for _, r := range s.choose(all, b.rows) {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		file := filepath.Join(b.dir, s.name+".jsonl")
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, out.Bytes()) {
			continue
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// read reads a file of rows. Questions out of scope, which clinc150 has, are no
// rows here: they have no answer among its intents.
func read(file, label, split string) ([]row, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []row
	for dec := json.NewDecoder(f); ; {
		var line map[string]any
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		r := row{Split: split}
		r.Text, _ = line["text"].(string)
		r.Label, _ = line[label].(string)
		if s, ok := line["split"].(string); ok {
			r.Split = s
		}
		if r.Split == "val" || r.Split == "valid" {
			r.Split = "validation"
		}
		if r.Label != "oos" {
			rows = append(rows, r)
		}
	}
}

// choose takes of each split the first rows in order of the SHA-256 of their
// text, and no more than most of it where that is not 0.
func (s suite) choose(all []row, most int) []row {
	key := func(r row) string {
		h := sha256.Sum256([]byte(r.Text))
		return hex.EncodeToString(h[:])
	}
	slices.SortFunc(all, func(x, y row) int {
		return cmp.Or(cmp.Compare(key(x), key(y)), cmp.Compare(x.Text, y.Text), cmp.Compare(x.Label, y.Label))
	})
	var chosen []row
	for _, split := range []struct {
		name string
		n    int
	}{{"train", s.train}, {"validation", s.validation}, {"test", s.test}} {
		left := split.n
		if most > 0 {
			left = min(left, most)
		}
		for _, r := range all {
			if left > 0 && r.Split == split.name {
				chosen = append(chosen, r)
				left--
			}
		}
	}
	return chosen
}
