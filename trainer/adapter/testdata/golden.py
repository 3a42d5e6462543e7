"""Writes and checks the files beside it with PEFT.

For each of two tiny encoders with random weights it writes the folders

    <family>/base    the encoder, as transformers saves it, and a tokenizer
    <family>/peft    an adapter that PEFT made over it
    <family>/golden.json

and reads <family>/ours, the adapter that this package writes. golden.json holds
contexts and, of each, the mean and the first of the encoder's final states, in
float64: of the base, with PEFT's adapter, and with ours as PEFT loads it.

    pip install torch transformers peft safetensors
    python golden.py
    go test .. -run TestPEFTReadsOurs -update     # writes <family>/ours
    python golden.py
"""

import json
import os
import shutil
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

warnings.simplefilter("error", UserWarning)  # of a key that PEFT misses or does not know
HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"] + [chr(ord("a") + i) for i in range(26)] + list("012345678")


def families():
    """Each family's class, its config, and the adapter that PEFT makes."""
    yield ("bert", BertModel,
           BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                      max_position_embeddings=32),
           LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value", "dense"]))
    # Everything that this package reads beyond that: patterns and another scale.
    yield ("modernbert", ModernBertModel,
           ModernBertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
                            max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=1,
                            cls_token_id=1, sep_token_id=2),
           LoraConfig(r=4, lora_alpha=3, target_modules=r".*\.(Wqkv|Wo)", use_rslora=True,
                      rank_pattern={"layers.1.mlp.Wo": 2}, alpha_pattern={r"Wqkv": 5, r"layers\.2\.attn\.Wo": 7}))


def randomize(model, g, wanted, scale):
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if wanted(name):
                one = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                p.copy_(one + scale * torch.randn(p.shape, generator=g))


def tokenizer():
    """A WordPiece of letters and digits. The contexts here are token ids, so it only has to exist."""
    special = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, t in enumerate(VOCAB[:5])]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=special,
                normalizer=dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                lowercase=True),
                pre_tokenizer=dict(type="BertPreTokenizer"), post_processor=dict(
                    type="BertProcessing", sep=["[SEP]", 2], cls=["[CLS]", 1]),
                decoder=dict(type="WordPiece", prefix="##", cleanup=True),
                model=dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##",
                           max_input_chars_per_word=100, vocab={t: i for i, t in enumerate(VOCAB)}))


def outputs(model, contexts):
    model = model.double().eval()
    with torch.no_grad():
        states = [model(input_ids=torch.tensor([c])).last_hidden_state[0] for c in contexts]
    return [dict(mean=s.mean(0).tolist(), first=s[0].tolist()) for s in states]


def main():
    g = torch.Generator().manual_seed(11)
    contexts = [[1] + torch.randint(5, 40, (n - 2,), generator=g).tolist() + [2] for n in (3, 9, 24)]
    for family, kind, config, lora in families():
        folder = os.path.join(HERE, family)
        base, peft, ours = (os.path.join(folder, n) for n in ("base", "peft", "ours"))
        for d in base, peft:
            shutil.rmtree(d, ignore_errors=True)
        options = dict(add_pooling_layer=False) if family == "bert" else {}
        model = kind(config, **options)
        randomize(model, g, lambda name: True, 0.3)
        model.save_pretrained(base)
        with open(os.path.join(base, "tokenizer.json"), "w") as f:
            json.dump(tokenizer(), f, indent=1)
            f.write("\n")
        load = lambda: kind.from_pretrained(base, **options)

        golden = dict(contexts=contexts, base=outputs(load(), contexts))
        made = get_peft_model(load(), lora)
        randomize(made, g, lambda name: "lora_" in name, 0.2)
        made.save_pretrained(peft)
        os.remove(os.path.join(peft, "README.md"))
        strip(os.path.join(peft, "adapter_config.json"))
        golden["peft"] = outputs(PeftModel.from_pretrained(load(), peft), contexts)
        if os.path.exists(ours):
            golden["ours"] = outputs(PeftModel.from_pretrained(load(), ours), contexts)
        with open(os.path.join(folder, "golden.json"), "w") as f:
            json.dump(golden, f, indent=1)
            f.write("\n")


def strip(path):
    """Takes the folder of this run out of a config."""
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "base"
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # PEFT holds a set
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


main()
