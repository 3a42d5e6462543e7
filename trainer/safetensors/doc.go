// Package safetensors reads and writes tensors in the safetensors format:
// eight bytes of header length, a JSON header that names every tensor's dtype,
// shape and place, and the tensors' bytes, little-endian and dense.
//
// # Reading
//
// [Open] reads one file, [OpenModel] a model folder: model.safetensors, or the
// shards that model.safetensors.index.json lists. Both check the whole header
// before they return: every dtype is known, every shape agrees with its bytes,
// and the tensors cover the data exactly, with no gap, no overlap and nothing
// after the last. A file that breaks a rule is refused with an error naming the
// file and the tensor; nothing is repaired or guessed, and a tensor missing from
// a folder is never read as zeros. Pickles are never opened.
//
// The order of the header's members, the padding of the header and the
// alignment of a tensor are free, as they are in the format: values are read
// with pread and converted, never mapped.
//
// F32, F16 and BF16 read as float32, exactly. Tensors of other dtypes are
// listed, so that a buffer of positions does not make a model unreadable, but
// reading one as floats is refused.
//
// # Writing
//
// [Write] replaces a file in one step (see package durable): after a crash or a
// full disk the old file is still whole. The bytes depend on the tensors and the
// metadata alone, so equal models are equal files.
//
// This package knows nothing of models: which tensors a model must have is for
// its loader to say.
package safetensors
