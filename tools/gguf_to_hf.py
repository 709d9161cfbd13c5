#!/usr/bin/env python3
"""Rewrites a GGUF file of the llama architecture as a Hugging Face directory with BF16 weights.

  gguf_to_hf.py MODEL.gguf DIRECTORY

Writes model.safetensors, config.json, generation_config.json, tokenizer.json and
tokenizer_config.json (with the chat template). Quantized tensors are dequantized exactly and then
rounded once to BF16. Needs the PyPI packages gguf and numpy.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

CONTROL_TOKEN = 3  # gguf token types
USER_DEFINED_TOKEN = 4

# GGUF block tensor -> module below model.layers.N
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# What the converter to GGUF calls "smollm": single digits apart, then GPT-2's expression.
PRE_TOKENIZERS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
    "gpt-2": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader):
        self._fields = reader.fields

    def get(self, key, default=None):
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key):
        value = self.get(key)
        if value is None:
            sys.exit(f"gguf_to_hf: {key} is missing")
        return value


def short_float(value):
    """The shortest decimal that is the same float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def to_bf16(values):
    """float32 -> bf16 bit patterns, round to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def undo_rope_permutation(weight, num_heads):
    """GGUF stores q and k rows for interleaved rotation pairs; Hugging Face pairs the two halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hf_name(name):
    if name in TOP_TENSORS:
        return TOP_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in BLOCK_TENSORS:
        return f"model.layers.{parts[1]}.{BLOCK_TENSORS[parts[2]]}.{parts[3]}"
    sys.exit(f"gguf_to_hf: no place for tensor {name}")


def read_weights(reader, heads, kv_heads):
    """name -> bf16 bit patterns, in the order of the names."""
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        name = hf_name(tensor.name)
        if name.endswith("q_proj.weight"):
            values = undo_rope_permutation(values, heads)
        elif name.endswith("k_proj.weight"):
            values = undo_rope_permutation(values, kv_heads)
        weights[name] = to_bf16(values)
    return dict(sorted(weights.items()))


def write_safetensors(path, weights):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in weights.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for bits in weights.values():
            file.write(bits.astype("<u2").tobytes())


def model_config(meta, weights):
    heads = meta.require("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta.require("llama.embedding_length"),
        "intermediate_size": meta.require("llama.feed_forward_length"),
        "num_hidden_layers": meta.require("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": meta.require("llama.context_length"),
        "rms_norm_eps": short_float(meta.require("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": short_float(meta.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.require("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def generation_config(config):
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def tokenizer_json(meta):
    if meta.require("tokenizer.ggml.model") != "gpt2":
        sys.exit("gguf_to_hf: only byte-level BPE tokenizers (gpt2) are supported")
    pre = meta.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        sys.exit(f"gguf_to_hf: pre-tokenizer {pre} is not supported")
    tokens = meta.require("tokenizer.ggml.tokens")
    types = meta.require("tokenizer.ggml.token_type")
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL_TOKEN,
        }
        for index, (token, kind) in enumerate(zip(tokens, types))
        if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in meta.require("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(meta, config):
    tokens = meta.require("tokenizer.ggml.tokens")
    result = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = meta.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            result[f"{role}_token"] = tokens[index]
    template = meta.get("tokenizer.chat_template")
    if template is not None:
        result["chat_template"] = template
    return result


def write_json(path, value, indent=2):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()

    reader = GGUFReader(arguments.gguf)
    meta = Metadata(reader)
    architecture = meta.require("general.architecture")
    if architecture != "llama":
        sys.exit(f"gguf_to_hf: architecture {architecture} is not supported, only llama is")
    heads = meta.require("llama.attention.head_count")
    weights = read_weights(reader, heads, meta.get("llama.attention.head_count_kv", heads))

    arguments.directory.mkdir(parents=True, exist_ok=True)
    config = model_config(meta, weights)
    write_json(arguments.directory / "config.json", config)
    write_json(arguments.directory / "generation_config.json", generation_config(config))
    write_json(arguments.directory / "tokenizer.json", tokenizer_json(meta), indent=None)
    write_json(arguments.directory / "tokenizer_config.json", tokenizer_config(meta, config))
    write_safetensors(arguments.directory / "model.safetensors", weights)
    size = sum(bits.nbytes for bits in weights.values()) / 1e6
    print(f"{arguments.directory}: {len(weights)} tensors, {size:.0f} MB")


if __name__ == "__main__":
    main()
