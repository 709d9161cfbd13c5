#!/usr/bin/env python3
"""Keeps instruction sets apart in a finished build. Usage: check_isa.py BUILD_DIR

The program picks its AVX2 and AVX-512 code at start and must run on any x86-64-v2 machine. So:
  1. objects compiled with wider flags (nibble_isa_source) define no weak symbol: an inline function
     from a shared header could otherwise be the copy that the linker keeps for everybody;
  2. all other objects under src/ use no ymm or zmm register.
Needs nm and objdump (binutils).
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

WIDE = re.compile(r"-mavx|-march=(?!x86-64-v2\b)|-mf16c|-mfma")
WIDE_REGISTER = re.compile(r"%[yz]mm\d")


def weak_symbols(nm_output):
    """Weak definitions (W, V, u) in the text of `nm -C --defined-only`."""
    found = []
    for line in nm_output.splitlines():
        match = re.match(r"[0-9a-f]* ([WVu]) (.*)", line.strip())
        if match:
            found.append(match.group(2))
    return found


def wide_functions(objdump_output):
    """Functions in the text of `objdump -d -C` that touch ymm or zmm registers."""
    function, found = "?", {}
    for line in objdump_output.splitlines():
        header = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if header:
            function = header.group(1)
        elif WIDE_REGISTER.search(line):
            found.setdefault(function, line.split("\t")[-1].strip())
    return found


def run(*command):
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def check(build):
    problems, wide, generic = [], 0, 0
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        words = shlex.split(entry["command"])
        if "src" not in source.parts or source.suffix != ".cpp" or "-o" not in words:
            continue
        target = Path(entry["directory"]) / words[words.index("-o") + 1]
        if not target.exists():
            problems.append(f"{source}: {target} was not built")
        elif any(WIDE.match(word) for word in words):
            wide += 1
            for symbol in weak_symbols(run("nm", "-C", "--defined-only", str(target))):
                problems.append(f"{source}: compiled for a wider machine, defines weak {symbol}")
        else:
            generic += 1
            for name, line in wide_functions(run("objdump", "-d", "-C", str(target))).items():
                problems.append(f"{source}: generic code uses a wide register: {name}: {line}")
    print(f"check_isa: {wide} ISA objects, {generic} generic objects, {len(problems)} violations")
    return problems


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    problems = check(Path(sys.argv[1]))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
