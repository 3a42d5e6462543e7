package data

import (
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// A Take is one suite's part in a stage.
type Take struct {
	Suite        string `json:"suite"`
	Rows         *int   `json:"rows"`          // rows trained on; nil: all; 0: the suite only judges
	Times        int    `json:"times"`         // how often each is read in an epoch, 1 or more
	BalanceClass bool   `json:"balance_class"` // as many draws of each answer
	BalanceLang  bool   `json:"balance_lang"`  // as many draws of each language
}

// Fractions divides rows whose file does not say their purpose, in percent.
type Fractions struct {
	Train int `json:"train"`
	Dev   int `json:"dev"`
	Test  int `json:"test"`
}

// StageConfig names what a build is made of. Suites, Builds, Stage and Takes are
// required.
type StageConfig struct {
	Suites    string // folder of open suites
	Builds    string // folder that receives the build
	Stage     string // ^[a-z0-9][a-z0-9._-]{0,63}$
	Takes     []Take
	Official  []string  // suites whose train rows pass the near-duplicate rule: only equal ones are left out
	Fractions Fractions // zero: 70, 10, 20
	Seed      uint64    // of which rows a take's cap chooses
}

// A StageReport is what a staging did.
type StageReport struct {
	Dir      string
	Existed  bool // an identical build was there
	Sets     []SetReport
	Excluded []Exclusion
	Warnings []string
}

// A SetReport is one sealed dataset of a build.
type SetReport struct {
	ID       string
	Suite    string
	Purpose  record.Purpose
	Items    int
	Draws    int // rows an epoch reads; 0 unless it is trained on
	Excluded int // rows the barrier left out
	Cut      int // rows the take's cap left out
	SHA256   canon.SHA256
}

// An Exclusion is a row that the barrier left out.
type Exclusion struct {
	Suite   string  `json:"suite"`
	Item    string  `json:"item"`
	Why     string  `json:"why"`     // "equal", "example" or "near"
	Against string  `json:"against"` // <suite>/<item> that it matches
	Jaccard float64 `json:"jaccard"` // of their word 5-grams; 1 unless near
}

// Stage seals the takes' suites into a build below cfg.Builds. A build of the
// same content is found by its name and left as it is.
func Stage(cfg StageConfig) (StageReport, error) { panic("data: unwritten") }
