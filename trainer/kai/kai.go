// Package kai is the Kai decision model: it reads a state and a question, and
// gives every option of the question a probability. It holds the model's
// parameters, computes forward and backward by hand, and reads and writes its
// checkpoints. It holds no optimizer, no data order, no metrics and no record of
// a run: packages trainer, data, eval and spool do.
//
// # The model
//
// An encoder (ModernBERT or BERT) reads the context
//
//	[CLS] "<type> question: <instructions>" [SEP] state [SEP]
//
// and, apart from it, each option as [CLS] option [SEP]. A text's vector is the
// mean over its tokens' final states. Retrieval ranks the options by the product
// of two linear maps of the first states and lets the best into the head; the
// head is a small transformer over the context's states and one vector an
// option, with one logit an option.
//
// # Letters
//
// In comments and shapes: t tokens of a pack, d the width, h the feed-forward
// width, R rows (questions) of a micro-batch, N options that entered the head,
// n distinct option texts of a step, r the retrieval width.
//
// # The same bits
//
// A question's logits do not depend on the rows it is packed with, nor on the
// order in which the caller lists the options: options are processed in the
// order of their text. A step's gradients do not depend on how the step is cut
// into micro-batches: contexts go in row order, the gradients of the option
// vectors add up in row order, and the options' backward runs last. Losses and
// probabilities are computed in float64 with this package's own exp and log, so
// that they do not depend on the machine.
//
// # What a step minimises
//
// The losses against the rows' targets, and what an [Objective] adds: terms that
// compare questions, and the distance from what another model answered, a
// [Teacher]. [Loss] says how they add up. [Model.Sensitivity] is not of a loss but
// of an answer: package project builds from it what a run must leave alone.
//
// # Concurrency and errors
//
// A Model and all that was made from it are used by one goroutine at a time; the
// package starts none. A file or row that cannot be used is an error that names
// it; a panic is a fault of this repository.
package kai

import (
	"errors"
	"fmt"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/tokenizer"
)

// Model is the encoder, the head and the readouts of one checkpoint, on one
// device.
type Model struct {
	Config Config
	// Budget bounds one pack of rows or option texts. It changes speed and memory
	// and not a bit of any result.
	Budget Budget
	// SHA256 is the address of model.safetensors as it was loaded or last saved,
	// 64 hex; empty when the weights are those of no file: after [Init] and after
	// a [Model.Step].
	SHA256 string

	dev       kernels.Device
	arena     arena
	hf        hfConfig
	tokenizer *tokenizer.Tokenizer
	cls, sep  int32 // what starts and ends a text

	params  params
	encoder *encoder
	head    *head
	version int // counts what may have changed the weights

	readouts map[string]*Readout
}

// Budget bounds what is computed at once. A single row or text larger than a
// bound goes alone.
type Budget struct {
	Context int // tokens of contexts
	Options int // tokens of option texts
	Head    int // tokens and options entering the head
	Rows    int // questions
}

// DefaultBudget keeps a small encoder's working memory at a few hundred
// megabytes. Packs four times as large took four times the memory and as many
// processor seconds, measured with MiniLM.
var DefaultBudget = Budget{Context: 1024, Options: 1024, Head: 2048, Rows: 128}

// build declares the model of a config. Its parameters have no memory yet:
// weights are compared with the declaration first, so that a damaged config
// cannot ask for more than its file holds.
func build(c Config, tok *tokenizer.Tokenizer, dev kernels.Device) (*Model, error) {
	hf, err := parseHF(c.Encoder)
	if err != nil {
		return nil, err
	}
	if c.MaxLen > hf.Positions {
		return nil, fmt.Errorf("max_len is %d, but the encoder has %d positions", c.MaxLen, hf.Positions)
	}
	if c.OptionLen > hf.Positions {
		return nil, fmt.Errorf("option_len is %d, but the encoder has %d positions", c.OptionLen, hf.Positions)
	}
	if n := tok.VocabSize(); n > hf.Vocab {
		return nil, fmt.Errorf("the tokenizer has %d tokens, but the encoder embeds %d: they do not belong together", n, hf.Vocab)
	}
	m := assemble(c, hf, dev)
	m.tokenizer = tok
	m.cls, m.sep, err = ends(hf, tok)
	return m, err
}

// assemble declares what a config asks for.
func assemble(c Config, hf hfConfig, dev kernels.Device) *Model {
	m := &Model{Config: c, Budget: DefaultBudget, dev: dev, arena: arena{dev: dev}, hf: hf, readouts: make(map[string]*Readout)}
	m.encoder = newEncoder(hf, &m.params)
	m.head = newHead(hf.Width, c.RetrievalDim, c.HeadLayers, &m.params)
	m.params.sort()
	return m
}

// ends finds what starts and ends a text: the ids that the encoder's config
// names, or else the tokenizer's own.
func ends(hf hfConfig, tok *tokenizer.Tokenizer) (cls, sep int32, err error) {
	cls, okCLS := tok.CLS()
	sep, okSEP := tok.SEP()
	if hf.CLS != nil {
		cls, okCLS = *hf.CLS, true
	}
	if hf.SEP != nil {
		sep, okSEP = *hf.SEP, true
	}
	if !okCLS || !okSEP {
		return 0, 0, errors.New("neither the encoder's config (cls_token_id, sep_token_id) nor the tokenizer names the tokens that start and end a text")
	}
	for _, id := range []int32{cls, sep} {
		if id < 0 || int(id) >= hf.Vocab {
			return 0, 0, fmt.Errorf("token id %d is outside the encoder's vocabulary of %d", id, hf.Vocab)
		}
	}
	return cls, sep, nil
}

// Device is the device that the model computes on.
func (m *Model) Device() kernels.Device { return m.dev }

// Tokenizer is the model's tokenizer.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }

// Width is d, the width of a state.
func (m *Model) Width() int { return m.encoder.d }

// Params returns every parameter of the encoder and the head, sorted by name.
func (m *Model) Params() []*Param { return m.params.list }

// Train allocates gradients for every parameter that frozen does not refuse, and
// must come before the first [Model.Step]. Calling it again chooses again.
func (m *Model) Train(frozen func(name string) bool) { m.params.train(m.dev, frozen) }

// Changed says that somebody wrote to the parameters: the weights are no longer
// those of a file, and a readout no longer answers.
func (m *Model) Changed() { m.SHA256, m.version = "", m.version+1 }

// Frozen is the usual choice for [Model.Train]: the token embeddings stay as
// they are, unless the model was initialised from nothing.
func (m *Model) Frozen(name string) bool {
	if name != embeddings[m.hf.ModelType] {
		return false
	}
	_, fromNothing := m.fromNothing()
	return !fromNothing
}

// embeddings names the token embeddings of each family.
var embeddings = map[string]string{
	"bert":       "encoder.embeddings.word_embeddings.weight",
	"modernbert": "encoder.embeddings.tok_embeddings.weight",
}
