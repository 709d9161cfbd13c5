#!/usr/bin/env python3
"""Collects English prose and documentation that every Debian machine has into one calibration text.

The same machine gives the same bytes: sources are taken in sorted order, a paragraph block from each
in turn, so that any prefix is mixed. Sources:
  licences  /usr/share/common-licenses (links are not followed twice)
  topics    Python's documentation topics, pydoc_data.topics
  docs      README, copyright-free notes and guides under /usr/share/doc: README*, NEWS*, *.txt, *.md
Usage: make_calibration_text.py OUT [--bytes N] [--exclude FILE ...]

--exclude names texts that evaluation will use: a block that shares a line of 40 or more characters
with one of them is left out, and the program says how many were.
"""

import argparse
import gzip
import sys
from pathlib import Path

BLOCK = 2000  # characters a source contributes in its turn
LONG_LINE = 40
DOC_NAMES = ("README", "NEWS", "FAQ", "TODO", "HACKING", "GUIDE")
MAX_FILE = 300_000


def read(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data[:MAX_FILE].decode("utf-8", errors="replace")


def licence_texts():
    seen = set()
    for path in sorted(Path("/usr/share/common-licenses").glob("*")):
        real = path.resolve()
        if real.is_file() and real not in seen:
            seen.add(real)
            yield path.name, read(real)


def topic_texts():
    try:
        from pydoc_data import topics
    except ImportError:
        return
    for name in sorted(topics.topics):
        yield f"topic {name}", topics.topics[name]


def doc_texts():
    root = Path("/usr/share/doc")
    for path in sorted(root.rglob("*")):
        stem = path.name.removesuffix(".gz")
        wanted = stem.upper().startswith(DOC_NAMES) or stem.endswith((".txt", ".md"))
        if wanted and not path.is_symlink() and path.is_file():
            try:
                text = read(path)
            except (OSError, EOFError, gzip.BadGzipFile):
                continue
            if len(text) >= BLOCK and "\ufffd" not in text and "\0" not in text:
                yield str(path.relative_to(root)), text


def blocks_of(text):
    """The text cut at paragraph ends into pieces of about BLOCK characters."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece += paragraph.rstrip() + "\n\n"
        if len(piece) >= BLOCK:
            yield piece
            piece = ""
    if len(piece) >= BLOCK // 4:
        yield piece


def long_lines(text):
    return {line.strip() for line in text.splitlines() if len(line.strip()) >= LONG_LINE}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=int, default=400_000)
    parser.add_argument("--exclude", type=Path, nargs="*", default=[])
    args = parser.parse_args()

    forbidden = set()
    for path in args.exclude:
        forbidden |= long_lines(path.read_text(encoding="utf-8"))
    queues = [
        [block for _, text in source for block in blocks_of(text)]
        for source in (licence_texts(), topic_texts(), doc_texts())
    ]
    queues = [queue for queue in queues if queue]
    if not queues:
        sys.exit("no source of text on this machine: /usr/share/common-licenses, pydoc_data, /usr/share/doc")
    out, size, left_out = [], 0, 0
    # Blocks of one source far apart: walk each queue in strides.
    orders = []
    for queue in queues:
        stride = max(1, len(queue) // 97)
        orders.append([block for start in range(stride) for block in queue[start::stride]])
    while size < args.bytes and any(orders):
        for order in orders:
            if not order or size >= args.bytes:
                continue
            block = order.pop(0)
            if forbidden & long_lines(block):
                left_out += 1
                continue
            out.append(block)
            size += len(block.encode())
    args.out.write_text("".join(out), encoding="utf-8")
    print(f"{args.out}: {size} bytes, {len(out)} blocks, {left_out} left out for evaluation's sake")


if __name__ == "__main__":
    main()
