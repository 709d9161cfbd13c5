#!/usr/bin/env python3
"""`nibble quantize` from outside: killed at ten moments and started again, on disks that fail, with sources and texts
that cannot be read. What is left must be the same bits, or nothing that looks like a checkpoint.

Standard library only. Usage: quantize_test.py --program build/dev/nibble --failing-io libfailing_io.so
"""

import argparse
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = None
FAILING_IO = None
LAYERS = 16
HIDDEN, FFN, HEADS, KV_HEADS, DIM = 64, 192, 4, 2, 16
NOBODY = 65534


def write_model(folder):
    """A Llama of sixteen small layers with random weights and a stock tokenizer."""
    folder.mkdir(parents=True)
    tokenizer = ROOT / "tests/data/tokenizers/gpt2.tokenizer.json"
    shutil.copy(tokenizer, folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    described = json.loads(tokenizer.read_text())
    ids = list(described["model"]["vocab"].values()) + [token["id"] for token in described["added_tokens"]]
    vocab = max(ids) + 1
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": DIM, "vocab_size": vocab, "rope_theta": 10000.0,
              "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
              "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 0, "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    numbers = random.Random(5)
    tensors = {"model.embed_tokens.weight": ([vocab, HIDDEN], 1.0), "model.norm.weight": ([HIDDEN], 0)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, n, k in (("self_attn.q_proj", HEADS * DIM, HIDDEN), ("self_attn.k_proj", KV_HEADS * DIM, HIDDEN),
                           ("self_attn.v_proj", KV_HEADS * DIM, HIDDEN), ("self_attn.o_proj", HIDDEN, HEADS * DIM),
                           ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                           ("mlp.down_proj", HIDDEN, FFN)):
            tensors[f"{prefix}{name}.weight"] = ([n, k], k ** -0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = ([HIDDEN], 0)
    header, data = {}, bytearray()
    for name, (shape, deviation) in tensors.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data)
        for _ in range(count):
            value = numbers.gauss(0, deviation) if deviation else 1.0
            data += struct.pack("<f", value)[2:]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def looks_like_a_checkpoint(folder):
    return any((folder / name).exists() for name in ("config.json", "model.safetensors"))


class Quantize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.work = Path(cls.scratch.name)
        cls.work.chmod(0o755)
        cls.model = cls.work / "model"
        write_model(cls.model)
        cls.text = cls.work / "calibration.txt"
        words = (ROOT / "docs/engine.md").read_text() + (ROOT / "docs/formats.md").read_text()
        cls.text.write_text(words * 3)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def command(self, destination, source=None, text=None, **options):
        flags = {"recipe": "full", "calib": text or self.text, "calib-tokens": 4096, "threads": 1, **options}
        words = [str(PROGRAM), "quantize", str(source or self.model), str(destination)]
        for name, value in flags.items():
            if value is not None:
                words += [f"--{name}", str(value)]
        return words

    def run_quantize(self, destination, preload=False, preexec=None, **options):
        environment = {**os.environ, "LD_PRELOAD": str(FAILING_IO)} if preload else None
        return subprocess.run(self.command(destination, **options), capture_output=True, text=True, timeout=300,
                              env=environment, preexec_fn=preexec, check=False)

    def expect_failure(self, result, destination, *words):
        self.assertNotEqual(result.returncode, 0)
        self.assertGreater(result.returncode, 0, "it must say what is wrong, not crash")
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(looks_like_a_checkpoint(destination), "something that looks whole is left")

    def reference(self):
        whole = self.work / "whole"
        if not whole.exists():
            self.assertEqual(self.run_quantize(whole).returncode, 0)
        return {name: (whole / name).read_bytes() for name in ("model.safetensors", "config.json",
                                                              "hf_quant_config.json")}

    def expect_reference(self, destination):
        for name, content in self.reference().items():
            self.assertEqual((destination / name).read_bytes(), content, name)
        self.assertFalse(Path(f"{destination}.partial").exists())

    def test_ten_kills_and_as_many_starts_give_the_same_bits(self):
        destination = self.work / "killed"
        partial = Path(f"{destination}.partial")
        moments = random.Random(11)
        layers = []
        for _ in range(10):
            begun = layers[-1] if layers else 0
            process = subprocess.Popen(self.command(destination), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 120
            while len(list(partial.glob("step-*.safetensors"))) <= begun:
                self.assertIsNone(process.poll(), "it ended before it could be killed")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)
            time.sleep(moments.random() * 0.03)  # somewhere in the next layer
            process.send_signal(signal.SIGKILL)
            self.assertEqual(process.wait(), -signal.SIGKILL, "it ended before it could be killed")
            layers.append(len(list(partial.glob("step-*.safetensors"))))
            self.assertFalse(looks_like_a_checkpoint(destination))
        self.assertEqual(len(set(layers)), 10, layers)  # each kill in another layer
        print(f"killed after layers {layers}", file=sys.stderr)
        self.assertEqual(self.run_quantize(destination).returncode, 0)
        self.expect_reference(destination)

    def test_a_full_disk_is_said_and_the_run_goes_on_where_there_is_room(self):
        folder = self.work / "full-disk"
        folder.mkdir()
        destination = folder / "out"
        self.expect_failure(self.run_quantize(destination, preload=True), destination, "No space left on device")
        self.assertTrue((folder / "out.partial").exists())
        self.assertEqual(self.run_quantize(destination).returncode, 0)
        self.expect_reference(destination)

    def test_a_disk_that_is_too_small_for_layers_and_result_is_refused_before_any_work(self):
        self.reference()
        result = (self.work / "whole" / "model.safetensors").stat().st_size
        layers = LAYERS * (2 * HEADS * DIM * HIDDEN + 2 * KV_HEADS * DIM * HIDDEN + 3 * FFN * HIDDEN) * 9 // 16
        hidden = 2 * 2 * 4096 * HIDDEN
        for free, works in ((result + layers // 2, False), (result + layers + hidden, True)):
            folder = self.work / f"disk-of-{free}"
            folder.mkdir()
            destination = folder / "out"
            ended = self.run_quantize(destination, preload=True)
            if works:
                self.assertEqual(ended.returncode, 0, ended.stderr)
                self.expect_reference(destination)
            else:
                self.expect_failure(ended, destination, "no space left", f"{free} free")
                self.assertEqual(list(folder.iterdir()), [])

    def test_two_runs_on_one_destination_do_not_meet(self):
        destination = self.work / "twice"
        partial = Path(f"{destination}.partial")
        first = subprocess.Popen(self.command(destination), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not list(partial.glob("step-*.safetensors")):
            self.assertIsNone(first.poll(), "it ended before it could be met")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        self.expect_failure(self.run_quantize(destination), destination, "twice.partial", "another run")
        self.expect_failure(self.run_quantize(destination, recipe="gptq"), destination, "another run")
        first.send_signal(signal.SIGCONT)
        self.assertEqual(first.wait(), 0)
        self.expect_reference(destination)

    def test_a_damaged_unfinished_run_says_what_to_remove(self):
        destination = self.work / "damaged"
        partial = Path(f"{destination}.partial")
        process = subprocess.Popen(self.command(destination), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(list(partial.glob("step-*.safetensors"))) < 2:
            self.assertIsNone(process.poll(), "it ended before it could be killed")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        step = partial / "step-00000.safetensors"
        step.write_bytes(step.read_bytes()[:-1])
        self.expect_failure(self.run_quantize(destination), destination, step.name, f"remove {partial}")
        shutil.rmtree(partial)
        self.assertEqual(self.run_quantize(destination).returncode, 0)
        self.expect_reference(destination)

    def test_a_source_that_cannot_be_read_is_named(self):
        source = self.work / "unreadable" / "model"
        shutil.copytree(self.model, source)
        destination = self.work / "from-unreadable"
        self.expect_failure(self.run_quantize(destination, preload=True, source=source), destination,
                            "model.safetensors", "Input/output error")
        whole = (self.model / "model.safetensors").read_bytes()
        (source / "model.safetensors").write_bytes(whole[:len(whole) // 2])
        self.expect_failure(self.run_quantize(destination, source=source), destination, "model.safetensors")

    def test_a_source_without_permission_is_named(self):
        if os.getuid() != 0:
            drop = None
        else:
            def drop():
                os.setgid(NOBODY)
                os.setuid(NOBODY)
        source = self.work / "forbidden"
        shutil.copytree(self.model, source)
        folder = self.work / "anybody"
        folder.mkdir()
        folder.chmod(0o777)
        try:
            self.assertEqual(self.run_quantize(folder / "works", preexec=drop).returncode, 0)
        except (PermissionError, subprocess.SubprocessError):
            self.skipTest("the program cannot be run without privileges here")
        (source / "model.safetensors").chmod(0)
        self.expect_failure(self.run_quantize(folder / "out", preexec=drop, source=source), folder / "out",
                            "model.safetensors", "Permission denied")

    def test_a_calibration_file_without_text_is_refused(self):
        destination = self.work / "blank"
        text = self.work / "blank.txt"
        for content, words in ((" \n\t\n", "empty"), ("a few words", "at least 32 tokens")):
            text.write_text(content)
            self.expect_failure(self.run_quantize(destination, text=text), destination, words)
        self.expect_failure(self.run_quantize(destination, text=self.work / "absent.txt"), destination, "absent.txt")
        chats = self.work / "chats.jsonl"
        chats.write_text('{"text": "no messages"}\n')
        self.expect_failure(self.run_quantize(destination, text=chats), destination, "chats.jsonl")

    def test_an_evaluation_that_cannot_be_is_refused_before_any_work(self):
        destination = self.work / "unscored"
        for options, words in (({"eval": self.work / "absent.txt"}, "absent.txt"),
                               ({"eval": self.text, "eval-window": 4096}, "context length"),
                               ({"eval": self.text, "eval-window": 64, "eval-windows": 10 ** 9}, "the text has"),
                               ({"eval-window": 64}, "--eval")):
            result = self.run_quantize(destination, recipe=None, **{"calib": None, "calib-tokens": None, **options})
            self.expect_failure(result, destination, words)
        model = self.work / "mute"
        shutil.copytree(self.model, model)
        (model / "tokenizer.json").unlink()
        result = self.run_quantize(destination, source=model, recipe=None,
                                   **{"calib": None, "calib-tokens": None, "eval": self.text})
        self.expect_failure(result, destination, "tokenizer.json")


def main():
    global PROGRAM, FAILING_IO
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--failing-io", required=True, type=Path)
    known, rest = parser.parse_known_args()
    PROGRAM = known.program.resolve()
    FAILING_IO = known.failing_io.resolve()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
