package tokenizer

// A Tokenizer is a tokenizer.json ready to use. It may be used by several
// goroutines at once.
type Tokenizer struct {
}

// Load reads a tokenizer.json, or the one in a folder. When the files
// tokenizer_config.json and special_tokens_map.json stand beside it, they say
// which tokens are the special ones.
func Load(path string) (*Tokenizer, error) { panic("tokenizer: the engine follows") }

// Parse reads the bytes of a tokenizer.json, which it keeps.
func Parse(src []byte) (*Tokenizer, error) { panic("tokenizer: the engine follows") }

// Encode appends the ids of text to dst. It adds no special tokens and makes
// none from the text.
func (t *Tokenizer) Encode(dst []int32, text string) []int32 { panic("tokenizer: the engine follows") }

// Decode returns the text of ids as the file's decoder makes it. Special tokens
// and ids outside the vocabulary are left out.
func (t *Tokenizer) Decode(ids []int32) string { panic("tokenizer: the engine follows") }

// VocabSize returns the number of rows that a table of embeddings needs: the
// largest id plus one, added tokens included.
func (t *Tokenizer) VocabSize() int { panic("tokenizer: the engine follows") }

// Token returns the token of an id; ok is false when there is none.
func (t *Tokenizer) Token(id int32) (token string, ok bool) { panic("tokenizer: the engine follows") }

// Special returns the id of a special token by what it says, such as "[MASK]".
func (t *Tokenizer) Special(token string) (id int32, ok bool) { panic("tokenizer: the engine follows") }

// CLS returns the id that starts a sequence; ok is false when the tokenizer
// names none. SEP, PAD, MASK and UNK are alike.
func (t *Tokenizer) CLS() (id int32, ok bool) { panic("tokenizer: the engine follows") }

func (t *Tokenizer) SEP() (id int32, ok bool) { panic("tokenizer: the engine follows") }

func (t *Tokenizer) PAD() (id int32, ok bool) { panic("tokenizer: the engine follows") }

func (t *Tokenizer) MASK() (id int32, ok bool) { panic("tokenizer: the engine follows") }

func (t *Tokenizer) UNK() (id int32, ok bool) { panic("tokenizer: the engine follows") }

// Files returns the files that Load read, by name, as they were: what a
// checkpoint's tokenizer folder holds. After Parse it is tokenizer.json alone.
// The caller must not change the bytes.
func (t *Tokenizer) Files() map[string][]byte { panic("tokenizer: the engine follows") }

// Bytes returns the tokenizer.json as it was. The caller must not change it.
func (t *Tokenizer) Bytes() []byte { panic("tokenizer: the engine follows") }
