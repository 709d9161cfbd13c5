#!/usr/bin/env python3
"""Holds the #include lines under src/ to the dependency table of docs/architecture.md.

Prints each violation as file:line and exits 1 when there is one. Four rules:
  1. a folder includes only itself and the folders the table allows it;
  2. heavy third-party headers stay in their one home;
  3. device code (.cu, .cuh) reaches no header that pulls in fmt, spdlog or Boost;
  4. an included project header exists.
Usage: check_layers.py [--root DIR]
"""

import argparse
import re
import sys
from pathlib import Path

TABLE = {
    "base": "",
    "tensor": "base",
    "text": "base",
    "quant": "base tensor",
    "parallel": "base tensor",
    "checkpoint": "base tensor quant",
    "ops": "base tensor quant",
    "backends/cpu": "base tensor quant ops",
    "backends/cuda": "base tensor quant ops",
    "backends/none": "base tensor quant ops",
    "model": "base tensor quant checkpoint ops parallel",
    "engine": "base tensor quant ops parallel model",
    "quantize": "base tensor quant checkpoint ops model",
    "examine": "base tensor quant checkpoint ops model engine",
    "server": "base text engine",
    "apps": "base tensor text quant parallel checkpoint ops model engine quantize examine server",
}
ALLOWED = {folder: set(names.split()) for folder, names in TABLE.items()}

# Third-party headers that are expensive to compile, and the only places that may include them.
HOMES = [
    (r"boost/(beast|asio)", ["server/http/", "server/task_pool.cpp"]),
    (r"CLI/", ["apps/"]),
    (r"spdlog/", ["base/log.cpp"]),
    (r"nccl\.h", ["parallel/nccl_api.cpp"]),
    (r"pcre2\.h", ["text/", "checkpoint/name_pattern.cpp"]),
    (r"utf8proc\.h", ["text/"]),
    (r"openssl/", ["checkpoint/verify.cpp"]),
]
NOT_ON_DEVICE = re.compile(r"(fmt|spdlog|boost)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".in"}


def folder_of(path):
    """The table's folder of a path relative to src/, or None."""
    parts = path.split("/")
    if parts[0] == "backends":
        return "/".join(parts[:2]) if len(parts) > 2 else None
    return parts[0] if parts[0] in ALLOWED else None


def read_includes(file):
    """[(line number, quoted?, name)] of one file."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match.group(1) == '"', match.group(2)))
    return found


def device_violations(name, includes):
    """Follows project headers from one device file to a forbidden third-party header."""
    problems, seen, stack = [], set(), [(name, [])]
    while stack:
        current, way = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for number, quoted, target in includes.get(current, []):
            if not quoted and NOT_ON_DEVICE.match(target):
                first = way[0][1] if way else number
                via = " -> ".join([step for step, _ in way[1:]] + [current]) if way else name
                problems.append(
                    f"src/{name}:{first}: device code reaches <{target}> through {via}"
                )
            elif quoted:
                stack.append((target, way + [(current, number)]))
    return problems


def check(root):
    source = root / "src"
    files = sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    includes = {str(p.relative_to(source)): read_includes(p) for p in files}
    known = {name.removesuffix(".in") for name in includes}
    problems = []
    for name, lines in includes.items():
        folder = folder_of(name)
        if folder is None:
            problems.append(f"src/{name}:1: not in a folder of the dependency table")
            continue
        for number, quoted, target in lines:
            where = f"src/{name}:{number}"
            if not quoted:
                for pattern, homes in HOMES:
                    if re.match(pattern, target) and not any(name.startswith(h) for h in homes):
                        problems.append(f"{where}: <{target}> belongs in {' or '.join(homes)} only")
                continue
            if target not in known:
                problems.append(f'{where}: "{target}" is not a file under src/')
                continue
            other = folder_of(target)
            if other != folder and other not in ALLOWED[folder]:
                allowed = ", ".join(sorted(ALLOWED[folder])) or "nothing"
                problems.append(
                    f"{where}: {folder} must not include {other} ({target}); it may include {allowed}"
                )
        if name.endswith((".cu", ".cuh")):
            problems += device_violations(name, includes)
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    problems = check(parser.parse_args().root)
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
