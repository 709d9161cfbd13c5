#!/usr/bin/env python3
"""Checkpoints of a named shape with random weights, for measuring speed: NVFP4 linears in ModelOpt's
layout, embedding, head, norms and routers in BF16. The text they write means nothing.

usage: make_synthetic_model.py [--bf16] SHAPE OUT_DIR
--bf16: linears in BF16 too, as a source for the quantizer
SHAPE: qwen2.5-1.5b, qwen3-0.6b, qwen3-8b, qwen3-32b, llama-3.1-70b, llama-3.1-70b-20l (20 of its 80 layers), smollm2-135m,
       moe-64x8 (8 layers, 64 experts, 8 a token)
"""
import json
import os
import random
import struct
import sys

COMMON = {"hidden_act": "silu", "torch_dtype": "bfloat16", "max_position_embeddings": 4096, "bos_token_id": 1,
          "eos_token_id": 2, "rms_norm_eps": 1e-6, "attention_bias": False}
LLAMA_70B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
             "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rope_theta": 500000.0,
             "tie_word_embeddings": False, "max_position_embeddings": 131072}
SHAPES = {
    "qwen2.5-1.5b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1536,
                     "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                     "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000.0,
                     "tie_word_embeddings": True},
    "qwen3-0.6b": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
                   "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000.0,
                   "tie_word_embeddings": True},
    "qwen3-8b": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
                 "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000.0,
                 "tie_word_embeddings": False, "max_position_embeddings": 40960},
    "qwen3-32b": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
                  "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
                  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000.0,
                  "tie_word_embeddings": False, "max_position_embeddings": 40960},
    "llama-3.1-70b": LLAMA_70B,
    "llama-3.1-70b-20l": {**LLAMA_70B, "num_hidden_layers": 20},
    "smollm2-135m": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
                     "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
                     "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rope_theta": 100000.0,
                     "tie_word_embeddings": True},
    "moe-64x8": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 1024,
                 "intermediate_size": 384, "moe_intermediate_size": 384, "num_hidden_layers": 8,
                 "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32768,
                 "rope_theta": 1000000.0, "tie_word_embeddings": False, "num_experts": 64,
                 "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}
BLOCK = 1 << 20  # of random bytes, repeated from changing offsets


class Noise:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.codes = self.random.randbytes(BLOCK)
        # E4M3 scales between 2 and 7.5, so that weight_scale_2 alone sets the size of the weights.
        self.scales = bytes(0x48 + (byte & 0x07) + (byte & 0x08) for byte in self.codes)
        self.values = {}

    def tile(self, block, size):
        begin = self.random.randrange(len(block) // 2) & ~1
        out = block[begin:]
        return (out + block * (size // len(block) + 1))[:size]

    def bf16(self, size, deviation):
        if deviation not in self.values:
            numbers = (self.random.gauss(0, deviation) for _ in range(BLOCK // 8))
            self.values[deviation] = b"".join(struct.pack("<f", x)[2:] for x in numbers)
        return self.tile(self.values[deviation], size)


def entries(config, noise, bf16):
    """(name, dtype, shape, bytes) of every tensor, made when asked for."""
    hidden, heads, kv, dim = (config[key] for key in
                              ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))

    def linear(name, n, k):
        if bf16:
            yield from plain(f"{name}.weight", [n, k], k ** -0.5)
            return
        yield f"{name}.weight", "U8", [n, k // 2], lambda: noise.tile(noise.codes, n * k // 2)
        yield f"{name}.weight_scale", "F8_E4M3", [n, k // 16], lambda: noise.tile(noise.scales, n * k // 16)
        yield f"{name}.weight_scale_2", "F32", [], lambda: struct.pack("<f", 0.07 / k ** 0.5)
        yield f"{name}.input_scale", "F32", [], lambda: struct.pack("<f", 0.004)

    def plain(name, shape, deviation):
        size = 2
        for extent in shape:
            size *= extent
        yield name, "BF16", shape, lambda: noise.bf16(size, deviation)

    def norm(name, width):
        yield name, "BF16", [width], lambda: struct.pack("<f", 1.0)[2:] * width

    def mlp(name, inner):
        yield from linear(f"{name}.gate_proj", inner, hidden)
        yield from linear(f"{name}.up_proj", inner, hidden)
        yield from linear(f"{name}.down_proj", hidden, inner)

    yield from plain("model.embed_tokens.weight", [config["vocab_size"], hidden], 1.0)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        yield from norm(f"{p}.input_layernorm.weight", hidden)
        yield from linear(f"{p}.self_attn.q_proj", heads * dim, hidden)
        yield from linear(f"{p}.self_attn.k_proj", kv * dim, hidden)
        yield from linear(f"{p}.self_attn.v_proj", kv * dim, hidden)
        yield from linear(f"{p}.self_attn.o_proj", hidden, heads * dim)
        if config["model_type"].startswith("qwen3"):
            yield from norm(f"{p}.self_attn.q_norm.weight", dim)
            yield from norm(f"{p}.self_attn.k_norm.weight", dim)
        yield from norm(f"{p}.post_attention_layernorm.weight", hidden)
        if "num_experts" in config:
            yield from plain(f"{p}.mlp.gate.weight", [config["num_experts"], hidden], 0.05)
            for expert in range(config["num_experts"]):
                yield from mlp(f"{p}.mlp.experts.{expert}", config["moe_intermediate_size"])
        else:
            yield from mlp(f"{p}.mlp", config["intermediate_size"])
    yield from norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        yield from plain("lm_head.weight", [config["vocab_size"], hidden], 0.05)


def main():
    bf16 = sys.argv[1:2] == ["--bf16"]
    arguments = sys.argv[2:] if bf16 else sys.argv[1:]
    if len(arguments) != 2 or arguments[0] not in SHAPES:
        sys.exit(__doc__)
    config = {**COMMON, **SHAPES[arguments[0]]}
    out = arguments[1]
    os.makedirs(out, exist_ok=True)
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                    "exclude_modules": ["lm_head", "model.embed_tokens", "*mlp.gate"]}
    files = {"config.json": config, "generation_config.json": {"eos_token_id": 2}}
    if not bf16:
        files["hf_quant_config.json"] = {"producer": {"name": "synthetic"}, "quantization": quantization}
    for name, value in files.items():
        with open(os.path.join(out, name), "w") as file:
            json.dump(value, file, indent=1)
    noise = Noise(0)
    sizes = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
    header, offset = {}, 0
    for name, dtype, shape, _ in entries(config, noise, bf16):
        size = sizes[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in entries(config, noise, bf16):
            file.write(data())
    print(f"{out}: {offset / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
