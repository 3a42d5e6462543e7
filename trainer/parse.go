package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/kai"
)

// ParseStage reads a stage file. It is closed: a field it does not know is
// refused with the nearest one it does, a field whose meaning is not published
// is refused unless it holds the published default, and what a job may ask for
// but nothing here runs yet is refused by name. What the file leaves out takes
// the default of its adaptation.
func ParseStage(src []byte) (Stage, error) {
	s, err := parseStage(src)
	if err != nil {
		return Stage{}, fmt.Errorf("stage file: %w", err)
	}
	return s, nil
}

func parseStage(src []byte) (Stage, error) {
	doc, err := canon.Canonicalize(src)
	if err != nil {
		return Stage{}, err
	}
	doc, err = closed(doc, reflect.TypeFor[Stage](), "")
	if err != nil {
		return Stage{}, err
	}
	var asked struct {
		Adaptation Adaptation
		Protect    struct{ Projection, Distillation json.RawMessage }
	}
	if err := decode(doc, &asked); err != nil {
		return Stage{}, err
	}
	s := defaults((Stage{Adaptation: asked.Adaptation}).Mode())
	if err := decode(doc, &s); err != nil {
		return Stage{}, err
	}
	if err := s.checkProtect(asked.Protect.Projection != nil, asked.Protect.Distillation != nil); err != nil {
		return Stage{}, err
	}
	s.fill()
	return s, s.check()
}

// Config is the stage in canonical JSON, every default filled in: the run's
// config artifact. ParseStage reads it back to an equal Stage.
func (s Stage) Config() ([]byte, error) { return canon.Marshal(s) }

// defaults are those of an adaptation.
func defaults(mode string) Stage {
	s := Stage{
		BaseModel:  "kai",
		Objective:  Objective{Loss: "cross_entropy"},
		Adaptation: Adaptation{Mode: Full},
		Output:     Output{Kind: Capability},

		LREncoder: 3e-5, LRHead: 2e-4, WeightDecay: 0.01,
		Warmup: 0.03, Cool: 0.3, Clip: 1, Epochs: 3, Seed: 1,

		Protect: Protect{
			Projection:   &Projection{Strength: 1, Energy: 0.99, Cap: 0.25, Rows: 512},
			Distillation: &Distillation{Weight: 1, Rows: 512},
		},

		BatchTokens: 8192,
		Budget:      Budget{Ctx: 1024, Options: 1024, Head: 2048, Keys: 16384, Rows: 128},
	}
	switch mode {
	case LoRA:
		s.LREncoder, s.LRHead, s.WeightDecay = 2e-4, 5e-4, 0
		s.Adaptation = Adaptation{Mode: LoRA, Rank: 8, Alpha: 16}
	case Readout:
		s.LREncoder, s.LRHead, s.WeightDecay = 0, 1e-3, 0
		s.Warmup, s.Cool, s.Epochs, s.Patience = 0, 0, 200, 5
		s.BatchTokens, s.BatchRows = 0, 256
	}
	return s
}

// fill sets what follows from other fields.
func (s *Stage) fill() {
	if s.Adaptation.Mode == Auto && s.Adaptation.Chose == "" {
		s.Adaptation.Chose = "full: every parameter, the most that can be taught"
	}
	// What is off is not there. A readout changes nothing of its base, and so needs
	// no protection from itself.
	p := &s.Protect
	none := len(p.Suites)+len(p.Capabilities) == 0 || s.Mode() == Readout
	if none || p.Projection != nil && p.Projection.Strength == 0 {
		p.Projection = nil
	}
	if none || len(p.Suites) == 0 || p.Distillation != nil && p.Distillation.Weight == 0 {
		p.Distillation = nil
	}
	if none {
		p.Drift = nil
	}
	if s.Output.Name == "" {
		s.Output.Name = s.Stage
	}
	for i := range s.Takes {
		t := &s.Takes[i]
		if t.Times == 0 {
			t.Times = 1
		}
		if string(t.Criteria) == "null" {
			t.Criteria = nil
		}
	}
}

// A refusal says which canonical values of a known field are accepted, and why
// no other is.
type refusal struct {
	accept []string
	why    string
}

const (
	unpublished = "its meaning is not published: leave it out or keep the published value"
	notYet      = "it is not run here yet: leave it out"
)

// refused are the fields that the specifications name and a stage here does not
// carry. Paths are dotted; a list's elements add nothing.
var refused = map[string]refusal{
	"share":           {[]string{"1"}, unpublished},
	"evidence":        {[]string{"null"}, unpublished},
	"shared":          {[]string{"false"}, unpublished},
	"ordinal":         {[]string{"false"}, unpublished},
	"diffuse":         {[]string{"0"}, unpublished},
	"mixed":           {[]string{"0.05"}, unpublished},
	"decay":           {[]string{"1"}, unpublished},
	"retrieval":       {[]string{`{"whole":0.2,"wide":1}`}, unpublished},
	"outer":           {[]string{"1"}, unpublished},
	"momentum":        {[]string{"0.3"}, unpublished},
	"round":           {[]string{"300"}, unpublished},
	"grace":           {[]string{"60"}, unpublished},
	"budget.evidence": {[]string{"16384"}, unpublished},

	"licenses": {[]string{`["GREEN","YELLOW","RED"]`, "null"}, "a build here takes every license it is given"},
	"lang":     {[]string{"null"}, unpublished},
	"sources":  {[]string{"null", "[]"}, "name each suite in takes"},

	"revision": {[]string{"null", `""`}, "name the base's folder in init.dir"},
	"terms":    {[]string{"null", "[]"}, "write it as objective.terms"},
	"gate":     {[]string{"null"}, notYet},

	"dataset.splits":           {[]string{"null"}, "write it as each take's split"},
	"adaptation.basis":         {[]string{"null"}, notYet},
	"adaptation.sources":       {[]string{"null", "[]"}, notYet},
	"adaptation.residual_rank": {[]string{"null", "0"}, notYet},
	"resources.machines":       {[]string{"null", "[]"}, notYet},
	"resources.devices":        {[]string{"null", `["cpu"]`}, "a stage here runs on the cpu"},
	"resources.max_seconds":    {[]string{"null", "0"}, notYet},
	"resources.budget":         {[]string{"null", "0"}, "a run on your own machine costs nothing"},
}

// closed holds doc, canonical JSON, to the fields of the struct t and of the
// structs in it. It returns doc without the refused fields that hold an accepted
// value.
func closed(doc []byte, t reflect.Type, path string) ([]byte, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice && len(doc) > 0 && doc[0] == '[':
		var list []json.RawMessage
		if err := json.Unmarshal(doc, &list); err != nil {
			return nil, err
		}
		for i, e := range list {
			var err error
			if list[i], err = closed(e, t.Elem(), path); err != nil {
				return nil, err
			}
		}
		return json.Marshal(list)
	case t.Kind() == reflect.Struct && len(doc) > 0 && doc[0] == '{':
	default:
		return doc, nil // a value of another shape is decode's to refuse
	}
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = t.Field(i).Type
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(doc, &object); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := name
		if path != "" {
			at = path + "." + name
		}
		if ft, ok := fields[name]; ok {
			value, err := closed(object[name], ft, at)
			if err != nil {
				return nil, err
			}
			object[name] = value
			continue
		}
		r, ok := refused[at]
		if !ok {
			return nil, fmt.Errorf("%s is not a field%s", at, nearest(name, path, fields))
		}
		if !slices.Contains(r.accept, string(object[name])) {
			return nil, fmt.Errorf("%s: %s is refused: %s (%s)", at, object[name], r.why, strings.Join(r.accept, " or "))
		}
		delete(object, name)
	}
	return json.Marshal(object)
}

// nearest suggests the known field that name was probably meant to be.
func nearest(name, path string, fields map[string]reflect.Type) string {
	names := slices.Collect(maps.Keys(fields))
	for at := range refused {
		if parent, last, found := strings.Cut(at, "."); found && parent == path {
			names = append(names, last)
		} else if !found && path == "" {
			names = append(names, at)
		}
	}
	slices.Sort(names)
	best, least := "", 1+max(2, len(name)/3)
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	if best == "" {
		return ": known are " + strings.Join(names, ", ")
	}
	return fmt.Sprintf(": did you mean %s?", best)
}

// distance is how many bytes must be inserted, deleted, replaced or swapped with
// a neighbour to turn a into b (optimal string alignment).
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev2, prev, row := rows[(i+1)%3], rows[(i+2)%3], rows[i%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}

// decode reads doc, which closed has passed, into v over what v holds already.
func decode(doc []byte, v any) error {
	err := json.Unmarshal(doc, v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: want %s, have %s", e.Field, kindOf(e.Type), e.Value)
	}
	return err
}

// kindOf names a Go type as a person who writes JSON would.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number from 0"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

var stageName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// check holds the values to their ranges, in the order a person reads the file.
func (s *Stage) check() error {
	if !stageName.MatchString(s.Stage) {
		return fmt.Errorf("stage: %q is not a name: lower-case letters, digits, '.', '_' and '-', at most 64", s.Stage)
	}
	if s.BaseModel != "kai" {
		return fmt.Errorf("base_model: %q is not trained here: kai is", s.BaseModel)
	}
	if s.Dataset != nil && s.Dataset.URI != "stage:"+s.Stage {
		return fmt.Errorf("dataset.uri: %q is not run here: name files in takes, or stage:%s", s.Dataset.URI, s.Stage)
	}
	if err := s.checkAdaptation(); err != nil {
		return err
	}
	if err := s.checkObjective(); err != nil {
		return err
	}
	switch s.Output.Kind {
	case Checkpoint, Capability:
	case LoRA:
		if s.Mode() != LoRA {
			return fmt.Errorf("output.kind: lora is what adaptation.mode lora makes, this one is %s", s.Adaptation.Mode)
		}
	case "basis", "merged":
		return fmt.Errorf("output.kind: %s is not run here yet: checkpoint, capability and lora are", s.Output.Kind)
	default:
		return fmt.Errorf("output.kind: %q is not an output: checkpoint, capability and lora are", s.Output.Kind)
	}
	if !stageName.MatchString(s.Output.Name) {
		return fmt.Errorf("output.name: %q is not a name: lower-case letters, digits, '.', '_' and '-', at most 64", s.Output.Name)
	}
	if err := s.checkSuites(); err != nil {
		return err
	}
	return s.checkNumbers()
}

// checkAdaptation holds the adaptation to what runs here.
func (s *Stage) checkAdaptation() error {
	a := s.Adaptation
	switch a.Mode {
	case Full, Readout, LoRA, Auto:
	case "qlora", "basis":
		return fmt.Errorf("adaptation.mode: %s is not run here yet: full, readout, lora and auto are", a.Mode)
	default:
		return fmt.Errorf("adaptation.mode: %q is not an adaptation: full, readout, lora and auto are", a.Mode)
	}
	switch {
	case a.Mode != Auto && a.Chose != "":
		return errors.New("adaptation.chose: is written by auto, not asked for")
	case a.Mode == Auto && !strings.HasPrefix(a.Chose, Full+":") && !strings.HasPrefix(a.Chose, LoRA+":"):
		return fmt.Errorf("adaptation.chose: %q is none that auto writes: leave it out", a.Chose)
	case s.Mode() != LoRA && (a.Rank != 0 || a.Alpha != 0 || len(a.Targets) > 0):
		return fmt.Errorf("adaptation.rank: rank, alpha and targets are lora's, this one is %s", a.Mode)
	case s.Mode() != LoRA:
	case a.Rank < 1:
		return fmt.Errorf("adaptation.rank: %d: want at least 1", a.Rank)
	case !within(a.Alpha, 1e-6, 1e6):
		return fmt.Errorf("adaptation.alpha: %v: want above 0; twice the rank is usual", a.Alpha)
	}
	return nil
}

// checkObjective holds the terms to their kinds and ranges.
func (s *Stage) checkObjective() error {
	if s.Objective.Loss != "cross_entropy" {
		return fmt.Errorf("objective.loss: %q is not an objective: cross_entropy is", s.Objective.Loss)
	}
	if len(s.Objective.Terms) > 0 && s.Mode() == Readout {
		return errors.New("objective.terms: a readout is trained by cross-entropy alone: use adaptation full or lora")
	}
	seen := map[string]bool{}
	for i, t := range s.Objective.Terms {
		at := fmt.Sprintf("objective.terms[%d]", i)
		switch {
		case t.Kind != kai.PairwiseMargin && t.Kind != kai.HardMargin && t.Kind != kai.Consistency:
			return fmt.Errorf("%s.kind: %q is not a term: pairwise_margin, hard_margin and consistency are", at, t.Kind)
		case seen[t.Kind]:
			return fmt.Errorf("%s.kind: %s is there twice: add their weights", at, t.Kind)
		case !within(t.Weight, 1e-9, 1e6):
			return fmt.Errorf("%s.weight: %v: want above 0", at, t.Weight)
		case t.Kind == kai.Consistency && t.Margin != 0:
			return fmt.Errorf("%s.margin: consistency has none", at)
		case t.Kind != kai.Consistency && !within(t.Margin, 1e-9, 1e6):
			return fmt.Errorf("%s.margin: %v: want above 0, in logits", at, t.Margin)
		}
		seen[t.Kind] = true
	}
	return nil
}

// checkProtect holds what the stage says of protection to its ranges, before fill
// takes away what is off. projection and distillation report what the file names.
func (s *Stage) checkProtect(projection, distillation bool) error {
	p := s.Protect
	none := len(p.Suites)+len(p.Capabilities) == 0
	if j := p.Projection; j != nil {
		switch {
		case !within(j.Strength, 0, 1):
			return fmt.Errorf("protect.projection.strength: %v is outside [0, 1]: 1 takes the whole of the protected directions out of every update, 0 nothing", j.Strength)
		case !within(j.Energy, 0.01, 1):
			return fmt.Errorf("protect.projection.energy: %v is outside [0.01, 1]", j.Energy)
		case !within(j.Cap, 0.001, 1):
			return fmt.Errorf("protect.projection.cap: %v is outside [0.001, 1]", j.Cap)
		case j.Rows < 2 || j.Rows > 1e6:
			return fmt.Errorf("protect.projection.rows: %d is outside [2, 1000000]", j.Rows)
		case projection && none && j.Strength > 0:
			return errors.New("protect.projection: there is nothing to protect: name suites or capabilities")
		}
	}
	if d := p.Distillation; d != nil {
		switch {
		case !within(d.Weight, 0, 1e6):
			return fmt.Errorf("protect.distillation.weight: %v is outside [0, 1e6]", d.Weight)
		case d.Rows < 2 || d.Rows > 1e6:
			return fmt.Errorf("protect.distillation.rows: %d is outside [2, 1000000]", d.Rows)
		case distillation && len(p.Suites) == 0 && d.Weight > 0:
			return errors.New("protect.distillation: there is nothing to preserve: name suites")
		}
	}
	if d := p.Drift; d != nil {
		switch {
		case !within(*d, 1e-9, 100):
			return fmt.Errorf("protect.drift: %v: want above 0, in nats; .05 is a little, .5 a lot", *d)
		case len(p.Suites) == 0:
			return errors.New("protect.drift: there is nothing to look at: name suites")
		}
	}
	for i, c := range p.Capabilities {
		if !canon.SHA256(c).Valid() {
			return fmt.Errorf("protect.capabilities[%d]: %q is not the address of a capability: 64 hex digits, as train fit --json prints it", i, c)
		}
		if slices.Contains(p.Capabilities[:i], c) {
			return fmt.Errorf("protect.capabilities: %s is named twice", c)
		}
	}
	return nil
}

// checkSuites holds takes, protect and evaluation to one another.
func (s *Stage) checkSuites() error {
	if len(s.Takes) == 0 {
		return errors.New("takes: is empty: name at least one suite to train on")
	}
	taken := map[string]bool{}
	for i, t := range s.Takes {
		if err := t.Check(); err != nil {
			return fmt.Errorf("takes[%d].%w", i, err)
		}
		if taken[t.Suite] {
			return fmt.Errorf("takes[%d].suite: %s is taken twice: use times to repeat it", i, t.Suite)
		}
		taken[t.Suite] = true
	}
	for _, list := range []struct {
		name   string
		suites []string
	}{{"protect.suites", s.Protect.Suites}, {"evaluation.suites", s.Evaluation.Suites}} {
		for i, suite := range list.suites {
			if !taken[suite] {
				return fmt.Errorf("%s: %q is in no take: add {\"suite\": %q, \"rows\": 0, …} to evaluate it without training on it", list.name, suite, suite)
			}
			if slices.Contains(list.suites[:i], suite) {
				return fmt.Errorf("%s: %s is named twice", list.name, suite)
			}
		}
	}
	for _, suite := range s.Official {
		if !taken[suite] {
			return fmt.Errorf("official: %q is in no take", suite)
		}
	}
	if f := s.Fractions; f != nil && (f.Train < 0 || f.Dev < 0 || f.Test < 0 || f.Train+f.Dev+f.Test != 100) {
		return fmt.Errorf("fractions: %d, %d and %d are not percents that add to 100", f.Train, f.Dev, f.Test)
	}
	for _, suite := range s.Evaluation.Suites {
		if slices.Contains(s.Protect.Suites, suite) {
			return fmt.Errorf("evaluation.suites: %s is also protected: a suite must either hold or improve", suite)
		}
	}
	if b := s.Protect.Budget; b != nil {
		if len(s.Protect.Suites) == 0 {
			return errors.New("protect.budget: bounds nothing: name the suites in protect.suites")
		}
		if !within(b.Accuracy, 0, 1) || !within(b.ECE, 0, 1) {
			return fmt.Errorf("protect.budget: %v and %v: want shares in [0, 1]", b.Accuracy, b.ECE)
		}
	}
	return nil
}

// checkNumbers holds every number to its range.
func (s *Stage) checkNumbers() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"lr_encoder", s.LREncoder, 0, 1}, {"lr_head", s.LRHead, 0, 1}, {"weight_decay", s.WeightDecay, 0, 1},
		{"warmup", s.Warmup, 0, 1}, {"cool", s.Cool, 0, 1}, {"clip", s.Clip, 0, 1e6},
		{"epochs", float64(s.Epochs), 1, 10000}, {"patience", float64(s.Patience), 0, 10000},
		{"max_steps", float64(s.MaxSteps), 0, 1e9}, {"resources.steps", float64(s.Resources.Steps), 0, 1e9},
		{"top_k", float64(s.TopK), 0, 1e6}, {"max_len", float64(s.MaxLen), 0, 1e6},
		{"eval_every", float64(s.EvalEvery), 0, 1e9}, {"eval_rows", float64(s.EvalRows), 0, 1e9},
		{"budget.ctx", float64(s.Budget.Ctx), 1, 1e9}, {"budget.options", float64(s.Budget.Options), 1, 1e9},
		{"budget.head", float64(s.Budget.Head), 1, 1e9}, {"budget.keys", float64(s.Budget.Keys), 1, 1e9},
		{"budget.rows", float64(s.Budget.Rows), 1, 1e9},
	} {
		if !within(f.v, f.lo, f.hi) {
			return fmt.Errorf("%s: %v is outside [%v, %v]", f.name, f.v, f.lo, f.hi)
		}
	}
	if s.Seed > 1<<53 {
		return fmt.Errorf("seed: %d is over 2^53, which not every reader of the record can hold", s.Seed)
	}
	size, name := s.BatchTokens, "batch_tokens"
	if s.Mode() == Readout {
		size, name = s.BatchRows, "batch_rows"
	}
	if size < 1 {
		return fmt.Errorf("%s: %d: a step needs at least 1", name, size)
	}
	switch {
	case s.TopK == 1:
		return errors.New("top_k: 1 leaves nothing to choose from: want at least 2, or 0 for the base's")
	case s.MaxLen > 0 && s.MaxLen < 8:
		return fmt.Errorf("max_len: %d holds no question: want at least 8, or 0 for the base's", s.MaxLen)
	case s.LRHead == 0 && s.Mode() == Readout:
		return errors.New("lr_head: nothing is trained: a readout's learning rate is 0")
	case s.LREncoder == 0 && s.LRHead == 0:
		return errors.New("lr_head: nothing is trained: both learning rates are 0")
	}
	return nil
}

func within(v, lo, hi float64) bool { return v >= lo && v <= hi && !math.IsNaN(v) }
