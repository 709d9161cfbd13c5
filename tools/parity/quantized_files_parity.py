#!/usr/bin/env python3
"""Checks that other programs read what `nibble quantize` writes. Two readers:

  numbers   the published formulas in numpy, over the files of both layouts (ModelOpt: code * block scale * weight_scale_2;
            compressed-tensors: code * block scale / weight_global_scale); the error to the source must be the report's
  loader    transformers with the compressed-tensors package, where torch and both are installed: logits of the
            checkpoint as they load it against those of the same numbers in float32

  quantized_files_parity.py --program build/dev/nibble [--model DIR]

Needs numpy; torch, transformers and compressed-tensors for the second. Exit code 1 on a difference.
"""
import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def read(folder):
    """name -> (dtype, array); E4M3 and BF16 as float32."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, info in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in info["data_offsets"])
            raw = data[begin:end]
            if info["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            elif info["dtype"] == "F8_E4M3":
                values = e4m3(np.frombuffer(raw, np.uint8))
            else:
                values = np.frombuffer(raw, {"U8": np.uint8, "F32": np.float32}[info["dtype"]])
            tensors[name] = (info["dtype"], values.reshape(info["shape"]))
    return tensors


def e4m3(codes):
    exponent = (codes >> 3 & 15).astype(np.int32)
    mantissa = (codes & 7).astype(np.float32)
    size = np.where(exponent == 0, mantissa * 2.0 ** -9, (1 + mantissa / 8) * np.exp2(exponent - 7.0))
    return np.where(codes & 0x80, -size, size).astype(np.float32)


def e2m1(packed):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])


def weights_of(folder):
    """module -> float32 weight of every quantized linear, by the formulas of its layout."""
    tensors = read(folder)
    weights = {}
    for name, (dtype, values) in tensors.items():
        module = name.rsplit(".", 1)[0]
        scale = tensors.get(f"{module}.weight_scale", (None, None))[1]
        if name.endswith(".weight_packed") or (name.endswith(".weight") and dtype == "U8"):
            blocks = np.repeat(scale, 16, axis=1)
            if name.endswith("_packed"):
                whole = 1 / tensors[f"{module}.weight_global_scale"][1].reshape(())
            else:
                whole = tensors[f"{module}.weight_scale_2"][1]
            weights[module] = e2m1(values) * blocks * whole
        elif name.endswith(".weight") and dtype == "F8_E4M3":
            weights[module] = values * scale.reshape(())
    return weights


def quantize(program, model, out, *flags):
    subprocess.run([program, "quantize", model, out, "--threads", "2", *flags], check=True, capture_output=True)


def check_numbers(program, model, work):
    source = read(model)
    worst = 0.0
    for layout in ("modelopt", "compressed-tensors"):
        for flags in (["--recipe", "max"], ["--recipe", "four-over-six"], ["--fp8", "*.down_proj"]):
            out = work / f"{layout}{len(flags[0])}{flags[1].strip('*.')}"
            quantize(program, model, out, "--layout", layout, *flags)
            weights = weights_of(out)
            tensors = json.loads((out / "quantize_report.json").read_text())["tensors"]
            assert len(tensors) == len(weights) > 0, (len(tensors), len(weights))
            for tensor in tensors:
                expected = source[tensor["module"] + ".weight"][1]
                error = np.linalg.norm(expected - weights[tensor["module"]]) / np.linalg.norm(expected)
                difference = abs(error - tensor["relative_error"])
                worst = max(worst, difference)
                if difference > 1e-4:
                    sys.exit(f"{out.name} {tensor['module']}: error {error}, the report says {tensor['relative_error']}")
    print(f"numbers: both layouts, three mixtures: the errors of all matrices are the reports' (worst difference {worst:.1e})")


def check_loader(program, model, work):
    try:
        import compressed_tensors  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        print(f"loader: skipped, {error}")
        return
    ids = torch.tensor([[3 + i * 37 % 90 for i in range(40)]])

    def logits(loaded):
        with torch.no_grad():
            return loaded.eval()(ids).logits[0].float()

    for name, flags in (("four-over-six", ["--recipe", "four-over-six"]), ("max", ["--recipe", "max"])):
        out = work / f"loader-{name}"
        quantize(program, model, out, "--layout", "compressed-tensors", *flags)
        plain = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        source = logits(plain)
        state = plain.state_dict()
        for module, weight in weights_of(out).items():
            state[module + ".weight"].copy_(torch.from_numpy(np.ascontiguousarray(weight)))
        expected = logits(plain)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)  # what it decodes to
        found = logits(loaded)
        distance = (found - expected).norm() / expected.norm()
        moved = (expected - source).norm() / source.norm()
        print(f"loader: transformers {transformers.__version__}, {name}: distance {distance:.1e}; from the source {moved:.1e}")
        if not distance < min(0.02, moved / 4) or math.isnan(distance):
            sys.exit("transformers reads other numbers")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", default=str(ROOT / "tests/data/golden/vendor/llama-base"))
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp())
    try:
        check_numbers(arguments.program, arguments.model, work)
        check_loader(arguments.program, arguments.model, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
