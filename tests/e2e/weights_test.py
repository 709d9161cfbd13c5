#!/usr/bin/env python3
"""The weight lifecycle over HTTP, against the real program: reloads that change nothing or everything,
pauses, release and resume, refusals by name, checkpoints that appear in a watched directory.

Standard library only. Usage: weights_test.py --program build/dev/nibble [--device cuda]
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
import unittest
from pathlib import Path

import serving
from serving import ROOT, TINY, Server, copy_checkpoint, scale_tensors, tensors_of

sys.path.insert(0, str(ROOT / "tools"))
import write_manifest  # noqa: E402

PROMPTS = [[3 + (i * 37 + k * 11) % 500 for k in range(length)] for i, length in enumerate((1, 7, 20, 40, 65))]
FLAGS = ["--skip-tokenizer-init", "--max-total-tokens", "16384"]
PROGRAM = None


def generate_body(prompt, tokens=16, **more):
    return {"input_ids": prompt, "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}, **more}


def signature(server):
    """Every token and logprob of a set of prompts; logprobs are compared as written, so bit for bit."""
    answers = [server.json("POST", "/generate", generate_body(prompt)) for prompt in PROMPTS]
    return [(a["output_ids"], a["meta_info"]["output_token_logprobs"]) for a in answers]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def wait_idle(server):
    wait_until(lambda: all(load["num_running_reqs"] == 0 and load["num_waiting_reqs"] == 0
                           for load in server.json("GET", "/v1/loads?include=core")["loads"]))


def num_running(server):
    return server.json("GET", "/v1/loads")["loads"][0]["num_running_reqs"]


def update(server, path, status=200, **fields):
    reply = server.json("POST", "/update_weights_from_disk", {"model_path": str(path), **fields}, status)
    assert reply["success"] == (status == 200), reply
    return reply


class Checkpoints:
    """A, and B with really different weights; made once."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.a = copy_checkpoint(TINY, self.root / "a")
        self.b = self.other("b", 1.5)
        server = Server(PROGRAM, "--model-path", self.b, *FLAGS)
        self.of_b = signature(server)
        assert server.stop() == 0

    def other(self, name, factor):
        directory = copy_checkpoint(TINY, self.root / name)
        scale_tensors(directory, "input_layernorm", factor)
        scale_tensors(directory, "o_proj.weight_scale_2", 1 / factor)
        return directory

    def broken(self, name, change):
        directory = copy_checkpoint(self.b, self.root / name)
        change(directory)
        return directory


class ServedByA(unittest.TestCase):
    flags = []

    @classmethod
    def setUpClass(cls):
        cls.made = Checkpoints()
        cls.server = Server(PROGRAM, "--model-path", cls.made.a, *FLAGS, *cls.flags)
        cls.of_a = signature(cls.server)
        assert cls.of_a != cls.made.of_b, "the two checkpoints must differ for these tests to mean anything"

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"exit code {code}:\n{cls.server.read_log()}"
        cls.made.folder.cleanup()

    def setUp(self):
        self.server.json("POST", "/continue_generation", {})
        if self.server.json("GET", "/get_model_info")["model_path"] != str(self.made.a):
            update(self.server, self.made.a)


class ReloadTest(ServedByA):
    def test_reloading_the_same_checkpoint_changes_no_bit(self):
        self.assertEqual(self.server.json("GET", "/get_model_info")["model_path"], str(self.made.a))
        for between in (False, True):  # with release and resume around the update, and without
            for flush in (True, False):
                wait_idle(self.server)
                if between:
                    self.assertIsNone(self.server.json("POST", "/release_memory_occupation", {}))
                    self.assertIsNone(self.server.json("POST", "/resume_memory_occupation", {"tags": ["weights"]}))
                reply = update(self.server, self.made.a, flush_cache=flush, abort_all_requests=False)
                self.assertEqual(reply["message"], "Succeeded to update model weights.")
                self.assertEqual(reply["num_paused_requests"], 0)
                self.assertGreater(reply["tensors_read"], 0)
                self.assertEqual(reply["unused_tensors"], [])
                if between:
                    self.assertIsNone(self.server.json(
                        "POST", "/resume_memory_occupation", {"tags": ["kv_cache", "cuda_graph"]}))
                self.assertEqual(self.server.json("GET", "/get_model_info")["model_path"], str(self.made.a))
                self.assertEqual(signature(self.server), self.of_a)

    def test_another_checkpoint_equals_a_fresh_start_on_it_and_the_way_back_restores_the_first(self):
        for flush in (True, False):
            reply = update(self.server, self.made.b, flush_cache=flush, weight_version="b-1")
            self.assertEqual(reply["message"], "Succeeded to update model weights. Weight version updated to b-1.")
            self.assertEqual(signature(self.server), self.made.of_b)
            info = self.server.json("GET", "/get_model_info")
            self.assertEqual((info["model_path"], info["weight_version"]), (str(self.made.b), "b-1"))
            self.assertEqual(self.server.json("GET", "/v1/models")["data"][0]["id"], str(self.made.b))
            update(self.server, self.made.a, flush_cache=flush)
            self.assertEqual(signature(self.server), self.of_a)

    def test_every_answer_names_the_weights_that_made_its_tokens(self):
        update(self.server, self.made.b, weight_version="named")
        meta = self.server.json("POST", "/generate", generate_body(PROMPTS[0]))["meta_info"]
        self.assertEqual(meta["weight_version"], "named")
        self.assertEqual(meta["weight_versions"], [{"weight_version": "named", "tokens": 16}])
        whole = self.server.json("POST", "/v1/completions", {"prompt": PROMPTS[1], "max_tokens": 4})
        self.assertEqual(whole["metadata"]["weight_version"], "named")
        self.server.json("POST", "/update_weight_version", {"new_version": "renamed"})
        meta = self.server.json("POST", "/generate", generate_body(PROMPTS[0]))["meta_info"]
        self.assertEqual(meta["weight_version"], "renamed")

    def test_running_requests_wait_are_aborted_or_swapped_as_asked(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for running in ("wait", "abort", "swap"):
                update(self.server, self.made.a, weight_version="old")
                tasks = [pool.submit(self.server.json, "POST", "/generate", generate_body(PROMPTS[2], 1500))
                         for _ in range(4)]
                wait_until(lambda: num_running(self.server) == 4)
                time.sleep(0.05)  # every one has a token
                reply = update(self.server, self.made.b, running=running, weight_version="new")
                metas = [task.result()["meta_info"] for task in tasks]
                kinds = {meta["finish_reason"]["type"] for meta in metas}
                versions = [[v["weight_version"] for v in meta["weight_versions"]] for meta in metas]
                if running == "wait":
                    self.assertEqual((kinds, versions), ({"length"}, [["old"]] * 4))
                    self.assertEqual(reply["num_aborted_requests"], 0)
                elif running == "abort":
                    self.assertEqual((kinds, versions), ({"abort"}, [["old"]] * 4))
                    self.assertEqual(reply["num_aborted_requests"], 4)
                else:
                    self.assertEqual((kinds, versions), ({"length"}, [["old", "new"]] * 4))
                    for meta in metas:
                        self.assertEqual(sum(v["tokens"] for v in meta["weight_versions"]), 1500)
                self.assertEqual(signature(self.server), self.made.of_b)

    def test_old_prefixes_are_reused_only_when_asked_for_and_the_answer_says_so(self):
        prompt = PROMPTS[4]
        self.server.json("POST", "/generate", generate_body(prompt))
        update(self.server, self.made.b, flush_cache=False, weight_version="one")
        meta = self.server.json("POST", "/generate", generate_body(prompt))["meta_info"]
        self.assertEqual(meta["cached_tokens"], 0)
        self.assertNotIn("prefix_weight_versions", meta)
        update(self.server, self.made.b, flush_cache=True, reuse_prefixes=True, status=400)
        update(self.server, self.made.a, flush_cache=False, reuse_prefixes=True, weight_version="two")
        meta = self.server.json("POST", "/generate", generate_body(prompt))["meta_info"]
        self.assertGreater(meta["cached_tokens"], 0)
        self.assertEqual(meta["prefix_weight_versions"], ["one", "two"])
        update(self.server, self.made.a)
        self.assertEqual(signature(self.server), self.of_a)

    def test_a_paused_server_takes_weights_and_no_request_is_lost(self):
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            for mode, flush in (("in_place", False), ("retract", True)):
                update(self.server, self.made.a)
                tasks = [pool.submit(self.server.json, "POST", "/generate", generate_body([5 + i], 200))
                         for i in range(32)]
                wait_until(lambda: num_running(self.server) > 0)
                paused = self.server.json("POST", "/pause_generation", {"mode": mode})
                self.assertEqual(paused["status"], "ok")
                late = pool.submit(self.server.json, "POST", "/generate", generate_body([4], 4))
                update(self.server, self.made.b, flush_cache=flush)
                self.assertEqual(self.server.json("GET", "/server_info")["weight_state"], "paused")
                self.server.json("POST", "/continue_generation", {})
                for task in tasks:
                    self.assertEqual(task.result()["meta_info"]["finish_reason"]["type"], "length")
                self.assertEqual(late.result()["meta_info"]["weight_version"],
                                 self.server.json("GET", "/get_model_info")["weight_version"])
        update(self.server, self.made.a)
        tasks = []
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            tasks = [pool.submit(self.server.json, "POST", "/generate", generate_body([5 + i], 1000))
                     for i in range(8)]
            wait_until(lambda: num_running(self.server) > 0)
            self.server.json("POST", "/pause_generation", {})
            self.server.json("POST", "/continue_generation", {})
            # What came after the pause waited for this.
            reasons = {task.result()["meta_info"]["finish_reason"]["type"] for task in tasks}
            self.assertIn("abort", reasons)
            self.assertLessEqual(reasons, {"abort", "length"})

    def test_upstreams_fields_are_accepted_and_their_types_checked(self):
        update(self.server, self.made.a, load_format=None, recapture_cuda_graph=True, is_async=False,
               keep_pause=False, torch_empty_cache=True, token_step=7, manifest=None, weight_version=None)
        update(self.server, self.made.a, load_format="safetensors", manifest={"tensors": {"x": [1]}})
        for field in ("flush_cache", "abort_all_requests", "keep_pause", "recapture_cuda_graph", "is_async",
                      "torch_empty_cache", "token_step", "weight_version", "load_format", "manifest", "running",
                      "allow_in_place", "require_manifest", "reuse_prefixes", "model_path"):
            reply = update(self.server, self.made.a, status=400, **{field: [5]}) if field != "model_path" else \
                self.server.json("POST", "/update_weights_from_disk", {"model_path": [5]}, 400)
            self.assertIn(field, reply["message"])
        reply = update(self.server, self.made.a, status=400, load_format="gguf")
        self.assertIn("Failed to get model loader", reply["message"])
        self.assertIn("maybe", update(self.server, self.made.a, status=400, running="maybe")["message"])

    def test_a_bad_checkpoint_is_refused_by_name_and_changes_nothing(self):
        made, down = self.made, "model.layers.1.mlp.down_proj"
        updates = self.server.json("GET", "/server_info")["weight_updates"]

        def config(**keys):
            def change(directory):
                text = json.loads((directory / "config.json").read_text())
                text.update(keys)
                (directory / "config.json").write_text(json.dumps(text))
            return change

        def poke(name, data):
            def change(directory):
                file = directory / "model.safetensors"
                _, begin, _ = tensors_of(file)[name]
                with open(file, "r+b") as out:
                    out.seek(begin)
                    out.write(data)
            return change

        def rename(old, new):
            def change(directory):
                file = directory / "model.safetensors"
                assert len(old) == len(new)
                file.write_bytes(file.read_bytes().replace(old.encode(), new.encode(), 1))
            return change

        cases = {
            "size": (config(hidden_size=96), "hidden_size"),
            "arch": (config(architectures=["Qwen3ForCausalLM"]), "architectures"),
            "layers": (config(num_hidden_layers=1), "num_hidden_layers"),
            "rope": (config(rope_theta=5.0), "rope_theta"),
            "nan": (poke(down + ".weight_scale", b"\x7f"), down + ".weight_scale"),
            "nan2": (poke(down + ".weight_scale_2", struct.pack("<f", float("nan"))), down + ".weight_scale_2"),
            "inf": (poke("model.norm.weight", b"\x80\x7f"), "model.norm.weight"),
            "name": (rename(down + ".weight_scale\"", down + ".weight_scalx\""), down),
            "cut": (lambda d: os.truncate(d / "model.safetensors", 50000), "model.safetensors"),
            "empty": (lambda d: os.truncate(d / "model.safetensors", 0), "model.safetensors"),
            "json": (lambda d: (d / "config.json").write_text("{"), "config.json"),
        }
        for name, (change, expected) in cases.items():
            reply = update(self.server, made.broken("bad-" + name, change), status=400)
            self.assertIn(expected, reply["message"], name)
            self.assertTrue(reply["message"].startswith("Failed to update weights: "), reply)
            self.assertTrue(reply["message"].endswith("The old weights go on serving."), reply)
        nothing = made.root / "nothing"
        nothing.mkdir()
        no_weights = made.broken("no-weights", lambda d: (d / "model.safetensors").unlink())
        for path in ("/does/not/exist", nothing, no_weights):
            reply = update(self.server, path, status=400)
            self.assertTrue(reply["message"].startswith("Failed to get weights iterator"), reply)
        info = self.server.json("GET", "/server_info")
        self.assertEqual((info["model_path"], info["weight_updates"]), (str(made.a), updates))
        self.assertEqual(signature(self.server), self.of_a)

    def test_a_manifest_is_verified_before_anything_is_read(self):
        made = self.made
        good = copy_checkpoint(made.b, made.root / "with-manifest")
        update(self.server, good, status=400, require_manifest=True)
        write_manifest.write_manifest(good, "m-1")
        reply = update(self.server, good, require_manifest=True)
        self.assertEqual(reply["files_verified"], len(write_manifest.manifest_of(good)["files"]))
        self.assertEqual(signature(self.server), made.of_b)
        # The manifest of a request counts before the directory's.
        inline = write_manifest.manifest_of(good)
        self.assertGreater(update(self.server, good, manifest=inline)["files_verified"], 0)
        inline["files"]["model.safetensors"]["sha256"] = "0" * 64
        self.assertIn("sha256", update(self.server, good, manifest=inline, status=400)["message"])
        del inline["files"]["model.safetensors"]
        self.assertIn("does not list", update(self.server, good, manifest=inline, status=400)["message"])
        # One flipped bit of a weight, which no other check could see.
        _, begin, _ = tensors_of(good / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
        with open(good / "model.safetensors", "r+b") as file:
            file.seek(begin)
            byte = file.read(1)[0]
            file.seek(begin)
            file.write(bytes([byte ^ 1]))
        self.assertIn("model.safetensors", update(self.server, good, status=400)["message"])
        os.truncate(good / "model.safetensors", 60000)
        reply = update(self.server, good, status=400)
        self.assertEqual(signature(self.server), made.of_b)
        bad = json.loads((good / "weights_manifest.json").read_text())
        bad["files"]["../model.safetensors"] = {"size": 1}
        self.assertIn("plain name", update(self.server, made.a, manifest=bad, status=400)["message"])

    def test_a_file_overwritten_after_the_load_does_not_reach_the_weights(self):
        directory = copy_checkpoint(self.made.b, self.made.root / "moving")
        update(self.server, directory)
        name = "model.layers.0.input_layernorm.weight"
        before = self.server.json("POST", "/get_weights_by_name", {"name": name, "truncate_size": 3})
        scale_tensors(directory, "input_layernorm", 4)
        self.assertEqual(signature(self.server), self.made.of_b)
        # The numbers in the file are not those that were loaded: no wrong ones are shown.
        reply = self.server.json("POST", "/get_weights_by_name", {"name": name}, 400)
        self.assertIn("changed since", reply["error"]["message"])
        os.truncate(directory / "model.safetensors", 10)
        self.assertEqual(signature(self.server), self.made.of_b)
        shutil.rmtree(directory)
        self.assertEqual(signature(self.server), self.made.of_b)
        self.assertEqual(len(before), 3)

    def test_weights_can_be_looked_at(self):
        server = self.server
        norm = "model.layers.0.input_layernorm.weight"
        values = server.json("GET", "/get_weights_by_name", {"name": norm, "truncate_size": 5})
        self.assertEqual(len(values), 5)
        self.assertEqual(server.json("GET", f"/get_weights_by_name?name={norm}")[:5], values)
        rows = server.json("POST", "/get_weights_by_name",
                           {"name": "model.layers.0.mlp.up_proj.weight", "truncate_size": 2})
        self.assertEqual((len(rows), type(rows[0][0])), (2, float))
        update(server, self.made.b)
        scaled = server.json("POST", "/get_weights_by_name", {"name": norm, "truncate_size": 5})
        for old, new in zip(values, scaled):
            self.assertAlmostEqual(new, old * 1.5, delta=abs(old) * 0.01)
        for body in ({}, {"name": 5}, {"name": "x"}, {"name": norm, "truncate_size": -1}):
            self.assertTrue(server.json("POST", "/get_weights_by_name", body, 400)["error"]["message"])

    def test_checksums_follow_the_weights(self):
        server = self.server
        sums = server.json("GET", "/weights_checker")
        self.assertTrue(sums["success"])
        self.assertNotIn("rope", "".join(sums["ranks"][0]["checksums"]))
        server.json("POST", "/weights_checker", {"action": "snapshot"})
        server.json("POST", "/weights_checker", {"action": "compare"})
        update(server, self.made.b)
        differs = server.json("POST", "/weights_checker", {"action": "compare"}, 400)
        self.assertIn("model.layers.0", differs["message"])
        self.assertNotEqual(server.json("POST", "/weights_checker", {})["per_engine_checksum"],
                            sums["per_engine_checksum"])
        update(server, self.made.a)
        self.assertEqual(server.json("POST", "/weights_checker", {"action": "compare"})["success"], True)
        self.assertEqual(server.json("POST", "/weights_checker", {})["per_engine_checksum"],
                         sums["per_engine_checksum"])
        self.assertIn("Unsupported", server.json("POST", "/weights_checker", {"action": "x"}, 400)["message"])

    def test_wrong_moves_answer_400_with_the_state_and_the_moves_that_are_allowed(self):
        server = self.server

        def refused(path, body, *words):
            reply = server.json("POST", path, body, 400)
            text = reply["message"] if "message" in reply else reply["error"]["message"]
            for word in words:
                self.assertIn(word, text)

        refused("/resume_memory_occupation", {}, "state serving", "possible now: release memory")
        refused("/resume_memory_occupation", {"tags": ["weights"]}, "state serving")
        server.json("POST", "/release_memory_occupation", {"tags": ["kv_cache"]})
        refused("/release_memory_occupation", {"tags": ["kv_cache"]}, "released (kv_cache released)", "possible now")
        refused("/resume_memory_occupation", {"tags": ["weights"]}, "not released")
        refused("/pause_generation", {}, "state released", "possible now")
        self.assertEqual(server.raw("POST", "/generate", generate_body([1]))[0], 503)
        self.assertEqual(server.last_headers.get("Retry-After"), "1")
        self.assertEqual(server.raw("POST", "/v1/completions", {"prompt": [1]})[0], 503)
        self.assertEqual(server.raw("GET", "/health")[0], 200)
        self.assertEqual(server.last_headers.get("X-Nibble-State"), "released")
        self.assertEqual(server.raw("GET", "/health_generate")[0], 503)
        self.assertEqual(server.json("GET", "/server_info")["released"], ["kv_cache"])
        for path in ("/v1/models", "/v1/loads", "/get_model_info", "/metrics", "/"):
            self.assertEqual(server.raw("GET", path)[0], 200)
        self.assertEqual(server.raw("POST", "/abort_request", {"abort_all": True})[0], 200)
        self.assertEqual(server.raw("POST", "/flush_cache")[0], 200)
        update(server, self.made.b)  # the weights are there: they can be replaced
        server.json("POST", "/release_memory_occupation", {"tags": ["weights"]})
        refused("/update_weights_from_disk", {"model_path": str(self.made.b)}, "weights released", "resume memory")
        refused("/weights_checker", {}, "released", "resume memory")
        refused("/get_weights_by_name", {"name": "model.norm.weight"}, "released")
        server.json("POST", "/resume_memory_occupation", {"tags": []})  # all that is released
        self.assertEqual(server.json("GET", "/server_info")["weight_state"], "needs-weights")
        self.assertEqual(server.raw("GET", "/health")[0], 200)
        self.assertEqual(server.last_headers.get("X-Nibble-State"), "needs-weights")
        status, text = server.raw("POST", "/generate", generate_body([1]))
        self.assertEqual(status, 503)
        self.assertIn(b"needs-weights", text)
        refused("/pause_generation", {}, "needs-weights", "update weights")
        update(server, self.made.broken("bad-while-empty", lambda d: (d / "config.json").write_text("{}")), status=400)
        self.assertEqual(server.json("GET", "/server_info")["weight_state"], "needs-weights")
        update(server, self.made.b)
        self.assertEqual(signature(server), self.made.of_b)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            task = pool.submit(server.json, "POST", "/generate", generate_body([4], 1500))
            wait_until(lambda: num_running(server) > 0)
            refused("/release_memory_occupation", {}, "while requests run", "possible now")
            self.assertEqual(server.raw("POST", "/flush_cache")[0], 400)
            server.raw("POST", "/abort_request", {"abort_all": True})
            task.result()

    def test_no_admin_call_with_a_wrong_body_ends_the_server(self):
        bodies = [b"", b"{", b"[]", b"5", b"null", b"\"x\"", b"{\"tags\":5}", b"{\"tags\":[5]}", b"{\"tags\":[\"disk\"]}",
                  b"{\"mode\":5}", b"{\"mode\":\"x\"}", b"{\"model_path\":\"\"}", b"{\"model_path\":\"\\u0000\"}",
                  b"{\"model_path\":\"/dev/null\"}", b"{\"model_path\":\"/proc\"}", b"{\"action\":7}",
                  b"{\"name\":[]}", b"{\"new_version\":1}", b"[" * 10000]
        paths = ["/update_weights_from_disk", "/update_weight_version", "/pause_generation", "/continue_generation",
                 "/flush_cache", "/release_memory_occupation", "/resume_memory_occupation", "/weights_checker",
                 "/get_weights_by_name", "/abort_request", "/update_weights_from_tensor",
                 "/update_weights_from_distributed", "/init_weights_update_group"]
        for path in paths:
            for body in bodies:
                status, text = self.server.raw("POST", path, body)
                self.assertIn(status, (200, 400, 404), (path, body[:40], text[:200]))
                state = self.server.json("GET", "/server_info")["weight_state"]
                if state in ("released", "needs-weights"):  # an empty body is a valid release of all
                    self.server.raw("POST", "/resume_memory_occupation")
                    update(self.server, self.made.a)
                self.server.json("POST", "/continue_generation", {})
        self.assertEqual(signature(self.server), self.of_a)

    def test_of_two_updates_at_once_one_waits_for_nothing_and_is_told_so(self):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            task = pool.submit(self.server.json, "POST", "/generate", generate_body([4], 1500))
            wait_until(lambda: num_running(self.server) > 0)
            first = pool.submit(update, self.server, self.made.b)
            wait_until(lambda: self.server.json("GET", "/server_info")["weight_state"] == "committing")
            second = update(self.server, self.made.a, status=400)
            self.assertIn("state committing", second["message"])
            self.assertIn("possible now", second["message"])
            refused = self.server.json("POST", "/release_memory_occupation", {}, 400)
            self.assertIn("committing", refused["error"]["message"])
            late = pool.submit(self.server.json, "POST", "/generate", generate_body(PROMPTS[1]))
            self.assertEqual(task.result()["meta_info"]["finish_reason"]["type"], "length")
            first.result()
            self.assertEqual(late.result()["output_ids"], self.made.of_b[1][0])


class InPlaceTest(ServedByA):
    """A server that may not take spare memory."""
    flags = ["--max-staging-mib", "0"]

    def setUp(self):
        update(self.server, self.made.a, allow_in_place=True)

    def test_without_spare_memory_the_refusal_has_the_numbers_and_in_place_is_a_choice(self):
        reply = update(self.server, self.made.b, status=400)
        self.assertRegex(reply["message"], r"\d+ bytes wanted, 0 allowed")
        self.assertIn("allow_in_place", reply["message"])
        self.assertEqual(signature(self.server), self.of_a)
        self.assertTrue(update(self.server, self.made.b, allow_in_place=True)["in_place"])
        self.assertEqual(signature(self.server), self.made.of_b)

    def test_a_failure_in_place_leads_to_needs_weights_and_the_reply_says_so(self):
        def spoil(directory):  # the last tensor that is read
            file = directory / "model.safetensors"
            _, begin, _ = tensors_of(file)["model.norm.weight"]
            with open(file, "r+b") as out:
                out.seek(begin)
                out.write(b"\x80\x7f")
        bad = self.made.broken("bad-in-place", spoil)
        reply = update(self.server, bad, status=400, allow_in_place=True)
        self.assertIn("needs-weights", reply["message"])
        self.assertNotIn("go on serving", reply["message"])
        self.assertEqual(self.server.raw("POST", "/generate", generate_body([1]))[0], 503)
        update(self.server, self.made.b, allow_in_place=True)
        self.assertEqual(signature(self.server), self.made.of_b)

    def test_what_is_wrong_before_anything_was_overwritten_leaves_the_old_weights(self):
        def config(directory):
            text = json.loads((directory / "config.json").read_text())
            text["rope_theta"] = 5.0
            (directory / "config.json").write_text(json.dumps(text))
        reply = update(self.server, self.made.broken("other", config), status=400, allow_in_place=True)
        self.assertIn("rope_theta", reply["message"])
        self.assertTrue(reply["message"].endswith("The old weights go on serving."))
        self.assertEqual(signature(self.server), self.of_a)


class WatchTest(unittest.TestCase):
    def test_checkpoints_that_appear_in_a_watched_directory_are_served(self):
        made = Checkpoints()
        root = made.root / "steps"
        root.mkdir()
        server = Server(PROGRAM, "--model-path", made.a, *FLAGS, "--watch", root, "--watch-seconds", "0.05")

        def version():
            return server.json("GET", "/get_model_info")["weight_version"]

        of_a = signature(server)
        step1 = copy_checkpoint(made.b, root / "step-1")
        time.sleep(0.3)
        self.assertEqual(version(), "default")  # no manifest: not complete
        write_manifest.write_manifest(step1)
        wait_until(lambda: version() == "step-1")
        self.assertEqual(signature(server), made.of_b)

        step2 = copy_checkpoint(made.a, root / "step-2")
        wrong = write_manifest.manifest_of(step2, "wrong")
        wrong["files"]["model.safetensors"]["sha256"] = "0" * 64
        (step2 / "written").write_text(json.dumps(wrong))
        (step2 / "written").rename(step2 / write_manifest.NAME)
        wait_until(lambda: "checkpoint refused" in server.read_log())
        self.assertEqual(signature(server), made.of_b)
        write_manifest.write_manifest(step2, "right")
        wait_until(lambda: version() == "right")
        self.assertEqual(signature(server), of_a)

        server.json("POST", "/release_memory_occupation", {})
        write_manifest.write_manifest(step1, "after-release")
        wait_until(lambda: "checkpoint waits" in server.read_log())
        server.json("POST", "/resume_memory_occupation", {})
        wait_until(lambda: version() == "after-release")
        self.assertEqual(signature(server), made.of_b)
        self.assertEqual(server.stop(), 0, server.read_log())
        made.folder.cleanup()

    def test_a_directory_that_is_not_there_is_refused_at_start(self):
        with self.assertRaises(RuntimeError) as refused:
            Server(PROGRAM, "--model-path", TINY, *FLAGS, "--watch", "/does/not/exist")
        self.assertIn("--watch", str(refused.exception))


class KillTest(unittest.TestCase):
    def test_a_server_killed_while_it_reads_new_weights_leaves_the_files_as_they_were(self):
        made = Checkpoints()
        before = {file: file.read_bytes() for file in made.b.iterdir()}
        for number in range(6):
            server = Server(PROGRAM, "--model-path", made.a, *FLAGS)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                task = pool.submit(server.raw, "POST", "/update_weights_from_disk", {"model_path": str(made.b)})
                time.sleep(0.001 * number)
                server.process.send_signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
                code = server.process.wait(60)
                task.result()
            self.assertEqual(code, 0 if number % 2 else -signal.SIGKILL, server.read_log())
        self.assertEqual({file: file.read_bytes() for file in made.b.iterdir()}, before)
        server = Server(PROGRAM, "--model-path", made.b, *FLAGS)
        self.assertEqual(signature(server), made.of_b)
        self.assertEqual(server.stop(), 0)
        made.folder.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", default="cpu")
    options, rest = parser.parse_known_args()
    serving.DEVICE = options.device
    PROGRAM = str(Path(options.program).resolve())
    del ServedByA  # a base, not a test
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
