package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// A Take is one suite's part in a stage.
type Take struct {
	Suite        string `json:"suite"`
	Rows         *int   `json:"rows"`          // rows trained on; nil: all; 0: the suite only judges
	Times        int    `json:"times"`         // how often each is read in an epoch, 1 or more
	BalanceClass bool   `json:"balance_class"` // as many draws of each answer
	BalanceLang  bool   `json:"balance_lang"`  // as many draws of each language

	// Keep is how many of the suite's train rows that the take does not draw are
	// sealed as a set of split "keep", for preservation: 0, or 2 or more. Of a
	// suite that only judges the dev rows are then sealed too.
	Keep int `json:"keep,omitzero"`
}

// Fractions divides rows whose file does not say their purpose, in percent.
type Fractions struct {
	Train int `json:"train"`
	Dev   int `json:"dev"`
	Test  int `json:"test"`
}

var defaultFractions = Fractions{Train: 70, Dev: 10, Test: 20}

// StageConfig names what a build is made of. Suites, Builds, Stage and Takes are
// required.
type StageConfig struct {
	Suites    string // folder of open suites
	Builds    string // folder that receives the build
	Stage     string // ^[a-z0-9][a-z0-9._-]{0,63}$
	Takes     []Take
	Official  []string  // suites whose train rows pass the near-duplicate rule: only equal ones are left out
	Fractions Fractions // zero: 70, 10 and 20
	Seed      uint64    // of which rows a take's cap chooses
}

// A StageReport is what a staging did.
type StageReport struct {
	Dir      string      `json:"dir"`
	Existed  bool        `json:"existed"` // an identical build was there
	Sets     []SetReport `json:"sets"`
	Excluded []Exclusion `json:"excluded"` // by suite and item, as the suites list them
	Warnings []string    `json:"warnings"`
}

// A SetReport is one sealed dataset of a build.
type SetReport struct {
	ID       string         `json:"id"`
	Suite    string         `json:"suite"`
	Purpose  record.Purpose `json:"purpose"`
	Items    int            `json:"items"`
	Split    string         `json:"split"`
	Draws    int            `json:"draws"`    // rows an epoch reads; 0 unless it is trained on
	Excluded int            `json:"excluded"` // rows the barrier left out
	Cut      int            `json:"cut"`      // train rows that the take neither draws nor keeps
	SHA256   canon.SHA256   `json:"sha256"`
}

// An Exclusion is a row that the barrier left out.
type Exclusion struct {
	Suite   string  `json:"suite"`
	Item    string  `json:"item"`
	Why     string  `json:"why"`     // "equal", "example" or "near"
	Against string  `json:"against"` // <suite>/<item> that it repeats
	Jaccard float64 `json:"jaccard"` // of their word 5-grams; 1 unless near
}

// Stage seals the takes' suites into a build below cfg.Builds.
//
// A row whose file does not say its purpose goes by the hash of its example. A
// suite with train rows and no dev rows gives the Dev percent of its train rows,
// by the same hash, to dev, because something has to choose when to stop. Train,
// dev and teacher_mining rows that repeat a row of an eval_only or sealed_eval
// set are left out, and so are dev rows that repeat a train row: a temperature
// must not be fitted on rows that were trained on.
//
// What a take keeps trains nothing: a row that is the example of one that trains,
// or has its state, is not kept, whichever suite trains on it. It is an error when
// fewer than two rows are left to keep.
//
// A build of the same content is found by its name and left as it is.
func Stage(cfg StageConfig) (StageReport, error) {
	s := stager{cfg: cfg}
	if err := s.run(); err != nil {
		return StageReport{}, fmt.Errorf("staging %s: %w", cfg.Stage, err)
	}
	return s.report, nil
}

// A part is the rows of a suite that are sealed together.
type part struct {
	split   string // of the dataset id
	purpose record.Purpose
}

// keepSplit is the split of the rows that are kept for preservation.
const keepSplit = "keep"

// parts are those of a suite, in the order in which a manifest lists them.
var parts = []part{
	{"train", record.Train}, {keepSplit, record.Train}, {"dev", record.Dev},
	{"test", record.EvalOnly}, {"sealed", record.SealedEval}, {"mining", record.TeacherMining},
}

// roles are how a run reads what a stage seals.
var roles = map[record.Purpose]record.Role{
	record.Train: record.RoleTrain, record.Dev: record.RoleSelect, record.EvalOnly: record.RoleEvaluate,
	record.SealedEval: record.RoleEvaluate, record.TeacherMining: record.RoleQuery,
}

var stageName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

type stager struct {
	cfg     StageConfig
	report  StageReport
	sources []*source
	barrier *barrier

	trainExamples map[string]bool   // of train rows that passed the barrier
	trainUnits    map[[16]byte]bool // and their units
}

// A source is one take's suite while it is staged.
type source struct {
	take  Take
	suite suite
	path  string
	rows  []entry

	shared int // train rows that are not kept because they are trained on elsewhere
}

// An entry is where a row stands in its suite's file, and what staging needs of
// it.
type entry struct {
	trace
	offset   int64
	size     int
	purpose  record.Purpose
	class    string
	lang     string
	excluded bool
	draws    int
	kept     bool
}

func (s *stager) run() error {
	if err := s.check(); err != nil {
		return err
	}
	s.barrier = newBarrier()
	for _, take := range s.cfg.Takes {
		src, err := s.scan(take)
		if err != nil {
			return err
		}
		s.sources = append(s.sources, src)
	}
	// The barrier needs every protected row before it looks at the first other,
	// and dev every train row.
	s.trainExamples, s.trainUnits = make(map[string]bool), make(map[[16]byte]bool)
	for _, purpose := range []record.Purpose{record.Train, record.TeacherMining, record.Dev} {
		for _, src := range s.sources {
			s.exclude(src, purpose)
		}
	}
	for _, src := range s.sources {
		src.draw(s.cfg.Seed)
	}
	if err := s.keep(); err != nil {
		return err
	}
	for _, src := range s.sources {
		s.warn(src)
	}
	return s.write()
}

func (s *stager) check() error {
	cfg := &s.cfg
	if cfg.Fractions == (Fractions{}) {
		cfg.Fractions = defaultFractions
	}
	f := cfg.Fractions
	switch {
	case !stageName.MatchString(cfg.Stage):
		return fmt.Errorf("the stage's name %q must match %s", cfg.Stage, stageName)
	case len(cfg.Takes) == 0:
		return errors.New("it takes nothing; name a suite in takes")
	case f.Train < 0 || f.Dev < 0 || f.Test < 0 || f.Train+f.Dev+f.Test != 100:
		return fmt.Errorf("fractions %d, %d, %d must be percents that sum to 100", f.Train, f.Dev, f.Test)
	}
	cfg.Takes = slices.Clone(cfg.Takes)
	slices.SortFunc(cfg.Takes, func(a, b Take) int { return strings.Compare(a.Suite, b.Suite) })
	for i, take := range cfg.Takes {
		switch {
		case i > 0 && take.Suite == cfg.Takes[i-1].Suite:
			return fmt.Errorf("suite %s is taken twice; use times to repeat its rows", take.Suite)
		case take.Rows != nil && *take.Rows < 0:
			return fmt.Errorf("suite %s: rows is %d", take.Suite, *take.Rows)
		case take.Times < 1:
			return fmt.Errorf("suite %s: times is %d; it must be 1 or more", take.Suite, take.Times)
		case take.Keep < 0 || take.Keep == 1:
			return fmt.Errorf("suite %s: keep is %d; it must be 0, or 2 or more", take.Suite, take.Keep)
		}
	}
	cfg.Official = slices.Clone(cfg.Official)
	slices.Sort(cfg.Official)
	for _, name := range cfg.Official {
		if !slices.ContainsFunc(cfg.Takes, func(t Take) bool { return t.Suite == name }) {
			return fmt.Errorf("official names suite %s, which is not taken", name)
		}
	}
	return nil
}

// scan reads a suite once: it checks the file, gives every row its purpose and
// the protected ones to the barrier.
func (s *stager) scan(take Take) (*source, error) {
	su, err := openSuite(s.cfg.Suites, take.Suite)
	if err != nil {
		return nil, err
	}
	src := &source{take: take, suite: su, path: filepath.Join(s.cfg.Suites, take.Suite, itemsFile)}
	sum := sha256.New()
	var reader decision.Reader
	counts := make(map[record.Purpose]int)
	ids := make(map[string]bool)
	err = src.each(sum, func(n int, offset int64, line []byte) error {
		e, err := readEntry(su.Suite, line, &reader)
		if err != nil {
			return fmt.Errorf("%s line %d: %w: %w", src.path, n, ErrCorrupt, err)
		}
		if ids[e.item] {
			return fmt.Errorf("%s line %d: %w: item %s a second time", src.path, n, ErrCorrupt, e.item)
		}
		ids[e.item] = true
		e.offset, e.size = offset, len(line)
		if e.purpose == "" {
			e.purpose = s.cfg.Fractions.of(e.example)
		}
		if e.purpose.Evaluation() {
			s.barrier.add(e.trace)
			e.grams = nil
		}
		counts[e.purpose]++
		src.rows = append(src.rows, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if got := canon.SHA256(hex.EncodeToString(sum.Sum(nil))); got != su.SHA256 || len(src.rows) != su.Items {
		return nil, fmt.Errorf("%s: %w: it is not what was imported; import the file again", src.path, ErrCorrupt)
	}
	if counts[record.Train] > 0 && counts[record.Dev] == 0 {
		moved := 0
		for i := range src.rows {
			if e := &src.rows[i]; e.purpose == record.Train && s.cfg.Fractions.of(e.example) == record.Dev {
				e.purpose = record.Dev
				moved++
			}
		}
		if moved > 0 {
			s.report.Warnings = append(s.report.Warnings,
				fmt.Sprintf("suite %s has no validation rows: %d of its %d train rows became dev", su.Suite, moved, counts[record.Train]))
		}
	}
	return src, nil
}

// of is the purpose that an example has by its hash.
func (f Fractions) of(example string) record.Purpose {
	percent, _ := bits.Mul64(point(example), 100) // floor(100 point / 2^64)
	switch {
	case int(percent) < f.Train:
		return record.Train
	case int(percent) < f.Train+f.Dev:
		return record.Dev
	}
	return record.EvalOnly
}

// each reads a suite's lines, without their newlines, through sum.
func (src *source) each(sum io.Writer, line func(n int, offset int64, line []byte) error) error {
	f, err := os.Open(src.path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.TeeReader(f, sum), 1<<20)
	offset := int64(0)
	for n := 1; ; n++ {
		text, err := r.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return nil
		}
		if err == io.EOF {
			return fmt.Errorf("%s line %d: %w: the file is cut", src.path, n, ErrCorrupt)
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", src.path, err)
		}
		if err := line(n, offset, text[:len(text)-1]); err != nil {
			return err
		}
		offset += int64(len(text))
	}
}

// A stagedItem is a suite's line as staging reads it: an openItem whose input is
// taken apart.
type stagedItem struct {
	CanonicalExampleID string     `json:"canonical_example_id"`
	ContaminationHash  canon.Hash `json:"contamination_hash"`
	ItemID             string     `json:"item_id"`
	Payload            struct {
		Gold  canon.Raw `json:"gold"`
		Input struct {
			Lang      *string   `json:"lang"`
			Questions canon.Raw `json:"questions"`
			State     canon.Raw `json:"state"`
		} `json:"input"`
	} `json:"payload"`
	Purpose    *record.Purpose `json:"purpose"`
	SourceHash canon.Hash      `json:"source_hash"`
}

// readEntry reads a suite's line. The entry's purpose is empty when the line has
// none.
func readEntry(suite string, line []byte, reader *decision.Reader) (entry, error) {
	var it stagedItem
	if err := canon.Unmarshal(line, &it); err != nil {
		return entry{}, err
	}
	if !record.ValidItem(it.ItemID) {
		return entry{}, fmt.Errorf("item_id %q is not an item's", it.ItemID)
	}
	asked, err := reader.Asked(it.Payload.Input.Questions, it.Payload.Gold)
	if err != nil {
		return entry{}, err
	}
	leaves, err := record.Leaves(it.Payload.Input.State)
	if err != nil {
		return entry{}, err
	}
	e := entry{trace: newTrace(suite, it.ItemID, it.CanonicalExampleID, it.ContaminationHash, leaves)}
	if it.Payload.Input.Lang != nil {
		e.lang = *it.Payload.Input.Lang
	}
	if a := asked[0]; a.Target != nil {
		e.class = a.Key + "\x00" + a.Question.Options[argmax(a.Question, a.Target)].Text
	}
	if it.Purpose != nil {
		e.purpose = *it.Purpose
	}
	return e, nil
}

// exclude holds a suite's rows of one purpose against the barrier.
func (s *stager) exclude(src *source, purpose record.Purpose) {
	near := !slices.Contains(s.cfg.Official, src.suite.Suite)
	for i := range src.rows {
		e := &src.rows[i]
		if e.purpose != purpose {
			continue
		}
		ex, found := s.barrier.match(e.trace, near)
		if !found && purpose == record.Dev {
			ex, found = s.repeatsTrain(e.trace)
		}
		if found {
			e.excluded = true
			s.report.Excluded = append(s.report.Excluded, ex)
		} else if purpose == record.Train {
			s.trainExamples[e.example] = true
			if e.words > 0 {
				s.trainUnits[e.unit] = true
			}
		}
		e.grams = nil // of no more use, and most of what an entry holds
	}
}

// repeatsTrain reports a dev row whose state or example is trained on.
func (s *stager) repeatsTrain(t trace) (Exclusion, bool) {
	ex := Exclusion{Suite: t.suite, Item: t.item, Why: "equal", Against: "train", Jaccard: 1}
	if t.words > 0 && s.trainUnits[t.unit] {
		return ex, true
	}
	ex.Why = "example"
	return ex, s.trainExamples[t.example]
}

// read is the row's line.
func (e *entry) read(f io.ReaderAt) ([]byte, error) {
	line := make([]byte, e.size)
	if _, err := f.ReadAt(line, e.offset); err != nil {
		return nil, fmt.Errorf("item %s: %w", e.item, err)
	}
	return line, nil
}

// draw decides which of the suite's train rows are read, and how often.
func (src *source) draw(seed uint64) {
	var list []candidate
	var rows []int
	for i, e := range src.rows {
		if e.purpose == record.Train && !e.excluded {
			list = append(list, candidate{id: e.item, class: e.class, lang: e.lang})
			rows = append(rows, i)
		}
	}
	draw(list, src.take, seed)
	for i, c := range list {
		src.rows[rows[i]].draws = c.draws
	}
}

// judges reports whether a suite is taken for its evaluation rows alone.
func (t Take) judges() bool { return t.Rows != nil && *t.Rows == 0 }

// chosen lists the suite's rows that are sealed as a part, by id.
func (src *source) chosen(p part) []entry {
	if src.take.judges() && !p.purpose.Evaluation() && src.take.Keep == 0 {
		return nil
	}
	var list []entry
	for _, e := range src.rows {
		if e.purpose != p.purpose || e.excluded {
			continue
		}
		if p.split == keepSplit && !e.kept || p.split == "train" && e.draws == 0 {
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.item, b.item) })
	return list
}

// warn says what a person should know of a suite's sets.
func (s *stager) warn(src *source) {
	name := src.suite.Suite
	sealed := make(map[record.Purpose]int)
	kept := 0
	for _, p := range parts {
		n := len(src.chosen(p))
		if p.split == keepSplit {
			kept = n
		} else {
			sealed[p.purpose] = n
		}
	}
	if !src.take.judges() && sealed[record.Train] == 0 {
		s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("suite %s has no row to train on", name))
	}
	if src.shared > 0 {
		s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("suite %s: %d train rows are not kept for preservation, because their text also trains", name, src.shared))
	}
	if kept < src.take.Keep {
		s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("suite %s keeps %d rows for preservation of the %d asked for: no more are left", name, kept, src.take.Keep))
	}
	if sealed[record.EvalOnly]+sealed[record.SealedEval] == 0 {
		s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("suite %s has no row to be judged by", name))
	}
	if slices.Contains(s.cfg.Official, name) {
		s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("suite %s is official: its near duplicates of evaluation rows were kept", name))
	}
}
