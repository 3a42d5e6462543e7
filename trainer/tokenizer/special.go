package tokenizer

import (
	"encoding/json"
	"fmt"
)

// role is what a special token is for, by the name in tokenizer_config.json.
type role string

const (
	clsRole  role = "cls_token"
	sepRole  role = "sep_token"
	padRole  role = "pad_token"
	maskRole role = "mask_token"
	unkRole  role = "unk_token"
)

// usual holds, for each role, the tokens that have it by custom: the last resort.
var usual = map[role][]string{
	clsRole:  {"[CLS]", "<s>", "<bos>", "<|begin_of_text|>"},
	sepRole:  {"[SEP]", "</s>", "<eos>", "<|end_of_text|>"},
	padRole:  {"[PAD]", "<pad>", "<|padding|>"},
	maskRole: {"[MASK]", "<mask>"},
	unkRole:  {"[UNK]", "<unk>"},
}

// instead holds the role that stands in for one which a config does not name.
var instead = map[role]role{clsRole: "bos_token", sepRole: "eos_token"}

// Special returns the id of a special token by what it says, such as "[MASK]".
func (t *Tokenizer) Special(token string) (id int32, ok bool) {
	id, ok = t.special[token]
	return id, ok
}

// CLS returns the id that starts a sequence: what the file's post-processor puts
// before a text, else the config's cls_token or bos_token, else the usual one.
// ok is false when there is none.
func (t *Tokenizer) CLS() (id int32, ok bool) { return t.role(clsRole) }

// SEP returns the id that ends a sequence; it is found as CLS is.
func (t *Tokenizer) SEP() (id int32, ok bool) { return t.role(sepRole) }

// PAD returns the id that fills a batch, if there is one.
func (t *Tokenizer) PAD() (id int32, ok bool) { return t.role(padRole) }

// MASK returns the id that hides a token, if there is one.
func (t *Tokenizer) MASK() (id int32, ok bool) { return t.role(maskRole) }

// UNK returns the id of text outside the vocabulary, if there is one.
func (t *Tokenizer) UNK() (id int32, ok bool) { return t.role(unkRole) }

func (t *Tokenizer) role(r role) (int32, bool) {
	id, ok := t.roles[r]
	return id, ok
}

// configRoles reads which token has which role from the two files beside a
// tokenizer.json. The config goes before the map.
func configRoles(files map[string][]byte) (map[role]string, error) {
	roles := make(map[role]string)
	for _, name := range []string{configFile, mapFile} {
		if files[name] == nil {
			continue
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(files[name], &members); err != nil {
			return nil, fmt.Errorf("%s beside it: %w", name, err)
		}
		for _, r := range []role{clsRole, sepRole, padRole, maskRole, unkRole, "bos_token", "eos_token"} {
			// A token is a string or an object that holds one.
			var token string
			var object struct{ Content string }
			if json.Unmarshal(members[string(r)], &token) != nil && json.Unmarshal(members[string(r)], &object) == nil {
				token = object.Content
			}
			if _, known := roles[r]; !known && token != "" {
				roles[r] = token
			}
		}
	}
	return roles, nil
}

// frame reads from a post-processor the tokens that it puts before and after a
// text. It is all that is used of one: the caller frames its texts itself.
func (o *object) frame(roles map[role]string) {
	switch typ := o.text("type"); typ {
	case "Sequence":
		for _, part := range o.list("processors") {
			part.frame(roles)
			o.adopt(part)
		}
	case "BertProcessing", "RobertaProcessing":
		for name, r := range map[string]role{"cls": clsRole, "sep": sepRole} {
			var token string
			var id int32
			raw, _ := o.raw(name)
			if err := json.Unmarshal(raw, &[]any{&token, &id}); err != nil || token == "" {
				o.fail("%s: want a token and its id", name)
			}
			roles[r] = token
		}
		o.flag("trim_offsets", true)
		o.flag("add_prefix_space", true)
	case "ByteLevel":
		o.flag("add_prefix_space", true)
		o.flag("trim_offsets", true)
		o.flag("use_regex", true)
	case "TemplateProcessing":
		r := clsRole
		for _, piece := range o.list("single") {
			switch {
			case piece.has("Sequence"):
				r = sepRole
			case piece.has("SpecialToken"):
				special := piece.object("SpecialToken")
				token := special.text("id")
				if _, known := roles[r]; !known {
					roles[r] = token
				}
				piece.adoptErr(special)
			default:
				piece.fail("want a Sequence or a SpecialToken")
			}
			o.adoptErr(piece)
		}
		o.raw("pair")
		o.raw("special_tokens")
	default:
		o.unknown("post-processor", typ)
	}
}
