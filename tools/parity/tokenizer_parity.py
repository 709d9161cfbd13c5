#!/usr/bin/env python3
"""Differential test: nibble's tokenizer against the Python package `tokenizers`.

  tokenizer_parity.py --program build/dev/nibble [--count 10000] [FILES...]

FILES are tokenizer.json files, by default those of tests/data/tokenizers. For each, random strings are encoded with and without special tokens
and random ids decoded; every difference is printed. Exit code 1 if there was one.

Characters that Unicode added after version 14 are left out: the reference's regular expressions and
PCRE2 know different versions, and neither matters for published tokenizers.
"""
import argparse
import glob
import json
import os
import random
import sys
import unicodedata

from tokenizers import Tokenizer

from support.driver import Driver, driver_of

RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x00, 0x1F), (0x80, 0xFF), (0x100, 0x24F),
    (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
    (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x214F),
    (0x2150, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x3400, 0x34FF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F),
    (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x1F900, 0x1F9FF), (0x20000, 0x200FF),
]
SNIPPETS = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "'s", "'LL", "'re", "’s", "it's", "I'm", "Hello",
    "world", "the ", " and", "123", "3.14", "1,000", "x=1;", "...", "!?", "://", "def f(x):\n    return x",
    "é", "e\u0301", "Å", "한국어", "日本語", "中文", "🙂", "👩‍👩‍👧", "\u200b", "\u00a0", "\u3000", "\u2028", "ſ", "K",
    "<0x41>", "▁", "ÀÉ", "ﬁ", "½", "²", "Ⅷ", "٣", "_", "a_b", "CamelCase", "\ufeff", "\u180e", "\u0085", "\x1c",
]


def known(code):
    return unicodedata.category(chr(code)) not in ("Cn", "Cs")


def random_text(rng, specials):
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13])):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.5 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.8:
            low, high = rng.choice(RANGES)
            codes = [rng.randint(low, high) for _ in range(rng.randint(1, 6))]
            parts.append("".join(chr(c) for c in codes if known(c)))
        else:
            parts.append("".join(chr(rng.randint(0x61, 0x7A)) for _ in range(rng.randint(1, 70))))
    return "".join(parts)


def check(path, driver, count, seed, show):
    reference = Tokenizer.from_file(path)
    reference.no_padding()
    reference.no_truncation()
    loaded = driver.ask(load=path)
    if "error" in loaded:
        print(f"{path}: refused: {loaded['error']}")
        return 1
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    specials = [token["content"] for token in data["added_tokens"]]
    rng = random.Random(seed)
    size = reference.get_vocab_size(True)
    bad = 0

    def report(what, case, expected, found):
        nonlocal bad
        bad += 1
        if bad <= show:
            print(f"{path}: {what} of {case!r}\n  expected {expected!r}\n  found    {found!r}")

    for _ in range(count):
        text = random_text(rng, specials)
        for special in (False, True):
            expected = reference.encode(text, add_special_tokens=special).ids
            found = driver.ask(encode=text, special=special)["ids"]
            if expected != found:
                report("encoding", text, [reference.id_to_token(i) for i in expected],
                       [reference.id_to_token(i) for i in found])
                break
        ids = [rng.randrange(size) for _ in range(rng.randint(0, 12))]
        if rng.random() < 0.5:
            ids = expected
        for skip in (False, True):
            expected_text = reference.decode(ids, skip_special_tokens=skip)
            found = driver.ask(decode=ids, skip=skip)
            for name in ("text", "streamed"):
                if found[name] != expected_text:
                    report(f"{name} decoding", [reference.id_to_token(i) for i in ids],
                           expected_text, found[name])
    print(f"{path}: {count} strings, {bad} differences")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    driver = Driver(driver_of(args.program))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    files = args.files or sorted(glob.glob(os.path.join(root, "tests/data/tokenizers/*.tokenizer.json")))
    bad = sum(check(path, driver, args.count, args.seed, args.show) for path in files)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
