package trainer

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/data"
)

// Stage is one training run as a person asks for it: one JSON document holding
// the fields of a job (HIP-1333 §3) and of a Kai stage file. [ParseStage] reads
// one and fills in what it leaves out; [Stage.Config] is the whole of it, in
// canonical form, and is the run's config artifact.
type Stage struct {
	// What is taught, and to what.
	Stage      string     `json:"stage"`      // its name: ^[a-z0-9][a-z0-9._-]{0,63}$
	BaseModel  string     `json:"base_model"` // "kai"
	Init       Init       `json:"init"`
	Takes      []Take     `json:"takes"`     // the data, one suite each
	Official   []string   `json:"official"`  // suites whose train rows skip the near-duplicate rule
	Fractions  *Fractions `json:"fractions"` // how rows without a split are divided; null: 70, 10, 20
	Manifest   string     `json:"manifest"`  // "<build>/manifest.json" pins the build; "": whatever the takes give
	Dataset    *Dataset   `json:"dataset"`   // null, or this stage's own build by name
	Objective  Objective  `json:"objective"`
	Adaptation Adaptation `json:"adaptation"`
	// Frozen are prefixes of the names of parameters that "full" leaves alone;
	// null leaves alone what kai.Model.Frozen says, the token embeddings.
	Frozen *[]string `json:"frozen"`

	// What must hold, and what is asked at the end.
	Protect    Protect    `json:"protect"`
	Evaluation Evaluation `json:"evaluation"`
	Output     Output     `json:"output"`

	// How it is trained.
	LREncoder   float64 `json:"lr_encoder"`   // peak learning rate of the encoder
	LRHead      float64 `json:"lr_head"`      // and of everything else
	WeightDecay float64 `json:"weight_decay"` // toward the base, per unit of learning rate
	Warmup      float64 `json:"warmup"`       // share of the steps, [0, 1]
	Cool        float64 `json:"cool"`         // share of the steps, [0, 1]
	Clip        float64 `json:"clip"`         // largest global norm of a step's gradient; 0: none
	Epochs      int     `json:"epochs"`       // passes over the rows; a readout's upper bound
	Patience    int     `json:"patience"`     // readout: epochs without a better select nll
	Seed        uint64  `json:"seed"`         // of the order of the rows
	MaxSteps    int     `json:"max_steps"`    // 0: the whole plan

	// How the rows become steps and micro-batches.
	BatchTokens int    `json:"batch_tokens"` // full: context tokens a step
	BatchRows   int    `json:"batch_rows"`   // readout: rows a step
	Budget      Budget `json:"budget"`       // of one micro-batch
	TopK        int    `json:"top_k"`        // options that enter the head
	MaxLen      int    `json:"max_len"`      // context tokens of a question

	// What is looked at on the way.
	EvalEvery int `json:"eval_every"` // steps between looks at the select rows; 0: none
	EvalRows  int `json:"eval_rows"`  // select rows looked at; 0: all

	Resources Resources `json:"resources"`

	// From, when it is not "", is a checkpoint, capability or adapter to evaluate
	// over the base instead of training: its address in the spool, or its folder
	// relative to the stage file.
	From string `json:"from"`
}

// Init names the base.
type Init struct {
	Dir   string `json:"dir"`   // a Kai checkpoint's folder, relative to the stage file
	Stage string `json:"stage"` // the stage that made it, "" when unknown
}

// Fractions divide rows whose file does not say their purpose, in percent.
type Fractions struct {
	Train int `json:"train"`
	Dev   int `json:"dev"`
	Test  int `json:"test"`
}

// Dataset is HIP-1333's way to name the data. Only stage:<this stage> runs here.
type Dataset struct {
	URI string `json:"uri"`
}

// Objective is what a step minimises.
type Objective struct {
	Loss  string `json:"loss"`  // "cross_entropy"
	Terms []Term `json:"terms"` // additions to it, at most one of a kind
}

// Term is an addition to the loss; see [kai.Term] for what each kind is.
type Term struct {
	Kind   string  `json:"kind"`   // kai.PairwiseMargin, kai.HardMargin or kai.Consistency
	Weight float64 `json:"weight"` // above 0
	Margin float64 `json:"margin"` // of the margins, in logits, above 0; 0 of consistency
}

// The ways a stage's parameters are represented.
const (
	Full    = "full"
	Readout = "readout"
	LoRA    = "lora"
	Auto    = "auto" // Full, or LoRA where Full does not fit
)

// Adaptation says which parameters are trained.
type Adaptation struct {
	Mode string `json:"mode"` // Full, Readout, LoRA or Auto
	// Chose is what Auto chose and why: "full: …" or "lora: …". [Stage.Choose]
	// writes it; nobody asks for it.
	Chose string `json:"chose,omitempty"`

	// LoRA's, zero in every other mode.
	Rank    int      `json:"rank,omitempty"`
	Alpha   float64  `json:"alpha,omitempty"`   // the change is alpha/rank times the product of the factors
	Targets []string `json:"targets,omitempty"` // modules, as in PEFT; none: every linear layer
}

// Protect names what training must not damage, and how it is kept.
//
// Where suites or capabilities are named, what is left out is on: projection at
// strength 1 and distillation at weight 1. The first is a guarantee about the
// update and not about accuracy, the second holds answers and guarantees nothing;
// what decides is the budget's gate. See test/bench/protection for what each does.
type Protect struct {
	Suites []string `json:"suites"`
	// Capabilities are addresses of capabilities in the spool whose own directions
	// join those of the suites.
	Capabilities []string      `json:"capabilities"`
	Projection   *Projection   `json:"projection"`   // null: off
	Distillation *Distillation `json:"distillation"` // null: off
	// Drift is how far the model may go from the base's answers on the preservation
	// rows: the mean KL(base‖model) in nats, looked at every 20 steps. Over
	// it the learning rate is halved, and the run ends when that has not helped.
	// null: no bound.
	Drift  *float64   `json:"drift"`
	Budget *Tolerance `json:"budget"` // null: no gate on them
}

// Projection takes every update off the directions that the protected suites'
// answers depend on at the base, one subspace a linear layer (package project).
// While it is on, only linear layers are trained.
type Projection struct {
	Strength float64 `json:"strength"` // λ in [0, 1]; 0 is off, and only 1 bounds anything
	Energy   float64 `json:"energy"`   // least share of the gradients' energy that a subspace holds, (0, 1]
	Cap      float64 `json:"cap"`      // most directions of a layer, as a share of its inputs, (0, 1]
	Rows     int     `json:"rows"`     // rows of each suite that it is built from
}

// Distillation adds KL(base‖model) on a preservation set drawn from the protected
// suites: as many rows a step as train. A stage file may say true or false.
type Distillation struct {
	Weight float64 `json:"weight"` // beside the targets' mean loss, above 0
	Rows   int     `json:"rows"`   // of each suite in the preservation set
}

// UnmarshalJSON takes an object over the defaults that stand there, true for the
// defaults, or false for none.
func (d *Distillation) UnmarshalJSON(b []byte) error {
	var on bool
	if json.Unmarshal(b, &on) == nil {
		if !on {
			d.Weight = 0
		}
		return nil
	}
	type plain Distillation
	return json.Unmarshal(b, (*plain)(d))
}

// Tolerance is how much each protected suite may lose, as fractions in [0, 1].
type Tolerance struct {
	Accuracy float64 `json:"accuracy"`
	ECE      float64 `json:"ece"`
}

// Evaluation names the suites that must improve.
type Evaluation struct {
	Suites []string `json:"suites"`
}

// The kinds of output a run here can have.
const (
	Checkpoint = "checkpoint"
	Capability = "capability"
	// an adapter alone, in PEFT's files, is LoRA
)

// Output names the run's result.
type Output struct {
	Kind string `json:"kind"` // Checkpoint, Capability or LoRA
	Name string `json:"name"`
}

// Budget caps one micro-batch, in tokens (Ctx, Options, Head) and rows. A single
// row over a cap makes a micro-batch of its own. It bounds memory and cannot
// change a result. Keys, which Kai's published stage file has, caps nothing here:
// retrieval ranks only a row's own options.
type Budget struct {
	Ctx     int `json:"ctx"`
	Options int `json:"options"`
	Head    int `json:"head"`
	Keys    int `json:"keys"`
	Rows    int `json:"rows"`
}

// Resources bounds the run.
type Resources struct {
	Steps int `json:"steps"` // 0: unbounded; else at most this many steps
}

// Mode is the adaptation that runs: Full, Readout or LoRA.
func (s Stage) Mode() string {
	if mode := s.Adaptation.Mode; mode != Auto {
		return mode
	}
	if strings.HasPrefix(s.Adaptation.Chose, LoRA+":") {
		return LoRA
	}
	return Full
}

// Data is the takes as a build is staged by them. A protected suite keeps rows for
// what protects it.
func (s Stage) Data() []data.Take {
	keep := 0
	if p := s.Protect.Projection; p != nil {
		keep = p.Rows
	}
	if d := s.Protect.Distillation; d != nil {
		keep = max(keep, d.Rows)
	}
	if s.Protect.Drift != nil {
		keep = max(keep, driftRows)
	}
	var list []data.Take
	for _, t := range s.Takes {
		take := t.data()
		if slices.Contains(s.Protect.Suites, t.Suite) && s.From == "" {
			take.Keep = keep
		}
		list = append(list, take)
	}
	return list
}

// Limit is the most steps the run may take, 0 when nothing bounds it.
func (s Stage) Limit() int {
	switch {
	case s.MaxSteps == 0:
		return s.Resources.Steps
	case s.Resources.Steps == 0:
		return s.MaxSteps
	}
	return min(s.MaxSteps, s.Resources.Steps)
}
