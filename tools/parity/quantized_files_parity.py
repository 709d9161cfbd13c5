#!/usr/bin/env python3
"""Checks that other programs read what `nibble quantize` writes. Three readers:

  numbers   the published formulas in numpy, over the files of both layouts (ModelOpt: code * block scale * weight_scale_2;
            compressed-tensors: code * block scale / weight_global_scale); the error to the source must be the report's
  loader    transformers with the compressed-tensors package, where torch and both are installed: logits of the
            checkpoint as they load it against those of the same numbers in float32
  modelopt  ModelOpt's own tensor class decodes the weights of its layout, all bits compared; its compressed linears take
            them, codes and scales, in place of their own, and the model's logits are compared

  quantized_files_parity.py --program build/dev/nibble [--model DIR]

Needs numpy; torch, transformers and compressed-tensors for the second; torch, transformers and nvidia-modelopt for the third
(one that is absent is skipped, and said). Exit code 1 on a difference.
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


def read_torch(folder):
    from safetensors.torch import load_file
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def check_modelopt_bits(tensors, weights, name):
    """decode() of nibble multiplies code, block scale and global scale in this order, with one rounding; ModelOpt rounds the
    product of both scales first. With a global scale of 1 in ModelOpt's hands the bits must be the same, with the stored one
    each value may be one unit in the last place away."""
    import torch
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
    compared = furthest = 0
    for module, weight in weights.items():
        compared += weight.size
        packed = tensors[module + ".weight"]
        if packed.dtype != torch.uint8:
            qtensor = FP8QTensor(torch.Size(weight.shape), torch.float32, packed)
            theirs = qtensor.dequantize(dtype=torch.float32, scale=tensors[module + ".weight_scale"])
            if theirs.numpy().tobytes() != weight.tobytes():
                sys.exit(f"{name} {module}: ModelOpt decodes other FP8 weights")
            continue
        whole = tensors[module + ".weight_scale_2"]
        qtensor = NVFP4QTensor(torch.Size(weight.shape), torch.float32, packed)
        scales = {"scale": tensors[module + ".weight_scale"], "block_sizes": {-1: 16}}
        exact = qtensor.dequantize(dtype=torch.float32, double_scale=torch.tensor(1.0), **scales) * whole
        theirs = qtensor.dequantize(dtype=torch.float32, double_scale=whole, **scales).numpy()
        if exact.numpy().tobytes() != (weight + np.float32(0)).tobytes():
            sys.exit(f"{name} {module}: ModelOpt decodes other weights")
        steps = np.abs(theirs.view(np.int32).astype(np.int64) - exact.numpy().view(np.int32).astype(np.int64))
        furthest = max(furthest, int(steps.max()))
    if compared == 0 or furthest > 1:
        sys.exit(f"{name}: {compared} values, {furthest} units in the last place away")
    return compared, furthest


def check_modelopt_model(model, tensors, weights, name):
    """Logits of ModelOpt's compressed model with these codes and scales, against plain float32 weights."""
    import modelopt.torch.quantization as mtq
    import torch
    import transformers
    from modelopt.torch.quantization.qtensor import NVFP4QTensor, QTensorWrapper
    ids = torch.tensor([[3 + i * 37 % 90 for i in range(40)]])

    def logits(network):
        with torch.no_grad():
            return network.eval()(ids).logits[0].float()

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    plain = load()
    state = plain.state_dict()
    for module, weight in weights.items():
        state[module + ".weight"].copy_(torch.from_numpy(np.ascontiguousarray(weight)))
    for key, tensor in tensors.items():
        if "layernorm" in key or key == "model.norm.weight":
            state[key].copy_(tensor.float())
    expected = logits(plain)
    compressed = load()
    config = {"quant_cfg": [{"quantizer_name": "*", "enable": False},
                            {"quantizer_name": "*layers*weight_quantizer", "enable": True,
                             "cfg": {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}}],
              "algorithm": "max"}
    compressed = mtq.quantize(compressed, config)
    mtq.compress(compressed)
    own = logits(compressed)  # of ModelOpt's rounding: shows that what follows is not read past
    linears = dict(compressed.named_modules())
    for module, weight in weights.items():
        linear = linears[module]
        assert isinstance(linear.weight, QTensorWrapper), type(linear.weight)
        linear._parameters["weight"] = QTensorWrapper(NVFP4QTensor(torch.Size(weight.shape), torch.float32,
                                                                   tensors[module + ".weight"]))
        linear.weight_quantizer._scale = tensors[module + ".weight_scale"]
        linear.weight_quantizer._double_scale = tensors[module + ".weight_scale_2"]
    for key, tensor in tensors.items():
        if "layernorm" in key or key == "model.norm.weight":
            compressed.get_parameter(key).data.copy_(tensor.float())
    found = logits(compressed)
    distance = float((found - expected).norm() / expected.norm())
    moved = float((own - expected).norm() / expected.norm())
    if not distance < 1e-5 or not moved > 100 * distance:
        sys.exit(f"{name}: ModelOpt's model gives other logits: distance {distance:.1e}, its own rounding {moved:.1e}")
    return distance, moved


def check_modelopt(program, model, work):
    try:
        import modelopt
        import modelopt.torch.quantization  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"modelopt: skipped, {error}")
        return
    text = work / "calibration.txt"
    flags_of = {"max": ["--recipe", "max"], "four-over-six": ["--recipe", "four-over-six"], "fp8": ["--fp8", "*.down_proj"]}
    if (Path(model) / "tokenizer.json").exists():
        text.write_text((ROOT / "docs/formats.md").read_text())
        flags_of["full"] = ["--recipe", "full", "--calib", str(text), "--calib-tokens", "1024"]
    for name, flags in flags_of.items():
        out = work / f"modelopt-{name}"
        quantize(program, model, out, *flags)
        tensors, weights = read_torch(out), weights_of(out)
        compared, furthest = check_modelopt_bits(tensors, weights, name)
        line = f"modelopt {modelopt.__version__}, {name}: {compared} weights, the same bits ({furthest} ulp by its own order)"
        if name in ("four-over-six", "full"):
            distance, moved = check_modelopt_model(model, tensors, weights, name)
            line += f"; logits {distance:.1e} away, {moved:.1e} from its own rounding"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", default=str(ROOT / "tests/data/golden/vendor/llama-base"))
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp())
    try:
        check_numbers(arguments.program, arguments.model, work)
        check_loader(arguments.program, arguments.model, work)
        check_modelopt(arguments.program, arguments.model, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
