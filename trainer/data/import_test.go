package data

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// file writes a person's file.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// imported imports a file into a new folder and returns its rows, which a stage
// of nothing else reads back.
func imported(t *testing.T, cfg ImportConfig) (Report, []record.DatasetItem) {
	t.Helper()
	if cfg.Suite == "" {
		cfg.Suite = "s"
	}
	if cfg.Out == "" {
		cfg.Out = t.TempDir()
	}
	r, err := Import(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r, suiteItems(t, r.Dir)
}

// suiteItems reads a suite's lines as items.
func suiteItems(t *testing.T, dir string) []record.DatasetItem {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(dir, itemsFile))
	if err != nil {
		t.Fatal(err)
	}
	var items []record.DatasetItem
	for line := range strings.Lines(string(doc)) {
		var it struct {
			CanonicalExampleID string          `json:"canonical_example_id"`
			ContaminationHash  canon.Hash      `json:"contamination_hash"`
			ItemID             string          `json:"item_id"`
			Payload            record.Payload  `json:"payload"`
			Purpose            *record.Purpose `json:"purpose"`
			SourceHash         canon.Hash      `json:"source_hash"`
		}
		if err := canon.Unmarshal([]byte(line), &it); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if c, err := canon.Canonicalize([]byte(line)); err != nil || string(c)+"\n" != line {
			t.Fatalf("line is not canonical: %s", line)
		}
		purpose := record.Train
		if it.Purpose != nil {
			purpose = *it.Purpose
		}
		item := record.DatasetItem{
			DatasetID: "s", ItemID: it.ItemID, Purpose: purpose, CanonicalExampleID: it.CanonicalExampleID,
			SourceHash: it.SourceHash, ContaminationHash: it.ContaminationHash,
			DerivationAllowed: purpose.Derivation(), Payload: it.Payload,
		}
		if err := item.Validate(); err != nil { // recomputes the contamination hash
			t.Fatalf("item %s: %v", it.ItemID, err)
		}
		items = append(items, item)
	}
	return items
}

// rowOf parses an item.
func rowOf(t *testing.T, it record.DatasetItem) decision.Row {
	t.Helper()
	row, err := decision.ParseRow(it.Payload.Input, it.Payload.Gold)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// answers shows each row as "state -> p…".
func answers(t *testing.T, items []record.DatasetItem) []string {
	t.Helper()
	var list []string
	for _, it := range items {
		row := rowOf(t, it)
		list = append(list, fmt.Sprint(row.State, " -> ", row.Asked[0].Target))
	}
	return list
}

const tickets = "text,label\nmy card is gone,card\n\"charged twice, \"\"again\"\"\",billing\nwhere is my card,card\n"

// TestImportFormats reads one content in each format and dialect.
func TestImportFormats(t *testing.T) {
	want := []string{"my card is gone -> [0 1]", `charged twice, "again" -> [1 0]`, "where is my card -> [0 1]"}
	jsonl := `{"text":"my card is gone","label":"card"}
{"text":"charged twice, \"again\"","label":"billing"}

{"label":"card","text":"where is my card","other":null}`
	tests := []struct {
		name, file, content string
		cfg                 ImportConfig
	}{
		{"CSV", "a.csv", tickets, ImportConfig{}},
		{"CSV with a byte order mark", "a.csv", "\ufeff" + tickets, ImportConfig{}},
		{"CSV with CR LF", "a.csv", strings.ReplaceAll(tickets, "\n", "\r\n"), ImportConfig{}},
		{"CSV with semicolons", "a.csv", strings.ReplaceAll(strings.ReplaceAll(tickets, "twice,", "twice#"), ",", ";"), ImportConfig{Delimiter: ';'}},
		{"CSV without a last line end", "a.csv", strings.TrimSuffix(tickets, "\n"), ImportConfig{}},
		{"TSV", "a.tsv", "text\tlabel\nmy card is gone\tcard\ncharged twice, \"again\"\tbilling\nwhere is my card\tcard\n", ImportConfig{}},
		{"TSV with CR LF", "a.tsv", "text\tlabel\r\nmy card is gone\tcard\r\ncharged twice, \"again\"\tbilling\r\nwhere is my card\tcard\r\n", ImportConfig{}},
		{"TSV, quoted", "a.tsv", "text\tlabel\nmy card is gone\tcard\n\"charged twice, \"\"again\"\"\"\tbilling\nwhere is my card\tcard\n", ImportConfig{Quoted: true}},
		{"JSON Lines", "a.jsonl", jsonl, ImportConfig{}},
		{"JSON Lines with a byte order mark and CR LF", "a.jsonl", "\ufeff" + strings.ReplaceAll(jsonl, "\n", "\r\n"), ImportConfig{}},
		{"another extension", "a.txt", tickets, ImportConfig{Format: "csv"}},
		{"white space around labels and names", "a.csv", "text , label\nmy card is gone, card\n\"charged twice, \"\"again\"\"\",billing \nwhere is my card,card\n", ImportConfig{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.File = file(t, tt.file, tt.content)
			r, items := imported(t, tt.cfg)
			got := answers(t, items)
			if tt.cfg.Delimiter == ';' {
				got[1] = strings.Replace(got[1], "#", ",", 1)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if r.Rows != 3 || r.Kept != 3 || len(r.Refused) != 0 {
				t.Errorf("report has %d rows, %d kept, refused %v", r.Rows, r.Kept, r.Refused)
			}
		})
	}
}

// TestImportQuestions makes each kind of question of columns.
func TestImportQuestions(t *testing.T) {
	tests := []struct {
		name, content string
		cfg           ImportConfig
		prompt        string
		options       []string
		targets       [][]float64
	}{
		{
			"choice with criteria in their order", `{"text":"a","label":"b"}` + "\n" + `{"text":"c","label":"a"}`,
			ImportConfig{Criteria: canon.Raw(`["b","a","z"]`), Key: "queue", Instructions: "which one?"},
			"choice question: which one?", []string{"b", "a", "z"}, [][]float64{{1, 0, 0}, {0, 1, 0}},
		},
		{
			"choice with descriptions", `{"text":"a","label":"b"}` + "\n" + `{"text":"c","label":"a"}`,
			ImportConfig{Criteria: canon.Raw(`{"b":"second","a":"first"}`)},
			"choice question: which label", []string{"a: first", "b: second"}, [][]float64{{0, 1}, {1, 0}},
		},
		{
			"score by number", `{"text":"a","stars":10}` + "\n" + `{"text":"c","stars":"2"}` + "\n" + `{"text":"d","stars":2}`,
			ImportConfig{Type: decision.Score, Label: "stars"},
			"score question: how much stars", []string{"level 0: 2", "level 1: 10"}, [][]float64{{0, 1}, {1, 0}, {1, 0}},
		},
		{
			"score by name and by index", `{"text":"a","label":"high"}` + "\n" + `{"text":"c","label":0}`,
			ImportConfig{Type: decision.Score, Criteria: canon.Raw(`["low","mid","high"]`)},
			"score question: how much label", []string{"level 0: low", "level 1: mid", "level 2: high"}, [][]float64{{0, 0, 1}, {1, 0, 0}},
		},
		{
			"noul", `{"text":"a","label":true}` + "\n" + `{"text":"c","label":"No"}` + "\n" + `{"text":"d","label":1}`,
			ImportConfig{Type: "boolean"},
			"noul question: is it label", []string{"false: no, the statement does not hold", "true: yes, the statement holds"}, [][]float64{{0, 1}, {1, 0}, {0, 1}},
		},
		{
			"noul of a label", `{"text":"a","label":"spam"}` + "\n" + `{"text":"c","label":"ham"}`,
			ImportConfig{Type: decision.Noul, Positive: "spam", Key: "spam"},
			"noul question: is it spam", []string{"false: no, the statement does not hold", "true: yes, the statement holds"}, [][]float64{{0, 1}, {1, 0}},
		},
		{
			"noul of a label, described", `{"text":"a","label":"spam"}` + "\n" + `{"text":"c","label":"ham"}`,
			ImportConfig{Type: decision.Noul, Positive: "spam", Criteria: canon.Raw(`{"true":"an advertisement"}`)},
			"noul question: is it label", []string{"false: no, the statement does not hold", "true: an advertisement"}, [][]float64{{0, 1}, {1, 0}},
		},
		{
			"target by label", `{"text":"a","p":{"x":0.25,"y":0.75}}` + "\n" + `{"text":"c","p":{"x":1}}`,
			ImportConfig{Target: "p"},
			"choice question: which p", []string{"x", "y"}, [][]float64{{0.25, 0.75}, {1, 0}},
		},
		{
			"target in order", `{"text":"a","p":[0.25,0.75]}` + "\n" + `{"text":"c","p":[1,0]}`,
			ImportConfig{Target: "p", Criteria: canon.Raw(`["y","x"]`)},
			"choice question: which p", []string{"y", "x"}, [][]float64{{0.25, 0.75}, {1, 0}},
		},
		{
			"counts", `{"text":"a","votes":[1,3]}` + "\n" + `{"text":"c","votes":[2,0]}`,
			ImportConfig{Target: "votes", Counts: true, Type: decision.Score, Criteria: canon.Raw(`["low","high"]`)},
			"score question: how much votes", []string{"level 0: low", "level 1: high"}, [][]float64{{0.25, 0.75}, {1, 0}},
		},
		{
			"probability of true", `{"text":"a","p":0.25}` + "\n" + `{"text":"c","p":1}`,
			ImportConfig{Target: "p", Type: decision.Noul},
			"noul question: is it p", []string{"false: no, the statement does not hold", "true: yes, the statement holds"}, [][]float64{{0.75, 0.25}, {0, 1}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.File = file(t, "a.jsonl", tt.content)
			_, items := imported(t, tt.cfg)
			var targets [][]float64
			for _, it := range items {
				targets = append(targets, rowOf(t, it).Asked[0].Target)
			}
			q := rowOf(t, items[0]).Asked[0].Question
			var options []string
			for _, o := range q.Options {
				options = append(options, o.Text)
			}
			if q.Prompt() != tt.prompt {
				t.Errorf("Prompt = %q, want %q", q.Prompt(), tt.prompt)
			}
			if diff := cmp.Diff(tt.options, options); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.targets, targets); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
		})
	}
}

// TestImportStates checks what becomes of states of each shape.
func TestImportStates(t *testing.T) {
	tests := []struct {
		name, content string
		state         []string
		want          string
	}{
		{"text", `{"text":"a"`, []string{"text"}, "a"},
		{"an object", `{"text":{"b":1,"a":"x"}`, []string{"text"}, `{"a":"x","b":1}`},
		{"a list", `{"text":["x",null]`, []string{"text"}, `["x",null]`},
		{"several columns are an object", `{"subject":"s","n":1`, []string{"subject", "n"}, `{"n":1,"subject":"s"}`},
		{"a member of an object", `{"user":{"says":"hi"}`, []string{"user.says"}, "hi"},
		{"a name with a dot", `{"user.says":"hi","user":{"says":"no"}`, []string{"user.says"}, "hi"},
		{"NUL and the byte order mark are characters", `{"text":"a\u0000\ufeff"`, []string{"text"}, "a\x00\ufeff"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := file(t, "a.jsonl", tt.content+`,"label":"x"}`+"\n"+tt.content+`,"label":"y"}`)
			_, items := imported(t, ImportConfig{File: path, State: tt.state})
			if got := rowOf(t, items[0]).State; got != tt.want {
				t.Errorf("state = %q, want %q", got, tt.want)
			}
		})
	}

	t.Run("states of numbers are told apart", func(t *testing.T) {
		path := file(t, "a.jsonl", `{"text":{"x":1},"label":"x"}`+"\n"+`{"text":{"x":2},"label":"y"}`)
		_, items := imported(t, ImportConfig{File: path})
		if items[0].ContaminationHash == items[1].ContaminationHash || items[0].CanonicalExampleID == items[1].CanonicalExampleID {
			t.Error("two states of numbers have one contamination hash or example")
		}
		if got := rowOf(t, items[0]).State; got != `{"x":1}` {
			t.Errorf("state = %q", got)
		}
	})

	t.Run("10 MB", func(t *testing.T) {
		big := strings.Repeat("word ", 2<<20)
		path := file(t, "a.csv", "text,label\n"+big+",x\nshort,y\n")
		_, items := imported(t, ImportConfig{File: path})
		if got := rowOf(t, items[0]).State; got != big {
			t.Errorf("a state of %d bytes became one of %d", len(big), len(got))
		}
	})
}

// TestImportDecisions reads whole rows as HIP-1333 §4 has them, with several
// questions, and columns beside them.
func TestImportDecisions(t *testing.T) {
	path := file(t, "a.jsonl", `{"state":"a","questions":{"q":{"type":"choice","instructions":"i","criteria":{"z":"d","a":null}},"n":{"type":"noul","instructions":"j"}},"target":{"q":[0.75,0.25],"n":[0,1]},"id":7,"fold":"test"}
{"state":"b","questions":{"q":{"type":"choice","instructions":"i","criteria":["x","y"]}},"target":{"q":[0,1]},"lang":"de","id":8,"fold":"train"}
{"state":"c","questions":{"q":{"type":"choice","instructions":"i","criteria":["x","y"]}},"id":9,"fold":"train"}
{"state":"d","questions":{"q":{"type":"choice","instructions":"i","criteria":["x","y"]}},"target":{"q":[1,0]},"note":"?","id":10,"fold":"train"}`)
	r, items := imported(t, ImportConfig{File: path, ID: "id", Split: "fold"})
	if len(items) != 2 || items[0].ItemID != "s:7" || items[0].Purpose != record.EvalOnly || items[1].Purpose != record.Train {
		t.Fatalf("items %+v", items)
	}
	row := rowOf(t, items[0])
	got := map[string]float64{}
	for _, a := range row.Asked {
		for i, o := range a.Question.Options {
			got[a.Key+"/"+o.Key] = a.Target[i]
		}
	}
	if diff := cmp.Diff(map[string]float64{"q/z": 0.75, "q/a": 0.25, "n/false": 0, "n/true": 1}, got); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if lang := rowOf(t, items[1]).Lang; lang != "de" {
		t.Errorf("lang = %q", lang)
	}
	want := []Refusal{{3, "target: q has none"}, {4, "note: is not a member of a row"}}
	if diff := cmp.Diff(want, r.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}

// TestImportRefusesRows checks that each bad row is listed with its line and its
// reason and that the rest is kept.
func TestImportRefusesRows(t *testing.T) {
	const good = `{"text":"a","label":"x","fold":"train"}` + "\n" + `{"text":"b","label":"y","fold":"train"}` + "\n"
	tests := []struct {
		name, row, want string
		cfg             ImportConfig
	}{
		{"a state that is a number", `{"text":404,"label":"x"}`, "state is a number; it must be a string, an object or a list", ImportConfig{}},
		{"a state that is null", `{"text":null,"label":"x"}`, "state is null; it must be a string, an object or a list", ImportConfig{}},
		{"a state that is empty", `{"text":" ","label":"x"}`, "state is empty", ImportConfig{}},
		{"no state", `{"label":"x"}`, "text is missing", ImportConfig{}},
		{"all columns of the state empty", `{"text":"","fold":null,"label":"x"}`, "state is empty: text, fold all are", ImportConfig{State: []string{"text", "fold"}}},
		{"an empty label", `{"text":"c","label":" "}`, "label is empty", ImportConfig{}},
		{"a label that is null", `{"text":"c","label":null}`, "label is null", ImportConfig{}},
		{"no label", `{"text":"c"}`, "label is missing", ImportConfig{}},
		{"several labels", `{"text":"c","label":["x","y"]}`, "label is a list or an object; it must be one label (a distribution over labels is named as the target)", ImportConfig{}},
		{"a label that is not among the criteria", `{"text":"c","label":"cards"}`, `there is no label "cards"; did you mean "card"?`, ImportConfig{Criteria: canon.Raw(`["x","y","card"]`)}},
		{"a lone surrogate", `{"text":"\ud800","label":"x"}`, "surrogate", ImportConfig{}},
		{"not JSON", `{"text":"c"`, "unexpected EOF", ImportConfig{}},
		{"not an object", `"c"`, "object", ImportConfig{}},
		{"a duplicate member", `{"text":"c","label":"x","label":"y"}`, "duplicate", ImportConfig{}},
		{"an unknown split", `{"text":"c","label":"x","fold":"holdout"}`, `fold is "holdout"; it must be train, validation or test`, ImportConfig{Split: "fold"}},
		{"a row over the limit", `{"text":"` + strings.Repeat("c", 100) + `","label":"x"}`, "the row is longer than 100 bytes", ImportConfig{MaxRow: 100}},
		{"an id that cannot be one", `{"text":"c","label":"x","id":"a b"}`, `id "a b" cannot be an id`, ImportConfig{ID: "id"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			head := good
			if tt.cfg.ID != "" {
				head = strings.ReplaceAll(good, `{"text":"`, `{"id":"`+"k"+`","text":"`)
				head = strings.Replace(head, `"k"`, `"k0"`, 1)
			}
			tt.cfg.File = file(t, "a.jsonl", head+tt.row+"\n")
			r, items := imported(t, tt.cfg)
			if len(r.Refused) != 1 || r.Refused[0].Line != 3 || !strings.Contains(r.Refused[0].Reason, tt.want) {
				t.Errorf("refused %+v, want line 3: %s", r.Refused, tt.want)
			}
			if r.Rows != 3 || r.Kept != 2 || len(items) != 2 {
				t.Errorf("%d rows, %d kept, %d written; want 3, 2, 2", r.Rows, r.Kept, len(items))
			}
		})
	}

	t.Run("an id twice", func(t *testing.T) {
		path := file(t, "a.jsonl", `{"text":"a","label":"x","id":1}`+"\n"+`{"text":"b","label":"y","id":2}`+"\n"+`{"text":"c","label":"y","id":"1"}`)
		r, _ := imported(t, ImportConfig{File: path, ID: "id"})
		if diff := cmp.Diff([]Refusal{{3, `id "1" is also line 1's`}}, r.Refused); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
	})
	t.Run("CSV", func(t *testing.T) {
		path := file(t, "a.csv", "text,label\na,x\nb\n\"c\nd\",y,z\n\xff,x\ne\"f,x\n\"g\" h,y\ni,y\n")
		r, _ := imported(t, ImportConfig{File: path})
		want := []Refusal{
			{3, "the row has 1 fields, the header 2"},
			{4, "the row has 3 fields, the header 2"},
			{6, "text is not UTF-8; convert the file to it"},
			{7, `bare " in non-quoted-field`},
			{8, `extraneous or missing " in quoted-field`},
		}
		if diff := cmp.Diff(want, r.Refused); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
		if r.Rows != 7 || r.Kept != 2 {
			t.Errorf("%d rows, %d kept; want 7 and 2", r.Rows, r.Kept)
		}
	})
}

// TestImportRefusesFiles checks what makes a whole file of no use, that the error
// names file and place, and that nothing is written.
func TestImportRefusesFiles(t *testing.T) {
	tests := []struct {
		name, file, content, want string
		cfg                       ImportConfig
	}{
		{"empty", "a.csv", "", "the file has no rows", ImportConfig{}},
		{"a header alone", "a.csv", "text,label\n", "the file has no rows", ImportConfig{}},
		{"a format that is not named", "a.dat", tickets, `the extension ".dat" says no format; name one (--format, or a take's format): csv, tsv or jsonl`, ImportConfig{}},
		{"an unknown format", "a.csv", tickets, `there is no format "xlsx"; there are csv, tsv, jsonl`, ImportConfig{Format: "xlsx"}},
		{"one JSON list", "a.json", `[{"text":"a","label":"x"}]`, "line 1: the file is one JSON list", ImportConfig{}},
		{"UTF-16", "a.csv", "\xff\xfet\x00", "the file is UTF-16; save it as UTF-8", ImportConfig{}},
		{"gzip", "a.jsonl", "\x1f\x8b\x08\x00", "the file is compressed with gzip; decompress it first", ImportConfig{}},
		{"a spreadsheet", "a.csv", "PK\x03\x04", "a spreadsheet", ImportConfig{}},
		{"no row can be read", "a.jsonl", "{\n{\n", "no row can be read; the first fault is in line 1:", ImportConfig{}},
		{"no row can be kept", "a.csv", "text,label\n,x\n,y\n", "no row can be kept; the first, line 2: state is empty", ImportConfig{}},
		{"an unknown column", "a.csv", tickets, `there is no column "labels"; did you mean "label"?`, ImportConfig{Label: "labels"}},
		{"an unknown column, nothing near", "a.csv", tickets, `there is no column "quux"; there are label, text`, ImportConfig{State: []string{"quux"}}},
		{"no column of the usual names", "a.csv", "utterance,label\na,x\nb,y\n", `there is no column "text"; there are label, utterance`, ImportConfig{}},
		{"an unknown member", "a.jsonl", `{"user":{"text":"a"},"label":"x"}`, `there is no column "user.txt"; did you mean "user.text"?`, ImportConfig{State: []string{"user.txt"}}},
		{"semicolons", "a.csv", "text;label\na;x\n", "(the header has no comma: name the delimiter, as --delimiter ';'", ImportConfig{}},
		{"quoted semicolons", "a.csv", "\"text\";\"label\"\n\"a\";\"x\"\n", "name it: --delimiter ';'", ImportConfig{}},
		{"quoted semicolons under a plain header", "a.csv", "text;label\n\"a, b\";\"x\"\n", "name it: --delimiter ';'", ImportConfig{}},
		{"a column twice", "a.csv", "text,label,text\na,x,b\n", `the header has "text" twice, in fields 1 and 3`, ImportConfig{}},
		{"one class only", "a.csv", "text,label\na,x\nb,x\n", `the question: every labelled row (2) says "x"; a question needs rows of two answers or more`, ImportConfig{}},
		{"one class only of several", "a.csv", "text,label\na,x\nb,x\n", `every row answers label with "x"; a question needs rows of two answers or more`, ImportConfig{Criteria: canon.Raw(`["x","y"]`)}},
		{"no labels at all", "a.csv", "text,label\na,\nb,\n", "the question: no row has a label in label", ImportConfig{}},
		{"duplicate labels", "a.csv", tickets, `the question: options 1 and 3 are both "card" after trimming; options must differ`, ImportConfig{Criteria: canon.Raw(`["card","billing"," card"]`)}},
		{"levels without an order", "a.csv", tickets, `a score's levels have an order, which "billing" does not say; list them as criteria, lowest first`, ImportConfig{Type: decision.Score}},
		{"a level that is no number", "a.csv", "text,label\na,1\nb,2\nc,nan\n", `a score's levels have an order, which "nan" does not say`, ImportConfig{Type: decision.Score}},
		{"levels that are one number", "a.csv", "text,label\na,1\nb,1.0\n", `levels "1" and "1.0" are one number`, ImportConfig{Type: decision.Score}},
		{"an unknown positive", "a.csv", tickets, `there is no label "cards"; did you mean "card"?`, ImportConfig{Type: decision.Noul, Positive: "cards"}},
		{"a target without criteria", "a.jsonl", `{"text":"a","p":[1,0]}`, "the question: p names no labels; list its options as criteria, in its order", ImportConfig{Target: "p"}},
		{"a label and a target", "a.csv", tickets, "a label and a target are both named", ImportConfig{Label: "label", Target: "text"}},
		{"an unknown type", "a.csv", tickets, `type is "rank"; it must be choice, score or noul`, ImportConfig{Type: "rank"}},
		{"a suite's name", "a.csv", tickets, `suite "Big Suite" must match`, ImportConfig{Suite: "Big Suite"}},
		{"a quotation mark that swallows the rest", "a.csv", "text,label\na,x\n\"b,y\nc,x\nd,y\n", "line 3: a quotation mark opens a field here that takes in the rest of the file", ImportConfig{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.File = file(t, tt.file, tt.content)
			tt.cfg.Out = t.TempDir()
			if tt.cfg.Suite == "" {
				tt.cfg.Suite = "s"
			}
			_, err := Import(tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.file) {
				t.Errorf("Import = %v, want an error with %q", err, tt.want)
			}
			if left, _ := os.ReadDir(tt.cfg.Out); len(left) != 0 {
				t.Errorf("the folder holds %v", left)
			}
		})
	}
}

// TestImportRunaway checks that a quotation mark that is not closed does not take
// a large file into memory, and that a long row which ends is refused alone.
func TestImportRunaway(t *testing.T) {
	long := strings.Repeat(strings.Repeat("y", 1023)+"\n", 2*maxRow/1024+64)
	tests := []struct {
		name, row, want string
	}{
		{"not closed", "\"" + long, "the row after that of line 3: the row takes in too much of the file"},
		{"closed", "\"" + long[:maxRow+1] + "\",z\nb,y\n", ""},
	}
	for _, tt := range tests {
		r, err := Check(ImportConfig{File: file(t, "a.csv", "text,label\na,x\nb,y\n"+tt.row), Suite: "s"})
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: Check = %v, want %q", tt.name, err, tt.want)
			}
			continue
		}
		if err != nil || r.Kept != 3 || len(r.Refused) != 1 || r.Refused[0].Line != 4 {
			t.Errorf("%s: Check = %v, %d kept, refused %v, want 3 and line 4", tt.name, err, r.Kept, r.Refused)
		}
	}
}

// TestReport checks what a person is told of the rows.
func TestReport(t *testing.T) {
	path := file(t, "a.csv", "text,label\nHello there,x\nhello  THERE!,x\nhello there,y\nother,y\nmuch longer text,Y\n")
	cfg := ImportConfig{File: path, Suite: "s", MaxLength: 12}
	r, err := Check(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := Report{
		File: path, Suite: "s", Format: "csv", Bytes: r.Bytes, Rows: 5, Kept: 5,
		Purposes:   map[record.Purpose]int{},
		Labels:     []LabelCount{{"label", "x", 2}, {"label", "y", 2}, {"label", "Y", 1}},
		Length:     Lengths{Unit: "characters", P50: 11, P90: 16, P99: 16, Max: 16, Over: 2},
		Duplicates: []Duplicate{{Line: 3, First: 2}},
		Conflicts:  []Conflict{{State: "hello there", Lines: []int{2, 3, 4}}},
		Warnings: []string{
			`options "Y" and "y" differ only in case, Unicode form or spelling of a number`,
			"3 of 3 labels have fewer than 5 rows",
			"1 state stands under different answers",
			"2 states are longer than 12 characters and will be cut",
		},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	cfg.Tokens = func(s string) int { return len(strings.Fields(s)) }
	if r, err = Check(cfg); err != nil || r.Length.Unit != "tokens" || r.Length.Max != 3 {
		t.Errorf("with a tokenizer, Length = %+v, %v", r.Length, err)
	}
}

// TestRepeats counts a row as repeating any earlier one of its state and answers.
func TestRepeats(t *testing.T) {
	path := file(t, "a.csv", "text,label\none,x\none,y\none,z\none,x\none,y\none,z\none,z\ntwo,x\n")
	r, err := Check(ImportConfig{File: path, Suite: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Duplicate{{5, 2}, {6, 3}, {7, 4}, {8, 4}}, r.Duplicates); diff != "" {
		t.Errorf("duplicates (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Conflict{{State: "one", Lines: []int{2, 3, 4, 5, 6, 7, 8}}}, r.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	if len(r.Warnings) == 0 || !strings.HasPrefix(r.Warnings[len(r.Warnings)-1], "1 state stands") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// TestImportTwice checks that one file gives one content, that a second import
// changes nothing, and that another content replaces a suite only when asked.
func TestImportTwice(t *testing.T) {
	out := t.TempDir()
	path := file(t, "a.csv", tickets)
	cfg := ImportConfig{File: path, Suite: "s", Out: out}
	first, err := Import(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Import(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("a second import differs (-first +second):\n%s", diff)
	}
	if err := os.WriteFile(path, []byte(tickets+"one more,card\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(cfg); err == nil || !strings.Contains(err.Error(), "holds another import") {
		t.Errorf("Import over another content = %v", err)
	}
	cfg.Replace = true
	replaced, err := Import(cfg)
	if err != nil || replaced.SHA256 == first.SHA256 {
		t.Errorf("replacing: %v, hash %s", err, replaced.SHA256)
	}
	if items := suiteItems(t, replaced.Dir); len(items) != 4 {
		t.Errorf("the suite has %d rows, want 4", len(items))
	}
	left, _ := os.ReadDir(out)
	if len(left) != 1 {
		t.Errorf("the folder holds %v, want the suite alone", left)
	}
}

// TestExample checks which rows are one example.
func TestExample(t *testing.T) {
	path := file(t, "a.csv", "text,label,thread\nHello there,x,7\nhello THERE!,y,7\nbye,x,\n")
	_, items := imported(t, ImportConfig{File: path})
	if items[0].CanonicalExampleID != items[1].CanonicalExampleID || items[0].CanonicalExampleID == items[2].CanonicalExampleID {
		t.Errorf("examples %q %q %q, want equal states to be one", items[0].CanonicalExampleID, items[1].CanonicalExampleID, items[2].CanonicalExampleID)
	}
	_, grouped := imported(t, ImportConfig{File: path, Group: "thread", Source: "mail"})
	if grouped[0].CanonicalExampleID != "mail:7" || grouped[2].CanonicalExampleID != items[2].CanonicalExampleID {
		t.Errorf("examples %q %q, want mail:7 and the state's own", grouped[0].CanonicalExampleID, grouped[2].CanonicalExampleID)
	}
}

func FuzzImport(f *testing.F) {
	f.Add("a.csv", tickets)
	f.Add("a.tsv", "text\tlabel\na\tx\nb\ty")
	f.Add("a.jsonl", `{"text":"a","label":"x"}`+"\n"+`{"text":"b","label":1}`)
	f.Add("a.jsonl", `{"state":"a","questions":{"q":{"type":"noul","instructions":"i"}},"target":{"q":[0,1]}}`)
	f.Fuzz(func(t *testing.T, name, content string) {
		if _, err := formatOf(name); err != nil || strings.ContainsAny(name, "/\x00") || len(name) > 100 {
			return
		}
		cfg := ImportConfig{File: file(t, name, content), Suite: "s", Out: t.TempDir()}
		r, err := Import(cfg)
		if r.Kept+len(r.Refused) != r.Rows && err == nil {
			t.Errorf("%d rows, %d kept, %d refused", r.Rows, r.Kept, len(r.Refused))
		}
		if err != nil {
			return
		}
		if items := suiteItems(t, r.Dir); len(items) != r.Kept {
			t.Errorf("%d kept, %d written", r.Kept, len(items))
		}
		if _, err := Stage(StageConfig{Suites: cfg.Out, Builds: t.TempDir(), Stage: "s", Takes: []Take{{Suite: "s", Times: 1}}}); err != nil {
			t.Errorf("staging what was imported: %v", err)
		}
	})
}
