package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxID bounds a token's id, so that a file cannot ask for a huge table.
const maxID = 1 << 22

// vocabulary is the model's, split in what text may become and what it may not.
type vocabulary struct {
	ids     map[string]int32 // tokens that text may become
	special map[string]int32 // those it may not
}

func (v *vocabulary) id(token string) (int32, bool) {
	if id, ok := v.ids[token]; ok {
		return id, true
	}
	id, ok := v.special[token]
	return id, ok
}

func (v *vocabulary) has(token string) bool {
	_, ok := v.id(token)
	return ok
}

func (v *vocabulary) mustID(o *object, member, token string) int32 {
	id, ok := v.id(token)
	if !ok {
		o.fail("%s: %q is not in the vocabulary", member, token)
	}
	return id
}

// parse builds a tokenizer of tokenizer.json and the files beside it.
func parse(files map[string][]byte) (*Tokenizer, error) {
	src := files[mainFile]
	if !utf8.Valid(src) {
		return nil, errors.New("not UTF-8")
	}
	top := &object{}
	if err := json.Unmarshal(src, &top.members); err != nil {
		return nil, err
	}
	if top.members == nil {
		return nil, errors.New("want a JSON object, found null")
	}
	roles := make(map[role]string)
	if top.has("post_processor") {
		post := top.object("post_processor")
		post.frame(roles)
		top.adopt(post)
	}
	config, err := configRoles(files)
	if err != nil {
		return nil, err
	}
	for r, token := range config {
		if _, known := roles[r]; !known {
			roles[r] = token
		}
	}

	t := &Tokenizer{files: files, special: make(map[string]int32), skip: make(map[int32]bool), roles: make(map[role]int32)}
	list := top.addedTokens()
	m := top.object("model")
	typ := m.textOr("type", "")
	if typ == "" && m.has("merges") { // files of 2020 leave it out
		typ = "BPE"
	}
	if typ != "WordPiece" && typ != "BPE" { // before its vocabulary, which may be of another shape
		m.unknown("model", typ)
	}
	var ids map[string]int32
	if raw, ok := m.raw("vocab"); !ok {
		m.fail("vocab is missing")
	} else if err := json.Unmarshal(raw, &ids); err != nil {
		m.fail("vocab: want tokens and their ids: %v", err)
	}
	top.adoptErr(m)
	if top.err != nil {
		return nil, top.err
	}
	if err := t.vocabulary(ids, list, roles); err != nil {
		return nil, err
	}
	v := &vocabulary{ids: make(map[string]int32, len(ids)), special: t.special}
	for token, id := range ids {
		if _, special := t.special[token]; !special {
			v.ids[token] = id
		}
	}
	unk := m.textOr("unk_token", "") // read again by the model, which refuses it when it is absent
	if typ == "BPE" {
		t.model = m.bpe(v)
	} else {
		t.model = m.wordPiece(v)
	}
	top.adopt(m)

	if top.has("normalizer") {
		n := top.object("normalizer")
		t.normalize = n.normalizer()
		top.adopt(n)
	}
	if top.has("pre_tokenizer") {
		p := top.object("pre_tokenizer")
		t.splitters = p.splitters()
		top.adopt(p)
	}
	if top.has("decoder") {
		d := top.object("decoder")
		t.decoders = d.decoders()
		top.adopt(d)
	}
	// How a text is cut and filled is the caller's.
	for _, name := range []string{"version", "truncation", "padding"} {
		top.raw(name)
	}
	if err := top.done(); err != nil {
		return nil, err
	}

	if typ == "BPE" && marksSeparate(v.ids) {
		t.splitters = append(t.splitters, atMarks)
	}
	for _, a := range list {
		switch {
		case a.special || t.skip[a.id]:
		case a.normalized && t.normalize != nil:
			t.normalized.add(a, t.normalize(a.content))
		default:
			t.verbatim.add(a, a.content)
		}
	}
	if unk != "" {
		roles[unkRole] = unk
	}
	t.assign(roles)
	return t, nil
}

// marksSeparate reports whether ▁ is a token and stands in no token after
// another character, so that no merge crosses the place before it.
func marksSeparate(ids map[string]int32) bool {
	if _, ok := ids[spaceMark]; !ok {
		return false
	}
	for token := range ids {
		if strings.Contains(strings.TrimLeft(token, spaceMark), spaceMark) {
			return false
		}
	}
	return true
}

// vocabulary fills the table of tokens from the model's ids and the added
// tokens, and settles which are special: those marked so and those with a role.
func (t *Tokenizer) vocabulary(ids map[string]int32, list []addedToken, roles map[role]string) error {
	place := func(token string, id int32) error {
		if id < 0 || id >= maxID {
			return fmt.Errorf("token %q: id %d is not within 0 and %d", token, id, maxID-1)
		}
		if grow := int(id) + 1 - len(t.tokens); grow > 0 {
			t.tokens = append(t.tokens, make([]string, grow)...)
		}
		if old := t.tokens[id]; old != "" && old != token {
			return fmt.Errorf("id %d is of two tokens, %q and %q", id, min(old, token), max(old, token))
		}
		t.tokens[id] = token
		return nil
	}
	all := make(map[string]int32, len(ids))
	for _, token := range slices.Sorted(maps.Keys(ids)) {
		if token == "" {
			return errors.New("model/vocab: an empty token")
		}
		if err := place(token, ids[token]); err != nil {
			return fmt.Errorf("model/vocab: %w", err)
		}
		all[token] = ids[token]
	}
	for i, a := range list {
		if id, ok := all[a.content]; ok && id != a.id {
			return fmt.Errorf("added_tokens/%d: %q has the id %d here and %d before", i, a.content, a.id, id)
		}
		if err := place(a.content, a.id); err != nil {
			return fmt.Errorf("added_tokens/%d: %w", i, err)
		}
		all[a.content] = a.id
		if a.special {
			t.special[a.content] = a.id
		}
	}
	for _, token := range roles {
		if id, ok := all[token]; ok {
			t.special[token] = id
		}
	}
	for _, id := range t.special {
		t.skip[id] = true
	}
	return nil
}

// assign gives each role its token's id.
func (t *Tokenizer) assign(roles map[role]string) {
	for r, custom := range usual {
		candidates := append([]string{roles[r], roles[instead[r]]}, custom...)
		for _, token := range candidates {
			id, ok := t.special[token]
			if !ok && r == unkRole && token == roles[r] {
				// A vocabulary may call its unknown token ordinary.
				for i, s := range t.tokens {
					if s == token && s != "" {
						id, ok = int32(i), true
					}
				}
			}
			if ok {
				t.roles[r] = id
				break
			}
		}
	}
}

// addedTokens reads the list of that name.
func (o *object) addedTokens() []addedToken {
	if !o.has("added_tokens") {
		o.raw("added_tokens")
		return nil
	}
	var list []addedToken
	for _, a := range o.list("added_tokens") {
		t := addedToken{
			content:    a.text("content"),
			singleWord: a.flag("single_word", false),
			lstrip:     a.flag("lstrip", false),
			rstrip:     a.flag("rstrip", false),
			special:    a.flag("special", false),
		}
		t.id = int32(a.integer("id", -1))
		t.normalized = a.flag("normalized", !t.special)
		if t.content == "" {
			a.fail("content is empty")
		}
		o.adopt(a)
		list = append(list, t)
	}
	return list
}
