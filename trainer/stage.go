package trainer

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
	Terms []Term `json:"terms"` // none run here yet
}

// Term is an addition to the loss.
type Term struct {
	Kind   string  `json:"kind"`
	Weight float64 `json:"weight"`
	Margin float64 `json:"margin"`
}

// The ways a stage's parameters are represented.
const (
	Full    = "full"
	Readout = "readout"
	Auto    = "auto" // chooses Full
)

// Adaptation says which parameters are trained.
type Adaptation struct {
	Mode  string `json:"mode"`            // Full, Readout or Auto
	Chose string `json:"chose,omitempty"` // what Auto chose and why; written, never asked for
}

// Protect names what training must not damage.
type Protect struct {
	Suites []string   `json:"suites"`
	Budget *Tolerance `json:"budget"` // null: no gate on them
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
)

// Output names the run's result.
type Output struct {
	Kind string `json:"kind"` // Checkpoint or Capability
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

// Mode is the adaptation that runs: Full or Readout.
func (s Stage) Mode() string {
	if s.Adaptation.Mode == Readout {
		return Readout
	}
	return Full
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
