// Package adapter writes a linear layer's change as a product of two small
// factors, and keeps such factors in PEFT's files.
//
// # The change
//
// A model's weight is W = fl(W0 + D) whatever trains it; LoRA (Hu et al., arXiv
// 2106.09685) is one way to write D:
//
//	D = s·B·A·(I − λVVᵀ),  s = alpha/rank,  A [rank,in],  B [out,rank]
//
// So the model knows nothing of adapters: [LoRA.Delta] writes D for whoever keeps
// W0, and [LoRA.Backward] makes the gradients of A and B from that of W. V is a
// protected subspace of the layer's input (package project). With λ = 1, D·V = 0
// whatever A and B are, hence under any optimizer and any decay, and no update
// need be projected; [LoRA.Fold] then moves the projector into A for good.
//
// All arithmetic is of [kernels.Device], so a change has the same bits on every
// device, and those that [Factors.Delta] computes from a file are those of
// training.
//
// # The files
//
// [Write] makes a folder that PEFT loads over the encoder, and [Read] reads one
// that it or PEFT made:
//
//	adapter_config.json          rank, alpha and the modules, as PEFT's LoraConfig
//	adapter_model.safetensors    the encoder's factors, in PEFT's names
//	head.safetensors             the head's, which PEFT's base does not have
//
// What PEFT can ask for and this program does not compute is refused by the name
// of its field; see [Read]. Dropout is not there: nothing in this repository
// trains with it, and it changes nothing that a trained adapter computes.
//
// This package does not optimise, does not say what is protected, and does not
// know a run's own capability format (package trainer does).
package adapter
