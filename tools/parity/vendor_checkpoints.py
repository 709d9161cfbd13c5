#!/usr/bin/env python3
"""Makes NVFP4 checkpoints of a real model with other exporters' own tools, on the CPU, to be evaluated beside nibble's.

  vendor_checkpoints.py modelopt-max MODEL OUT --calib calib.txt         ModelOpt, its default configuration
  vendor_checkpoints.py modelopt-four-over-six | modelopt-awq | modelopt-local-hessian ...
  vendor_checkpoints.py llm-compressor-gptq MODEL OUT --calib calib.txt

The calibration tokens are those of `nibble quantize --calib`: the text by the model's tokenizer, the first SEGMENTS x 512 of
them. Needs torch, transformers, tokenizers and nvidia-modelopt, or llmcompressor and datasets. Measured with torch 2.14.1,
transformers 5.24.0, nvidia-modelopt 0.47.0, llmcompressor 0.14.0.1, compressed-tensors 0.20.1.
"""
import argparse
import copy
import shutil
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

LENGTH = 512
BATCH = 8  # segments a call: AWQ rounds all weights eleven times at each
MODELOPT = {"modelopt-max": "NVFP4_DEFAULT_CFG", "modelopt-four-over-six": "NVFP4_FOUR_OVER_SIX_CFG",
            "modelopt-awq": "NVFP4_AWQ_LITE_CFG", "modelopt-local-hessian": "NVFP4_W4A4_WEIGHT_LOCAL_HESSIAN_CFG"}
LARGEST_E2M1, LARGEST_E4M3 = 6.0, 448.0


def segments_of(arguments):
    text = Path(arguments.calib).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(Path(arguments.model) / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    segments = [ids[begin:begin + LENGTH] for begin in range(0, len(ids) - LENGTH + 1, LENGTH)][:arguments.segments]
    if len(segments) < arguments.segments:
        raise SystemExit(f"{arguments.calib} has {len(segments)} segments of {LENGTH} tokens, {arguments.segments} are asked for")
    return segments


def load(folder):
    """In float32, which also holds a BF16 model as it is: CPUs without BF16 products are several times slower in it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def nearest_e2m1(values):
    """To the nearest of E2M1, ties to the even code: a multiple of 0.5 below 2, of 1 below 4, of 2 above; round() takes even ones."""
    sizes = values.abs()
    step = 0.5 * (1 + (sizes >= 2).float() + 2 * (sizes >= 4).float())
    return values.div_(step).round_().mul_(step).clamp_(-LARGEST_E2M1, LARGEST_E2M1)


def round_blocks(x, block, amax, *_formats):
    """What ModelOpt's CUDA operator for dynamic blocks computes."""
    blocks = x.float().reshape(-1, block)
    whole = amax.float().max() / (LARGEST_E2M1 * LARGEST_E4M3)
    scale = blocks.abs().amax(-1, keepdim=True) / LARGEST_E2M1 / whole
    scale = scale.clamp(max=LARGEST_E4M3).to(torch.float8_e4m3fn).float() * whole
    divisor = scale.where(scale > 0, torch.tensor(1.0))
    rounded = nearest_e2m1(blocks / divisor).mul_(scale)
    return rounded.reshape(x.shape).to(x.dtype)


def without_triton(tensor_quant):
    """ModelOpt's static blocks exist as a Triton kernel alone: the same on the CPU. Block amax in, rounded weights out."""
    def forward(x, amax, global_amax=None, quantize_block_scales=True, largest_scale=LARGEST_E4M3, *_rest):
        blocks = x.float().reshape(amax.numel(), -1)
        scale = amax.float().reshape(-1, 1) / LARGEST_E2M1
        if quantize_block_scales:
            largest = amax.max() if global_amax is None else global_amax
            whole = largest.float() / (LARGEST_E2M1 * largest_scale)
            scale = (scale / whole).clamp(2 ** -9, LARGEST_E4M3).to(torch.float8_e4m3fn).float() * whole
        divisor = scale.where(scale > 0, torch.tensor(1.0))
        rounded = nearest_e2m1(blocks / divisor).mul_(scale)
        return rounded.reshape(x.shape).to(x.dtype)
    tensor_quant.static_blockwise_fp4_fake_quant = forward


def modelopt(arguments, segments):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization import tensor_quant
    from modelopt.torch.quantization.nn.modules import tensor_quantizer
    tensor_quant.dynamic_block_quantize_op = round_blocks
    without_triton(tensor_quantizer)

    def feed(model):
        for begin in range(0, len(segments), BATCH):
            model(torch.tensor(segments[begin:begin + BATCH]))

    with torch.no_grad():
        model = mtq.quantize(load(arguments.model), copy.deepcopy(getattr(mtq, MODELOPT[arguments.maker])), feed)
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=arguments.out)


def llm_compressor(arguments, segments):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(arguments.model) / "tokenizer.json"), pad_token="<|im_end|>")
    rows = [{"input_ids": segment, "attention_mask": [1] * len(segment)} for segment in segments]
    model = load(arguments.model)
    oneshot(model=model, processor=tokenizer, dataset=Dataset.from_list(rows), num_calibration_samples=len(rows),
            max_seq_length=LENGTH, recipe=GPTQModifier(targets="Linear", scheme="NVFP4", ignore=["lm_head"]))
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "embed_tokens.weight")):
            parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(arguments.out, save_compressed=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maker", choices=[*MODELOPT, "llm-compressor-gptq"])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--segments", type=int, default=32)
    arguments = parser.parse_args()
    segments = segments_of(arguments)
    begin, cpu = time.monotonic(), time.process_time()
    (modelopt if arguments.maker in MODELOPT else llm_compressor)(arguments, segments)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = Path(arguments.model) / name
        if source.exists():
            shutil.copy(source, arguments.out)
    print(f"{arguments.maker}: {time.monotonic() - begin:.0f} s, {time.process_time() - cpu:.0f} CPU s")


if __name__ == "__main__":
    main()
