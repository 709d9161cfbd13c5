#!/usr/bin/env python3
"""Reads the machine code of the CUDA objects: are the promised instructions there, and no spills?

For every nvfp4_w4a16_sm90 kernel: HGMMA (HMMA for strips, 8 and 16 tokens), setmaxnreg where promised, no local
memory, registers under the cap; prints the instructions each 8 weights cost in the main loop. For the
attention kernels: HGMMA in prefill and HMMA in decode, no local memory, registers under the cap. For
every nvfp4_w4a16_sm80 kernel: HMMA, no local memory, registers under the cap, and PTX beside it for newer GPUs. Needs
cuobjdump (CUDA toolkit, or PyPI nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm); exits 77 without it.
Usage: check_sass.py [--cuobjdump PATH] OBJECT...
"""

import argparse
import re
import shutil
import subprocess
import sys

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z0-9_.]+)")
TILE = re.compile(r"nvfp4_w4a16_sm90.*W4A16ConfigILi(\d+)ELi\d+ELi\d+ELi(\d)E")
STRIPS = re.compile(r"nvfp4_w4a16_sm90_stripsILb(\d)E")
ATTENTION = re.compile(r"attention_(prefill_sm90|decode_paged)ILi(\d+)E")
TILE_SM80 = re.compile(r"nvfp4_w4a16_sm80.*W4A16Sm80ConfigILi(\d+)ELi\d+ELi\d+ELi\d+ELi\d+ELb(\d)E")
USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+)")


def run(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def functions(sass):
    found, current = {}, None
    for line in sass.splitlines():
        if match := FUNCTION.match(line):
            current = found.setdefault(match.group(1), [])
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.append(match.group(1))
    return found


def weights_cost(code, product):
    """Instructions a packed word, over the longest stretch of evenly spaced products."""
    at = [i for i, name in enumerate(code) if name.startswith(product)]
    if len(at) < 9:
        return None
    return min((at[i + 8] - at[i]) / 8 for i in range(len(at) - 8))


def common_problems(code, usage, product, cap):
    problems = []
    if not any(op.startswith(product) for op in code):
        problems.append(f"no {product}")
    local = sorted({op for op in code if op.startswith(("LDL", "STL"))})
    if local:
        problems.append("local memory: " + " ".join(local))
    registers, stack = usage
    if registers > cap:
        problems.append(f"{registers} registers, at most {cap}")
    if stack:
        problems.append(f"{stack} bytes of stack")
    return problems


def check_sm80(match, code, usage):
    one_block = match.group(1) == "64" and "W4A16OutputE2E" in match.string  # SwiGLU
    problems = common_problems(code, usage, "HMMA", 255 if one_block else 128)
    whole = ", whole" if match.group(2) == "1" else ""
    return f"sm80 {match.group(1):>4s} tokens{whole}: {usage[0]} registers, {len(code)} instructions", problems


def check_attention(match, code, usage):
    prefill = match.group(1) == "prefill_sm90"
    problems = common_problems(code, usage, "HGMMA" if prefill else "HMMA", 168 if prefill else 255)
    if prefill and not any(op.startswith("USETMAXREG") for op in code):
        problems.append("no setmaxnreg")
    line = f"attention_{match.group(1)}, head_dim {match.group(2)}: {usage[0]} registers, {len(code)} instructions"
    return line, problems


def check_strips(match, code, usage):
    # 16 warps of 48 registers, or 12 (one a strip) of 64: two products and a norm on a multiprocessor.
    whole = match.group(1) == "1"
    problems = common_problems(code, usage, "HMMA", 64 if whole else 48)
    line = f"strips{', whole' if whole else ''}: {usage[0]} registers, {len(code)} instructions"
    if cost := weights_cost(code, "HMMA"):
        line += f", {cost:.1f} for 8 weights in the main loop"
    return line, problems


def check(name, code, usage):
    if match := ATTENTION.search(name):
        return check_attention(match, code, usage)
    if match := TILE_SM80.search(name):
        return check_sm80(match, code, usage)
    if match := STRIPS.search(name):
        return check_strips(match, code, usage)
    match = TILE.search(name)
    if not match:
        return None, []
    tokens, blocks_per_sm = int(match.group(1)), int(match.group(2))
    warp_products = tokens <= 16
    product = "HMMA" if warp_products else "HGMMA"
    problems = common_problems(code, usage, product, {1: 168, 2: 96}[blocks_per_sm])
    if not warp_products and not any(op.startswith("USETMAXREG") for op in code):
        problems.append("no setmaxnreg")
    cost = weights_cost(code, product)
    line = f"{tokens:4d} tokens: {usage[0]} registers, {len(code)} instructions"
    if cost and tokens == 8:
        line += f", {cost:.1f} for 8 weights in the main loop"
    return line, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuobjdump", default=shutil.which("cuobjdump"))
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    if not arguments.cuobjdump:
        print("skip: no cuobjdump")
        return 77
    seen, failed = 0, False
    for path in arguments.objects:
        usage = {m[0]: (int(m[1]), int(m[2])) for m in USAGE.findall(run(arguments.cuobjdump, "-res-usage", path))}
        sass = run(arguments.cuobjdump, "--dump-sass", path)
        if "nvfp4_w4a16_sm80" in sass and "sm_80" not in run(arguments.cuobjdump, "--list-ptx", path):
            print(f"{path}: no PTX for GPUs newer than sm_8x")
            failed = True
        for name, code in functions(sass).items():
            line, problems = check(name, code, usage.get(name, (0, 0)))
            if line:
                seen += 1
                print(line)
            for problem in problems:
                print(f"{path}: {name}: {problem}")
                failed = True
    if seen == 0:
        print("no kernel found")
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
