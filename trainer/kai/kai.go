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
// # Concurrency and errors
//
// A Model and all that was made from it are used by one goroutine at a time; the
// package starts none. A file or row that cannot be used is an error that names
// it; a panic is a fault of this repository.
package kai

import (
	"github.com/hanzoai/link/kernels"
)

// Model is the encoder, the head and the readouts of one checkpoint, on one
// device.
type Model struct {
	Config Config
	// Budget bounds one pack of rows or option texts; see [Budget]. It changes
	// speed and memory and not a bit of any result.
	Budget Budget
	// SHA256 is the address of model.safetensors as it was loaded or last saved,
	// 64 hex; empty for a model that has not been saved.
	SHA256 string

	dev kernels.Device
}

// Budget bounds what is computed at once. A single row or text larger than a
// bound goes alone.
type Budget struct {
	Context int // tokens of contexts
	Options int // tokens of option texts
	Head    int // tokens and options entering the head
	Rows    int // questions
}

// DefaultBudget fits a small encoder in about a gigabyte.
var DefaultBudget = Budget{Context: 4096, Options: 4096, Head: 8192, Rows: 128}
