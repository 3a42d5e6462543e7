package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"
)

// The files of a tokenizer, by Hugging Face's names.
const (
	mainFile   = "tokenizer.json"
	configFile = "tokenizer_config.json"
	mapFile    = "special_tokens_map.json"
)

// A Tokenizer is a tokenizer.json ready to use. It may be used by several
// goroutines at once.
type Tokenizer struct {
	files map[string][]byte

	// The vocabulary, immutable once parsed.
	tokens  []string         // by id; "" where there is none
	special map[string]int32 // special tokens by what they say
	skip    map[int32]bool   // their ids
	roles   map[role]int32

	// The pipeline, immutable once parsed.
	verbatim   added // added tokens matched before normalizing
	normalized added // and after
	normalize  normalizer
	splitters  []splitter
	model      model
	decoders   []decoder // nil: tokens are joined by spaces

	mu   sync.Mutex
	idle []*scratch
}

// A normalizer rewrites a text.
type normalizer func(string) string

// A word is a piece of a text on its way to the model.
type word struct {
	s     string
	start bool // it starts where the text does
}

// A splitter cuts a word and appends the pieces, none of them empty.
type splitter func(dst []word, w word) []word

// A model cuts a word into tokens and appends their ids.
type model interface {
	encode(dst []int32, word string, s *scratch) []int32
}

// Load reads a tokenizer.json, or the one in a folder. When
// tokenizer_config.json and special_tokens_map.json stand beside it, they help
// to say which tokens are the special ones.
func Load(path string) (*Tokenizer, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, mainFile)
	}
	src, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tokenizer: %w; a tokenizer of another form (vocab.txt, *.model) can be converted once with Python: "+
			"from transformers import AutoTokenizer; AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)", err)
	} else if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	files := map[string][]byte{mainFile: src}
	for _, name := range []string{configFile, mapFile} {
		beside := filepath.Join(filepath.Dir(path), name)
		src, err := os.ReadFile(beside)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		files[name] = src
	}
	t, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

// Parse reads the bytes of a tokenizer.json, which it keeps.
func Parse(src []byte) (*Tokenizer, error) {
	t, err := parse(map[string][]byte{mainFile: src})
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// Bytes returns the tokenizer.json as it was. The caller must not change it.
func (t *Tokenizer) Bytes() []byte { return t.files[mainFile] }

// Files returns the files that Load read, by name and as they were: what a
// checkpoint's tokenizer folder holds. After Parse it is tokenizer.json alone.
// The caller must not change them.
func (t *Tokenizer) Files() map[string][]byte { return t.files }

// VocabSize returns the number of rows that a table of embeddings needs: the
// largest id plus one, added tokens included.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// Token returns the token of an id; ok is false when there is none.
func (t *Tokenizer) Token(id int32) (token string, ok bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
		return "", false
	}
	return t.tokens[id], true
}

// Encode appends the ids of text to dst. It adds no special tokens and makes
// none from the text.
func (t *Tokenizer) Encode(dst []int32, text string) []int32 {
	s := t.scratch()
	defer t.release(s)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	start := true
	for text != "" {
		before, id, after, found := t.verbatim.cut(text)
		dst = t.encodePart(dst, before, start, s)
		if found {
			dst = append(dst, id)
		}
		text, start = after, false
	}
	return dst
}

// encodePart encodes text without verbatim added tokens in it.
func (t *Tokenizer) encodePart(dst []int32, text string, start bool, s *scratch) []int32 {
	if text == "" {
		return dst
	}
	if t.normalize != nil {
		text = t.normalize(text)
	}
	for text != "" {
		before, id, after, found := t.normalized.cut(text)
		if before != "" {
			for _, w := range t.split(word{before, start}, s) {
				dst = t.encodeWord(dst, w.s, s)
			}
		}
		if found {
			dst = append(dst, id)
		}
		text, start = after, false
	}
	return dst
}

// split runs the splitters over a word. The result is good until the next call
// with the same scratch.
func (t *Tokenizer) split(w word, s *scratch) []word {
	from, to := append(s.words[0][:0], w), s.words[1]
	for _, split := range t.splitters {
		to = to[:0]
		for _, w := range from {
			to = split(to, w)
		}
		s.most = max(s.most, len(to))
		from, to = to, from
	}
	s.words = [2][]word{from, to}
	return from
}

// encodeWord asks the cache, then the model.
func (t *Tokenizer) encodeWord(dst []int32, word string, s *scratch) []int32 {
	if len(word) > maxCachedWord {
		return t.model.encode(dst, word, s)
	}
	if at, ok := s.cache[word]; ok {
		return append(dst, s.ids[at.from:at.to]...)
	}
	n := len(dst)
	dst = t.model.encode(dst, word, s)
	if len(s.cache) >= maxCachedWords {
		clear(s.cache)
		s.ids = s.ids[:0]
	}
	from := int32(len(s.ids))
	s.ids = append(s.ids, dst[n:]...)
	// Cloned, because a word is a part of its text and would keep all of it.
	s.cache[strings.Clone(word)] = span{from, int32(len(s.ids))}
	return dst
}

// Bounds of a cache: a few MiB. Longer words seldom come twice.
const (
	maxCachedWord  = 64
	maxCachedWords = 1 << 15
)

// scratch is what one call of Encode needs for itself, kept for the next call.
// Its cache only saves time: the model gives the same ids for a word each time.
type scratch struct {
	words   [2][]word
	most    int // of words in this call
	symbols []symbol
	queue   []merge
	cache   map[string]span
	ids     []int32 // the cached words'
}

// span is the place of a word's ids in scratch.ids.
type span struct{ from, to int32 }

func (t *Tokenizer) scratch() *scratch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.idle); n > 0 {
		s := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return s
	}
	return &scratch{cache: make(map[string]span)}
}

func (t *Tokenizer) release(s *scratch) {
	// A huge text must not leave its words behind, nor keep itself alive.
	for i := range s.words {
		words := s.words[i][:cap(s.words[i])]
		clear(words[:min(s.most+1, len(words))])
		if len(words) > maxCachedWords {
			s.words[i] = nil
		}
	}
	s.most = 0
	if cap(s.symbols) > maxCachedWords {
		s.symbols, s.queue = nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = append(t.idle, s)
}
