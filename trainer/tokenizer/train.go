package tokenizer

import "iter"

// TrainByteLevel learns a byte-level BPE vocabulary of at most vocab tokens and
// returns its tokenizer.json.
func TrainByteLevel(texts iter.Seq[string], vocab int) ([]byte, error) {
	panic("tokenizer: the engine follows")
}
