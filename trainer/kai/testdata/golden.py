"""Writes the golden files beside it: tiny encoders with random weights, their
outputs and the gradients of a whole training step, computed in float64.

The encoders are the transformers library's own classes; the head is written here
from design notes, not from the Go code, and its gradients are autograd's.

    pip install torch transformers safetensors
    python golden.py
"""

import json
import math
import os

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

torch.set_default_dtype(torch.float64)
HERE = os.path.dirname(os.path.abspath(__file__))
R, TOPK, HEAD_LAYERS = 8, 3, 2
TYPES = ["choice", "score", "noul"]


def encoders():
    yield "bert", BertModel(
        BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=24, max_position_embeddings=32, hidden_dropout_prob=0,
                   attention_probs_dropout_prob=0, attn_implementation="sdpa"), add_pooling_layer=False)
    yield "modernbert", ModernBertModel(
        ModernBertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
                         intermediate_size=24, max_position_embeddings=64, local_attention=8,
                         pad_token_id=0, bos_token_id=2, eos_token_id=1, cls_token_id=1, sep_token_id=1,
                         global_attn_every_n_layers=3, attn_implementation="sdpa"))


def randomize(parameters, g):
    """Values big enough that every path matters."""
    with torch.no_grad():
        for name, p in sorted(parameters):
            noise = torch.randn(p.shape, generator=g)
            if "norm" in name.lower() and name.endswith("weight"):
                p.copy_((1 + 0.3 * noise).float().double())
            else:
                p.copy_((0.3 * noise).float().double())


def head_parameters(d):
    p = {}

    def linear(name, out, inn):
        p[name + ".weight"], p[name + ".bias"] = torch.empty(out, inn), torch.empty(out)

    def norm(name):
        p[name + ".weight"], p[name + ".bias"] = torch.empty(d), torch.empty(d)

    linear("retrieval.query", R, d)
    linear("retrieval.key", R, d)
    linear("probe", d, 4 * d)
    p["type.weight"], p["option.weight"] = torch.empty(3, d), torch.empty(1, d)
    for i in range(HEAD_LAYERS):
        n = f"layers.{i}."
        norm(n + "norm1"), linear(n + "attn.qkv", 3 * d, d), linear(n + "attn.out", d, d)
        norm(n + "norm2"), linear(n + "mlp.up", 4 * d, d), linear(n + "mlp.down", d, 4 * d)
    norm("score.norm"), linear("score.dense", d, d), linear("score.out", 1, d)
    return p


def dense(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def layer_norm(p, name, x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def head_layer(p, n, x):
    t, d = x.shape
    heads = max(1, d // 64)
    q, k, v = dense(p, n + "attn.qkv", layer_norm(p, n + "norm1", x)).chunk(3, -1)
    split = lambda y: y.view(t, heads, d // heads).transpose(0, 1)
    a = torch.softmax(split(q) @ split(k).transpose(1, 2) / math.sqrt(d // heads), -1) @ split(v)
    x = x + dense(p, n + "attn.out", a.transpose(0, 1).reshape(t, d))
    return x + dense(p, n + "mlp.down", gelu(dense(p, n + "mlp.up", layer_norm(p, n + "norm2", x))))


def sinusoid(level, d):
    return torch.tensor([(math.cos if i % 2 else math.sin)(level / 10000 ** ((i - i % 2) / d)) for i in range(d)])


def question(p, encode, texts, q):
    """Returns (cross-entropy, ranked, retrieval, logits of the options that enter, which those are)."""
    states = encode(q["context"])
    d = states.shape[1]
    options = [encode(texts[o]) for o in q["options"]]
    target = torch.tensor(q["target"])
    query = dense(p, "retrieval.query", states[0])
    scores = torch.stack([dense(p, "retrieval.key", o[0]) @ query for o in options]) / math.sqrt(R)
    retrieval = -(target * torch.log_softmax(scores, 0)).sum()
    gold = [i for i in range(len(options)) if q["target"][i] > 0]
    rest = sorted((i for i in range(len(options)) if i not in gold), key=lambda i: (-scores[i].item(), i))
    entered = sorted(gold + rest[: max(0, TOPK - len(gold))])
    c = states.mean(0)
    vectors = []
    for i in entered:
        o = options[i].mean(0)
        v = dense(p, "probe", torch.cat([c, o, c * o, (c - o).abs()])) + p["option.weight"][0]
        if q["type"] == "score":
            v = v + sinusoid(q["order"][i], d)
        vectors.append(v)
    x = torch.cat([states + p["type.weight"][TYPES.index(q["type"])], torch.stack(vectors)])
    for i in range(HEAD_LAYERS):
        x = head_layer(p, f"layers.{i}.", x)
    x = x[len(states):]
    logits = dense(p, "score.out", gelu(dense(p, "score.dense", layer_norm(p, "score.norm", x))))[:, 0]
    entropy = -(target[entered] * torch.log_softmax(logits, 0)).sum()
    ranked = torch.zeros(())
    if q["type"] == "score":
        n = len(options)
        prob = torch.zeros(n).index_put((torch.tensor([q["order"][i] for i in entered]),), torch.softmax(logits, 0))
        gold = torch.zeros(n)
        for i, y in enumerate(q["target"]):
            gold[q["order"][i]] = y
        ranked = ((prob - gold).cumsum(0)[:-1] ** 2).sum() / (n - 1)
    return entropy, ranked, retrieval, logits, entered


def main():
    texts = {"apple": [1, 5, 6, 1], "banana": [1, 7, 1], "cherry": [1, 8, 9, 10, 11, 1], "date": [1, 12, 13, 1],
             "false: no": [1, 14, 15, 1], "level 0: low": [1, 16, 17, 1], "level 1: mid": [1, 16, 18, 19, 1],
             "level 2: high": [1, 16, 20, 1], "true: yes": [1, 21, 22, 1]}
    names = sorted(texts)
    at = lambda *list: [names.index(n) for n in list]
    g = torch.Generator().manual_seed(7)
    context = lambda n: [1] + torch.randint(3, 40, (n - 2,), generator=g).tolist() + [1]
    questions = [
        dict(type="choice", context=context(9), options=at("apple", "banana", "cherry", "date"), order=[2, 0, 3, 1],
             target=[0, 1, 0, 0], weight=1),
        dict(type="score", context=context(20), options=at("level 0: low", "level 1: mid", "level 2: high"), order=[0, 1, 2],
             target=[0.25, 0.75, 0], weight=0.5),
        dict(type="noul", context=context(4), options=at("false: no", "true: yes"), order=[0, 1], target=[0, 1], weight=2),
        dict(type="choice", context=context(24), options=at("apple", "banana", "cherry"), order=[0, 1, 2],
             target=[0.5, 0, 0.5], weight=1),
    ]
    for kind, encoder in encoders():
        encoder = encoder.double().eval()
        torch.nn.Module.requires_grad_(encoder, True)
        randomize(encoder.named_parameters(), g)
        head = head_parameters(16)
        randomize(head.items(), g)
        for p in head.values():
            p.requires_grad_(True)
        encode = lambda ids: encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
        rows = [texts[n] for n in names]
        total = sum(q["weight"] for q in questions)
        sums, logits, entered = [0, 0, 0], [], []
        for q in questions:
            e, r, a, z, which = question(head, encode, rows, q)
            for i, v in enumerate((e, r, a)):
                sums[i] = sums[i] + v * q["weight"] / total
            logits.append(z.tolist())
            entered.append(which)
        (sums[0] + sums[1] + 0.1 * sums[2]).backward()

        weights, grads = {}, {}
        for prefix, parameters in (("encoder.", encoder.named_parameters()), ("head.", head.items())):
            for name, p in parameters:
                weights[prefix + name], grads[prefix + name] = p.detach().float(), p.grad
        folder = os.path.join(HERE, kind)
        os.makedirs(folder, exist_ok=True)
        save_file(weights, os.path.join(folder, "weights.safetensors"))
        save_file({n: p.float() for n, p in grads.items()}, os.path.join(folder, "grads.safetensors"))
        config = encoder.config.to_diff_dict()
        config["model_type"] = kind
        states = [encode(q["context"]).tolist() for q in questions]
        with open(os.path.join(folder, "golden.json"), "w") as f:
            json.dump(dict(encoder=config, retrieval_dim=R, top_k=TOPK, head_layers=HEAD_LAYERS,
                           texts=[dict(text=n, ids=texts[n]) for n in names], questions=questions, states=states,
                           cross_entropy=sums[0].item(), ranked=sums[1].item(), retrieval=sums[2].item(),
                           logits=logits, entered=entered), f, indent=1)
            f.write("\n")


main()
