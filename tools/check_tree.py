#!/usr/bin/env python3
"""Holds the tree to the written budgets and habits (CONTRIBUTING.md). Reads what git tracks.

  size       files have at most 600 lines (backends 900); above 400 is said; median of src/ <= 150
  tests      each src .cpp and .cu has a test of its name, or a line "path: reason" in
             tests/untested.txt; each test mirrors a source or is named in such a reason; every
             source is named in CMake
  code       environment read only in src/apps/environment.*, no raw new or delete, #pragma once in
             headers, TODO only with an issue number, snake_case file names
  data       tests/data holds at most 12 MB
  docs       relative links in Markdown lead to files

Prints violations as file:line and exits 1 when there is one. Usage: check_tree.py [--root DIR]
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

SOFT, HARD, HARD_KERNELS, MEDIAN = 400, 600, 900, 150
DATA_BYTES = 12 * 1024 * 1024
CODE = {".h", ".cpp", ".cu", ".cuh"}
COUNTED = CODE | {".py", ".sh", ".cmake"}
# Test folders that do not mirror one source file each.
FREE_TESTS = ("matrix", "dialects", "golden", "e2e", "gpu", "support", "parity", "fuzz", "tools", "data")
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b")
RAW_MEMORY = re.compile(r"(?<!operator )\b(new|delete)\b")
TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def strip_comments(text):
    """Blanks comments and literals, keeping the line structure."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S
    )
    digits = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")  # separators, not literals
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), digits.sub("", text))


def list_files(root):
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(n for n in names if n and (root / n).is_file() and not (root / n).is_symlink())


def check_sizes(texts):
    problems, notes, source_lines = [], [], []
    for name, text in texts.items():
        lines = text.count("\n")
        if name.startswith("src/"):
            source_lines.append(lines)
        hard = HARD_KERNELS if name.startswith("src/backends/") else HARD
        if lines > hard:
            problems.append(f"{name}:{hard}: {lines} lines, at most {hard}: split it")
        elif lines > SOFT:
            notes.append(f"{name}: {lines} lines, the aim is {SOFT}")
    if source_lines and statistics.median(source_lines) > MEDIAN:
        problems.append(f"src/:1: median of {statistics.median(source_lines)} lines, at most {MEDIAN}")
    return problems, notes


def read_untested(texts_path):
    """{path: line number} of tests/untested.txt, the reasons' text, and problems of its form."""
    entries, reasons, problems = {}, "", []
    if texts_path.exists():
        for number, line in enumerate(texts_path.read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            path, _, reason = line.partition(": ")
            if not reason.strip():
                problems.append(f"tests/untested.txt:{number}: no reason given for {path}")
            entries[path] = number
            reasons += reason + "\n"
    return entries, reasons, problems


def check_tests(root, names):
    untested, reasons, problems = read_untested(root / "tests/untested.txt")
    stems = {}  # (top folder, stem) -> sources
    for name in names:
        path = Path(name)
        if name.startswith("src/") and path.suffix in CODE:
            stems.setdefault((path.parts[1], path.stem), []).append(name)
    tests = {n for n in names if n.startswith("tests/") and n.endswith(("_test.cpp", "_test.cu"))}
    tested = set()
    for test in tests:
        folder, stem = Path(test).parts[1], Path(test).stem.removesuffix("_test")
        tested.add((folder, stem))
        mirrors = (folder, stem) in stems or Path(test).name in reasons
        if folder not in FREE_TESTS and not mirrors:
            problems.append(f"{test}:1: mirrors no source {stem}.h or {stem}.cpp under src/{folder}")
    for (folder, stem), sources in sorted(stems.items()):
        units = [s for s in sources if s.endswith((".cpp", ".cu"))]
        covered = (folder, stem) in tested or ("gpu", stem) in tested
        for unit in units:
            if not covered and unit not in untested:
                problems.append(f"{unit}:1: no tests/{folder}/{stem}_test.cpp; write it, or give the "
                                "reason in tests/untested.txt")
            elif covered and unit in untested:
                problems.append(f"tests/untested.txt:{untested[unit]}: {unit} has a test; remove the line")
    for path, number in untested.items():
        if path not in names:
            problems.append(f"tests/untested.txt:{number}: {path} does not exist")
    return problems


def check_cmake(names, texts_of_cmake):
    """Every .cpp and .cu under src and tests is named in a CMakeLists.txt of its folder or above."""
    problems = []
    for name in names:
        path = Path(name)
        if path.parts[0] not in ("src", "tests") or path.suffix not in (".cpp", ".cu"):
            continue
        lists = [texts_of_cmake.get(str(p / "CMakeLists.txt"), "") for p in path.parents]
        if not any(re.search(rf"(?<![\w]){re.escape(path.name)}", text) for text in lists):
            problems.append(f"{name}:1: named in no CMakeLists.txt")
    for name, text in texts_of_cmake.items():
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"file\s*\(\s*GLOB", line, re.I):
                problems.append(f"{name}:{number}: list the files instead of file(GLOB)")
    return problems


def check_code(texts):
    problems = []
    for name, text in texts.items():
        path = Path(name)
        if path.suffix not in CODE:
            continue
        product = name.startswith("src/")
        if path.suffix in (".h", ".cuh") and "#pragma once" not in text:
            problems.append(f"{name}:1: no #pragma once")
        if not re.fullmatch(r"[a-z0-9_]+", path.stem):
            problems.append(f"{name}:1: file names are snake_case")
        for number, line in enumerate(text.splitlines(), 1):
            if TODO.search(line):
                problems.append(f"{name}:{number}: a TODO needs an issue number: TODO(#12)")
        if not product:
            continue
        for number, line in enumerate(strip_comments(text).splitlines(), 1):
            if ENVIRONMENT.search(line) and not name.startswith("src/apps/environment."):
                problems.append(f"{name}:{number}: the environment is read in src/apps/environment.* only")
            if RAW_MEMORY.search(re.sub(r"=\s*delete", "", line)) and "#" not in line:
                problems.append(f"{name}:{number}: no raw new or delete: use a container or unique_ptr")
    return problems


def check_docs(root, names):
    problems = []
    for name in names:
        if not name.endswith(".md"):
            continue
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            for target in LINK.findall(line):
                if "://" not in target and not (root / name).parent.joinpath(target).exists():
                    problems.append(f"{name}:{number}: the link {target} leads nowhere")
    return problems


def check(root):
    names = list_files(root)
    counted = [n for n in names if Path(n).suffix in COUNTED and not n.startswith("tests/data/")]
    texts = {n: (root / n).read_text(encoding="utf-8") for n in counted}
    cmake = {n: (root / n).read_text() for n in names if n.endswith("CMakeLists.txt")}
    problems, notes = check_sizes(texts)
    problems += check_tests(root, names) + check_cmake(names, cmake)
    problems += check_code(texts) + check_docs(root, names)
    data = sum((root / n).stat().st_size for n in names if n.startswith("tests/data/"))
    if data > DATA_BYTES:
        problems.append(f"tests/data:1: {data / 2**20:.1f} MB, at most {DATA_BYTES / 2**20:.0f} MB")
    return problems, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    problems, notes = check(parser.parse_args().root)
    for note in notes:
        print(f"note: {note}")
    for problem in problems:
        print(problem)
    print(f"check_tree: {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
