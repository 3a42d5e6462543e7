// Package tokenizer turns text into the token ids of a Hugging Face
// tokenizer.json, and back.
//
// A tokenizer.json is a pipeline: a normalizer rewrites the text, pre-tokenizers
// cut it into words, a model cuts each word into tokens of a vocabulary. [Parse]
// builds that pipeline from the components it knows and refuses any other by
// name and place: a component left out would give ids that the encoder was not
// trained on, and nobody would see it. Known are the WordPiece and BPE models
// (byte-level and with byte fallback) and what comes with them in BERT, GPT-2,
// ModernBERT, Llama 3, Qwen and Gemma; Unigram and its Precompiled normalizer
// are not.
//
// # Special tokens
//
// Text is data. [Tokenizer.Encode] never returns a special token's id because
// the text spells that token: "[SEP]" in a message is five characters, and an
// input cannot forge the marks that separate it from the question. This is the
// one place where the result differs from the reference implementation's
// default. (The unknown token, which stands for text outside the vocabulary, is
// the exception that a vocabulary needs.) Nor does Encode add the marks: the
// caller puts [Tokenizer.CLS] and [Tokenizer.SEP] where its model wants them,
// and truncates and pads as it wants.
//
// Added tokens that are not special (runs of newlines, say) are matched in text
// as the reference does.
//
// # Bytes that are not text
//
// Bytes that are not UTF-8 read as U+FFFD, one for each run.
package tokenizer
