#!/usr/bin/env python3
"""Makes small tokenizer.json files for the components that the recorded families do not use, and
records what the Python package `tokenizers` does with them.

  make_tokenizers.py --text PROSE --out tests/data/tokenizers

Writes <name>.tokenizer.json and extra_golden.json (same form as golden.json).
"""
import argparse
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tokenizer_parity  # noqa: E402

CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"""
          r"""\s*[\r\n]|\s+(?!\S)|\s""")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def train(tokenizer, texts, size, specials=(), alphabet=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=alphabet or [], **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def llama2(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    train(tokenizer, [t.split("\n")[0][:40] for t in texts], 700,
          ["<unk>", "<s>", "</s>"] + BYTE_TOKENS)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]  # the byte tokens are ordinary ones
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace(texts, scheme, split):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=split))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme=scheme, split=split)
    train(tokenizer, [t[:60] for t in texts], 500, ["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def lowercase_words(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(),
                                                 normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(),
                                                       pre_tokenizers.Digits(individual_digits=False)])
    train(tokenizer, texts, 500, ["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.add_tokens([AddedToken("hello", single_word=True), AddedToken("World", normalized=True),
                          AddedToken("Å", normalized=True), AddedToken("in the", normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def splits(texts):
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    split = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(Regex(r"\n+"), "merged_with_previous"), split(",", "merged_with_next"),
        split(Regex(r"[aeiou]"), "contiguous"), split(Regex(r"\w+"), "isolated", invert=True),
        split(Regex(r"x*"), "isolated"), split(Regex(r"\s+$"), "removed"),
        pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFKC()
    return train(tokenizer, texts, 600, ["<s>"], pre_tokenizers.ByteLevel.alphabet())


def clip(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                 normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return train(tokenizer, texts, 800, ["<unk>"], pre_tokenizers.ByteLevel.alphabet(),
                 end_of_word_suffix="</w>")


def prefixed(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return train(tokenizer, texts, 400, ["[UNK]"], continuing_subword_prefix="##")


def gemma(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    train(tokenizer, [t[:60] for t in texts], 700, ["<pad>", "<unk>"] + BYTE_TOKENS)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:2]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse()])
    return tokenizer


def byte_level(texts, pattern, **byte_level_options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, texts, 600, ["<s>"], pre_tokenizers.ByteLevel.alphabet())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        texts = file.read()[:200_000].split("\n\n")
    made = {
        "llama2": llama2(texts),
        "metaspace_first": metaspace(texts, "first", False),
        "metaspace_always": metaspace(texts, "always", True),
        "metaspace_never": metaspace(texts, "never", True),
        "lowercase_words": lowercase_words(texts),
        "splits": splits(texts),
        "clip": clip(texts),
        "prefixed": prefixed(texts),
        "gemma": gemma(texts),
        "cl100k": byte_level(texts, CL100K),
        "o200k": byte_level(texts, O200K),
    }
    golden = {}
    for name, tokenizer in made.items():
        tokenizer.save(os.path.join(args.out, f"{name}.tokenizer.json"), pretty=False)
        rng = random.Random(7)
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        cases = ["", " ", "Hello world", " Hello  World ", "naïve café", "日本語 🙂 a", "in the hello, helloworld"]
        cases += [tokenizer_parity.random_text(rng, specials) for _ in range(33)]
        golden[name] = [{
            "text": text,
            "ids": tokenizer.encode(text, add_special_tokens=False).ids,
            "ids_with_special": tokenizer.encode(text, add_special_tokens=True).ids,
            "decoded": tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids,
                                        skip_special_tokens=False),
            "decoded_skip": tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids,
                                             skip_special_tokens=True),
        } for text in cases]
    with open(os.path.join(args.out, "extra_golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, indent=0)


if __name__ == "__main__":
    main()
