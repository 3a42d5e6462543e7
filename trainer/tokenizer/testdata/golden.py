"""Makes the tokenizers and the golden files of this folder.

Run once, with tokenizers 0.23.3 (pip install tokenizers==0.23.3):

    python golden.py PATH/TO/shared/data

Every tokenizer here is trained by this script on the text below, except BERT's
uncased one, which is read from shared/data. The package's trainers do not give
the same vocabulary twice, so a second run changes most files. Golden files hold what the reference
makes of each text with encode_special_tokens=True (text never becomes a special
token, which is this package's rule) and add_special_tokens=False.
"""
import hashlib
import json
import os
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
HERE = os.path.dirname(os.path.abspath(__file__))
SHARED = sys.argv[1]

CORPUS = """The quick brown fox jumps over the lazy dog. It's the fox's habit; they're used to it, we've heard, and I'll say I'd do it too.
Support wrote back within two days: the refund for order 48213 was issued on 2024-03-18, but the card shows only $12.50 of $1,250.00.
Please cancel my subscription and tell me when the last payment will be taken, because I can't find it in the settings.
def merge(left, right):\n    return [x for x in left if x not in right]\n\n\nclass Queue:\n\tdef __init__(self):\n\t\tself.items = {}\n
for (int i = 0; i < n; i++) { sum += a[i] * b[i]; } // the dot product\r\nprintf("%d\\n", sum);\r\n
Größe, naïve, façade, Ångström, señor, crème brûlée, İstanbul, ΑΒΓ αβγ, straße, ŒUVRE, Łódź.
Привет, мир! Как дела? Съешь же ещё этих мягких французских булок.
שלום עולם, مرحبا بالعالم كيف حالك
我能吞下玻璃而不伤身体。日本語のテキストも少しあります。ガギグゲゴ
안녕하세요 세계 여러분, 한국어 문장입니다.
สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง
नमस्ते दुनिया, आप कैसे हैं?
👩‍👩‍👧‍👦 🎉 👍🏽 ❤️ 🇩🇪 :-) <3
the cat and the hat and the bat and the rat; there then that this those these; nation station ration motion
one two three four five six seven eight nine ten 10 11 12 100 1000 2023 2024 2025 3.14159 0xff 1e-9
""".splitlines() * 3

TEXTS = {
    "empty": "",
    "one space": " ",
    "only spaces": "     ",
    "only white space": " \t\n\r\n  ",
    "ascii": "The quick brown fox jumps over the lazy dog.",
    "two sentences": "Refund issued.  It's theirs, isn't it? We'll see, they've said; I'm sure you'd agree.",
    "capitals": "IT'S NOT WHAT WE'LL SAY'S HERE, I'D THEY'RE",
    "apostrophes": "'s 't're rock'n'roll ''ll don''t 'ſ 'S'",
    "leading and trailing space": "  hello world  ",
    "space runs": "a  b   c    d     e      f        g",
    "tabs": "a\tb\t\tc\t\t\t d",
    "crlf": "line one\r\nline two\r\n\r\nline four\r",
    "newlines": "a\n\nb\n\n\nc \n d\n",
    "nbsp": "a\u00a0b\u00a0\u00a0c 10\u202f000\u3000x\u2003y\u2028z\u2029w\u0085v\u000bu\u000ct",
    "zero width": "zero\u200bwidth\u200cnon\u200djoin\u2060er\ufeff",
    "control": "bell\u0007 back\u0008 esc\u001b[31m del\u007f \u0080\u009f soft\u00adhyphen",
    "nul": "a\u0000b \u0000 c",
    "bom": "\ufeffbom at the start",
    "replacement": "broken \ufffd character",
    "private use": "apple \uf8ff and \U000f0000",
    "noncharacter": "\uffff \ufdd0 \U0010ffff",
    "emoji": "party 🎉 thumbs 👍🏽 heart ❤️ flag 🇩🇪🇫🇷",
    "emoji zwj": "family 👩‍👩‍👧‍👦 and 🏳️‍🌈!",
    "hebrew": "שָׁלוֹם עוֹלָם, \u200fמה שלומך?",
    "arabic": "مرحبا بالعالم، كَيْفَ حالُكَ؟ ١٢٣",
    "cjk": "我能吞下玻璃而不伤身体。豈更車 \U00020000\U0002a700\U0002b820\U0002b920",
    "japanese": "日本語のテキスト、ｶﾀｶﾅ ガギグゲゴ か\u3099",
    "hangul": "안녕하세요 세계 \u1112\u1161\u11ab글",
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "devanagari": "नमस्ते दुनिया, क्षत्रिय",
    "combining": "e\u0301 a\u0308\u0323 n\u0303 Z\u0351\u036f\u0321a\u0328l\u0315g\u0337o\u0321",
    "composed": "é ạ̈ ñ Å Å ﬁ ﬃ ² ½ Ⅷ ① ㎏ ｆｕｌｌ",
    "turkish": "İstanbul ISPARTA ılık",
    "greek": "ΟΔΥΣΣΕΥΣ ὈΔΥΣΣΕΎΣ ΑΒΓ αβγ ς",
    "german": "Größe STRASSE straße ẞ",
    "titlecase": "ǅ ǆ Ǆ ŉ ǰ ΐ",
    "cyrillic": "Привет, мир! Ёлка Й и\u0306",
    "vietnamese": "Tiếng Việt ở Việt Nam đẹp",
    "numbers": "1 12 123 1234 12345 3.14159 1,250.00 $12.50 50% ١٢٣ ४५६ Ⅳ ½ 2²",
    "code": "for (int i=0; i<n; i++) {\n\tsum += a[i]*b[i]; // dot\n}\n",
    "python": "def f(x):\n    if x:\n        return {'a': [1, 2]}\n    return None\n",
    "url": "see https://example.com/a?b=c&d=%20e#f or mail me@example.org",
    "json": "{\"state\": \"open\", \"n\": [1, 2.5e-3, null]}",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "unicode punctuation": "“quoted” ‘single’ – — … ‹a› «b» ¿que? ¡no! ・ 、。 ⹂ ⹃ ⹒ \u061d",
    "symbols": "€ £ ¥ © ® ™ ° ± × ÷ ∑ √ ∞ → ★",
    "special look-alikes": "[CLS] [MASK] [SEP][PAD] [UNK] <s></s> <bos><eos> <mask> <pad> <unk> <|endoftext|> <|begin_of_text|>",
    "special look-alikes inside": "a[CLS]b<bos>c<mask>d<|endoftext|>e [SEP]",
    "byte look-alikes": "<0x41> <0xE2><0x96><0x81> <0xZZ>",
    "continuation look-alikes": "##ing ## foo ##bar Ġthe ▁the ▁▁ Ċ",
    "added look-alikes": "<table> <tr>x</tr> </table>  a\n\n\nb [@BOS@]@ word wordy swordy word",
    "long word": "a" * 120,
    "longer word": "abcdefghij" * 60,
    "hundred": "x" * 100 + " " + "y" * 101,
    "hundred accents": "é" * 100 + " " + "e\u0301" * 101,
    "long digits": "1234567890" * 12,
    "long punctuation": "-" * 130 + "=" * 7,
    "long emoji": "🎉" * 60,
    "mixed scripts": "abcабвαβγ漢字かな한글ไทย123",
    "egyptian": "\U00013000\U00013430 \U0001e900\U0001e944",
    "new mongolian": "\u180e \u1885 \u180f \u166d",
}


def save(name, tok):
    path = os.path.join(HERE, name + ".json")
    spec = tok if isinstance(tok, dict) else json.loads(tok.to_str())
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    return Tokenizer.from_file(path)


def train(tok, trainer, texts=CORPUS):
    tok.train_from_iterator(texts, trainer)
    return tok


def bpe_trainer(vocab, special, **kw):
    return trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False, **kw)


def byte_level(vocab, special):
    return bpe_trainer(vocab, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    train(t, byte_level(600, ["<|endoftext|>"]))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def roberta():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    train(t, byte_level(500, ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return t


def modernbert():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    train(t, byte_level(700, []))
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 7)])
    t.add_tokens([AddedToken("word", single_word=True, normalized=True), AddedToken("|||PHONE|||", normalized=True)])
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    t.add_special_tokens([AddedToken(s, lstrip=s == "[MASK]", normalized=False, special=True) for s in special])
    t.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")])
    return t


BYTES = ["<0x%02X>" % b for b in range(256)]


def gemma(crossing):
    """Gemma's form: no words, spaces are marks, bytes stand in for the rest.
    Trained with words cut before a mark, as SentencePiece does, or without."""
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "▁")
    if not crossing:
        t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    train(t, bpe_trainer(900 if not crossing else 700, special + BYTES, limit_alphabet=200))
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] not in BYTES]
    spec["model"]["byte_fallback"] = True
    spec["model"]["fuse_unk"] = True
    spec["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    t = Tokenizer.from_str(json.dumps(spec))
    t.add_tokens([AddedToken(s, normalized=False) for s in ["\n\n", "\n\n\n", "\t\t", "▁▁", "▁▁▁", "<table>", "</table>", "[@BOS@]"]])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", pair="<bos> $A <eos> $B:1 <eos>:1",
                                                     special_tokens=[("<bos>", 2), ("<eos>", 1)])
    return t


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, byte_level(600, []))
    spec = json.loads(t.to_str())
    # Tokens that no merge makes: ignore_merges finds them all the same.
    for word in ("Ġsubscription", "Ġpayment", "123"):
        spec["model"]["vocab"].setdefault(word, len(spec["model"]["vocab"]))
    t = Tokenizer.from_str(json.dumps(spec))
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return t


def qwen2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, byte_level(600, ["<|endoftext|>"]))
    spec = json.loads(t.to_str())
    spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]  # the older form
    return spec


def llama2(metaspace):
    """SentencePiece BPE with a leading mark, by a normalizer or by Metaspace;
    the second has no byte fallback and fuses unknown characters."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    train(t, bpe_trainer(800, ["<unk>", "<s>", "</s>"] + BYTES, limit_alphabet=150))
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    if metaspace:
        return t
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] not in BYTES]
    spec["model"]["byte_fallback"] = True
    spec["pre_tokenizer"] = None
    spec["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return Tokenizer.from_str(json.dumps(spec))


def wordpiece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.Punctuation("isolated")])
    t.decoder = decoders.WordPiece()
    train(t, trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def ids(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def paragraphs():
    by_lang = {}
    with open(os.path.join(SHARED, "udhr-langid", "paragraphs.jsonl"), encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            by_lang.setdefault(row["lang"] if "lang" in row else row["label"], []).append(row["text"])
    return by_lang


def golden(name, tok):
    tok.no_truncation()
    tok.no_padding()
    tok.encode_special_tokens = True
    with open(os.path.join(HERE, name + ".golden.jsonl"), "w", encoding="utf-8") as f:
        for label, text in TEXTS.items():
            got = ids(tok, text)
            row = {"name": label, "text": text, "ids": got, "decoded": tok.decode(got)}
            f.write(json.dumps(row, ensure_ascii=True) + "\n")
    sums = {}
    for lang, texts in sorted(paragraphs().items()):
        h = hashlib.sha256()
        for text in texts:
            got = ids(tok, text)
            h.update(struct.pack("<%dI" % (len(got) + 1), *got, 0xFFFFFFFF))
        sums[lang] = h.hexdigest()
    return sums


def components():
    """What single components make of the texts, to find the one that is wrong."""
    norm = {
        "BertNormalizer": normalizers.BertNormalizer(),
        "BertNormalizer cased": normalizers.BertNormalizer(lowercase=False),
        "BertNormalizer accents kept": normalizers.BertNormalizer(strip_accents=False, handle_chinese_chars=False),
        "BertNormalizer unclean": normalizers.BertNormalizer(clean_text=False, lowercase=False, strip_accents=True),
        "NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
        "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents(),
        "NFD StripAccents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        "Strip": normalizers.Strip(), "Strip left": normalizers.Strip(left=True, right=False),
        "Prepend": normalizers.Prepend("▁"), "Replace": normalizers.Replace(" ", "▁"),
        "Replace expression": normalizers.Replace(Regex(" {2,}"), "+"),
    }
    P = pre_tokenizers
    pre = {
        "BertPreTokenizer": P.BertPreTokenizer(), "Whitespace": P.Whitespace(), "WhitespaceSplit": P.WhitespaceSplit(),
        "Digits": P.Digits(), "Digits individual": P.Digits(individual_digits=True),
        "Metaspace": P.Metaspace(), "Metaspace never": P.Metaspace(prepend_scheme="never"),
        "Metaspace first unsplit": P.Metaspace(prepend_scheme="first", split=False),
        "ByteLevel": P.ByteLevel(), "ByteLevel no prefix": P.ByteLevel(add_prefix_space=False),
        "ByteLevel plain": P.ByteLevel(add_prefix_space=False, use_regex=False),
        "CharDelimiterSplit": P.CharDelimiterSplit("a"),
        "Llama 3": P.Split(Regex(LLAMA3), "isolated"), "Qwen 2": P.Split(Regex(QWEN2), "removed", invert=True),
        "digits in threes": P.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        "Sequence": P.Sequence([P.WhitespaceSplit(), P.Punctuation(), P.Digits(), P.Metaspace(prepend_scheme="first")]),
    }
    for b in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        pre["Punctuation " + b] = P.Punctuation(b)
        for invert in (False, True):
            pre["Split %s %s" % (b, invert)] = P.Split(" ", b, invert=invert)
    with open(os.path.join(HERE, "components.golden.jsonl"), "w", encoding="utf-8") as f:
        for name, n in norm.items():
            t = Tokenizer(models.BPE())
            t.normalizer = n
            spec = json.loads(t.to_str())["normalizer"]
            out = {k: n.normalize_str(v) for k, v in TEXTS.items()}
            f.write(json.dumps({"name": name, "normalizer": spec, "out": {k: v for k, v in out.items() if v != TEXTS[k]}}) + "\n")
        for name, p in pre.items():
            t = Tokenizer(models.BPE())
            t.pre_tokenizer = p
            spec = json.loads(t.to_str())["pre_tokenizer"]
            out = {k: [w for w, _ in p.pre_tokenize_str(v)] for k, v in TEXTS.items()}
            f.write(json.dumps({"name": name, "pre_tokenizer": spec, "out": {k: v for k, v in out.items() if v != [TEXTS[k]]}}) + "\n")


def classes():
    """A hash over all code points for each class that BERT's components use."""
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    strip = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    chinese = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    marks = normalizers.StripAccents()
    punct = pre_tokenizers.Punctuation()
    tests = {
        "control": lambda c: clean.normalize_str("a" + c + "b") == "ab",
        "nonspacing": lambda c: strip.normalize_str(c) == "",
        "mark": lambda c: marks.normalize_str(c) == "",
        "chinese": lambda c: chinese.normalize_str(c) != c,
        "punctuation": lambda c: len(punct.pre_tokenize_str("a" + c + "b")) == 3,
    }
    out = {}
    for name, test in tests.items():
        members = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and test(chr(c))]
        out[name] = {"n": len(members), "sha256": hashlib.sha256(struct.pack("<%dI" % len(members), *members)).hexdigest()}
    with open(os.path.join(HERE, "classes.golden.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


def main():
    udhr = {"bert-uncased": golden("bert-uncased", Tokenizer.from_file(os.path.join(SHARED, "bert-uncased-tokenizer", "tokenizer.json")))}
    for name, tok in [("gpt2", gpt2()), ("roberta", roberta()), ("modernbert", modernbert()), ("gemma", gemma(False)),
                      ("gemma-crossing", gemma(True)), ("llama3", llama3()), ("qwen2", qwen2()),
                      ("llama2", llama2(False)), ("metaspace", llama2(True)), ("wordpiece", wordpiece())]:
        udhr[name] = golden(name, save(name, tok))
    # Made by TrainByteLevel, see train_test.go.
    udhr["trained"] = golden("trained", Tokenizer.from_file(os.path.join(HERE, "trained.json")))
    with open(os.path.join(HERE, "udhr.golden.json"), "w") as f:  # one of each kind: a test reads it whole
        udhr = {name: udhr[name] for name in ("bert-uncased", "modernbert", "gemma", "llama3")}
        json.dump(udhr, f, indent=1)
        f.write("\n")
    components()
    classes()


main()
