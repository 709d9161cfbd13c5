#!/usr/bin/env python3
"""Reference logits of NVFP4 models with bf16 activations, in numpy.

The golden recordings quantise float32 activations. A model that keeps its activations in bf16 lands
on other sides of the E2M1 rounding boundaries, and in tiny random models those flips move logits as
much as W4A4 itself does (cosine 0.97 to 0.99). This script computes the same forward with bf16
rounding after every operation, for tests/golden to compare with closely; with --float32 it must
reproduce the golden recording itself, which is how it was checked.

With --w4a16 only weights are quantised. Mixtures of experts need that too: a router's near ties go
the other way under bf16 rounding, and another expert is another result.

usage: bf16_reference.py CHECKPOINT_DIR OUT.safetensors [--w4a16] [--float32]
CHECKPOINT_DIR holds config.json, model.safetensors and golden.safetensors (w4a4.p{i}.ids, .logits).
"""
import json
import struct
import sys

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array(
    [(-1 if c & 128 else 1) * ((c & 7) / 512 if (c >> 3) & 15 == 0 else (1 + (c & 7) / 8) * 2.0 ** (((c >> 3) & 15) - 7))
     for c in range(256)], np.float32)
E4M3_POSITIVE = E4M3[:127].copy()


class File:
    def __init__(self, path):
        with open(path, "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            self.header = json.loads(f.read(size))
            self.data = f.read()

    def __contains__(self, name):
        return name in self.header

    def array(self, name):
        info = self.header[name]
        begin, end = info["data_offsets"]
        raw = self.data[begin:end]
        if info["dtype"] == "BF16":
            out = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            out = np.frombuffer(raw, {"F32": np.float32, "I32": np.int32, "U8": np.uint8, "F8_E4M3": np.uint8}[info["dtype"]])
        return out.reshape(info["shape"])

    def dtype(self, name):
        return self.header[name]["dtype"]


def round_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def round_e4m3(x):  # positive
    x = np.minimum(x, 448)
    at = np.searchsorted(E4M3_POSITIVE, x)
    low, high = np.maximum(at - 1, 0), np.minimum(at, 126)
    below, above = x - E4M3_POSITIVE[low], E4M3_POSITIVE[high] - x
    even = np.where(low % 2 == 0, low, high)
    return E4M3_POSITIVE[np.where(below < above, low, np.where(above < below, high, even))]


def round_e2m1(x):
    magnitude = np.minimum(np.abs(x), 6)
    step = np.where(magnitude < 2, 0.5, np.where(magnitude < 4, 1, 2)).astype(np.float32)
    return np.sign(x) * np.round(magnitude / step) * step


def quantize_activations(x, scale):
    blocks = x.reshape(x.shape[0], -1, 16)
    block_scale = round_e4m3((np.abs(blocks).max(-1) / np.float32(6)) / scale)
    step = (block_scale * scale)[..., None]
    codes = round_e2m1(np.where(step > 0, blocks / np.maximum(step, np.float32(1e-38)), 0))
    return (codes * step).reshape(x.shape).astype(np.float32)


class Model:
    def __init__(self, directory, rounding, quantize):
        self.config = json.load(open(directory + "/config.json"))
        self.file = File(directory + "/model.safetensors")
        self.round = rounding
        self.quantize = quantize

    def linear(self, module, x, out_rounding=True):
        f = self.file
        if module + ".pre_quant_scale" in f:
            x = self.round(x * f.array(module + ".pre_quant_scale"))
        packed = module + ".weight_packed" in f  # compressed-tensors: global scales are inverses
        name = module + (".weight_packed" if packed else ".weight")
        weight = f.array(name)
        if f.dtype(name) == "U8":
            codes = np.stack([weight & 15, weight >> 4], -1).reshape(weight.shape[0], -1, 16)
            values = np.where(codes & 8, -1, 1) * E2M1[codes & 7]
            scales = E4M3[f.array(module + ".weight_scale")].reshape(weight.shape[0], -1, 1)
            factor = 1 / f.array(module + ".weight_global_scale") if packed else f.array(module + ".weight_scale_2")
            weight = (values * scales).reshape(weight.shape[0], -1).astype(np.float32) * factor
            if self.quantize:
                x = quantize_activations(x, f.array(module + ".input_scale"))
        y = x @ weight.T
        if module + ".bias" in f:
            y = y + f.array(module + ".bias")
        return self.round(y) if out_rounding else y

    def norm(self, x, module):
        eps = np.float32(self.config["rms_norm_eps"])
        return self.round(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.file.array(module + ".weight"))

    def rope_tables(self, positions, dim):
        c = self.config
        rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
        theta = c.get("rope_theta", rope.get("rope_theta"))
        kind = rope.get("rope_type", rope.get("type", "default"))
        pair = np.arange(dim // 2)
        frequency = theta ** (-2.0 * pair / dim)
        magnitude = 1.0
        original = rope.get("original_max_position_embeddings")
        if kind == "llama3":
            wave, factor = 2 * np.pi / frequency, rope["factor"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (original / wave - low) / (high - low)
            blend = (1 - smooth) * frequency / factor + smooth * frequency
            frequency = np.where(wave < original / high, frequency, np.where(wave > original / low, frequency / factor, blend))
        elif kind == "yarn":
            at = [dim * np.log(original / (2 * np.pi * r)) / (2 * np.log(theta)) for r in (32, 1)]
            low, high = max(np.floor(at[0]), 0), min(np.ceil(at[1]), dim - 1)
            ramp = np.clip((pair - low) / max(high - low, 0.001), 0, 1)
            frequency = frequency / rope["factor"] * ramp + frequency * (1 - ramp)
            magnitude = 0.1 * np.log(rope["factor"]) + 1
        angle = np.arange(positions)[:, None] * frequency
        return (magnitude * np.cos(angle)).astype(np.float32)[:, None], (magnitude * np.sin(angle)).astype(np.float32)[:, None]

    def mlp(self, module, x, names=("gate_proj", "up_proj", "down_proj"), out_rounding=True):
        gate, up, down = (f"{module}.{name}" for name in names)
        gate, up = self.linear(gate, x), self.linear(up, x)
        return self.linear(down, self.round(gate / (1 + np.exp(-gate)) * up), out_rounding)

    def experts(self, module, x, names):
        """Softmax over all experts, the largest chosen; the weighted sum is rounded once."""
        c = self.config
        score = self.linear(module + ".gate", x, out_rounding=False)
        score = np.exp(score - score.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        chosen = np.argsort(-score, axis=-1, kind="stable")[:, : c["num_experts_per_tok"]]
        weight = np.take_along_axis(score, chosen, -1)
        if c.get("norm_topk_prob") or c["model_type"] == "mixtral":
            weight /= weight.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for t in range(x.shape[0]):
            for w, e in zip(weight[t], chosen[t]):
                y[t] += w * self.mlp(f"{module}.experts.{e}", x[t:t + 1], names, out_rounding=False)[0]
        return self.round(y)

    def logits(self, ids):
        c, f, n = self.config, self.file, len(ids)
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim") or c["hidden_size"] // heads
        cos, sin = self.rope_tables(n, dim)
        mask = np.tril(np.ones((n, n))) > 0

        def rotate(x):
            a, b = x[..., : dim // 2], x[..., dim // 2:]
            return self.round(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))

        x = f.array("model.embed_tokens.weight")[ids]
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            a = self.norm(x, p + "input_layernorm")
            q = self.linear(p + "self_attn.q_proj", a).reshape(n, heads, dim)
            k = self.linear(p + "self_attn.k_proj", a).reshape(n, kv_heads, dim)
            v = self.linear(p + "self_attn.v_proj", a).reshape(n, kv_heads, dim)
            if p + "self_attn.q_norm.weight" in f:
                q, k = self.norm(q, p + "self_attn.q_norm"), self.norm(k, p + "self_attn.k_norm")
            q, k = rotate(q), rotate(k)
            out = np.zeros((n, heads, dim), np.float32)
            for h in range(heads):
                score = np.where(mask, q[:, h] @ k[:, h // (heads // kv_heads)].T * dim ** -0.5, -np.inf)
                weight = np.exp(score - score.max(-1, keepdims=True))
                out[:, h] = weight / weight.sum(-1, keepdims=True) @ v[:, h // (heads // kv_heads)]
            x = self.round(x + self.linear(p + "self_attn.o_proj", self.round(out.reshape(n, -1))))
            m = self.norm(x, p + "post_attention_layernorm")
            if p + "mlp.gate.weight" in f:
                y = self.experts(p + "mlp", m, ("gate_proj", "up_proj", "down_proj"))
            elif p + "block_sparse_moe.gate.weight" in f:
                y = self.experts(p + "block_sparse_moe", m, ("w1", "w3", "w2"))
            else:
                y = self.mlp(p + "mlp", m)
            x = self.round(x + y)
        x = self.norm(x, "model.norm")
        if c.get("tie_word_embeddings"):
            return x @ f.array("model.embed_tokens.weight").T
        return self.linear("lm_head", x, out_rounding=False)


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def greedy(model, ids, count):
    """Tokens and by how much each won."""
    tokens, margins = [], []
    for _ in range(count):
        last = model.logits(np.concatenate([ids, np.array(tokens, np.int32)]))[-1]
        tokens.append(int(last.argmax()))
        first, second = np.sort(last)[-1], np.sort(last)[-2]
        margins.append(first - second)
    return np.array(tokens, np.float32), np.array(margins, np.float32)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        logits = name.endswith(".logits")
        raw = (round_bf16(array).view(np.uint32) >> 16).astype(np.uint16).tobytes() if logits else array.tobytes()
        header[name] = {"dtype": "BF16" if logits else "F32", "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    directory, out = sys.argv[1:3]
    mode = "w4a16" if "--w4a16" in sys.argv else "w4a4"
    model = Model(directory, (lambda x: x) if "--float32" in sys.argv else round_bf16, mode == "w4a4")
    golden = File(directory + "/golden.safetensors")
    tensors = {}
    for i in range(3):
        logits = model.logits(golden.array(f"{mode}.p{i}.ids"))
        print(f"prompt {i}: cosine with the recording {cosine(logits, golden.array(f'{mode}.p{i}.logits')):.6f}")
        tensors[f"p{i}.logits"] = logits
        if mode == "w4a16":
            ids = golden.array(f"{mode}.p{i}.ids")
            tensors[f"p{i}.greedy"], tensors[f"p{i}.margins"] = greedy(model, ids, 16)
    write_safetensors(out, tensors)


if __name__ == "__main__":
    main()
