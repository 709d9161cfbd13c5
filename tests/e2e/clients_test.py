#!/usr/bin/env python3
"""Drives a real server with the stock `openai` client: chat and completions, streamed and not.

Starts `nibble serve` on a tiny checkpoint with a tokenizer whose tokens are bytes (written here), or
on --model with its own tokenizer. Run by ctest through run_clients.sh, which provides the client.

Usage: clients_test.py --program build/dev/nibble [--model DIR] [--device cuda]
"""

import argparse
import concurrent.futures
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import openai
import pydantic
from openai.types import Completion, Model as ModelCard
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import serving
from serving import TINY, copy_checkpoint, with_long_vocabulary

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def write_byte_tokenizer(folder, vocab_size):
    """Tokens 0..255 are the bytes, the rest are two-byte tokens "aa", "ab", ... without merges."""
    vocab = {text: byte for byte, text in byte_alphabet().items()}
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = (a + b for a in letters for b in letters)
    while len(vocab) < vocab_size:
        vocab[next(pairs)] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


class Server(serving.Server):
    def client(self):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)


MESSAGES = [{"role": "user", "content": "Name a colour."}]

# Each is refused with 4xx; afterwards the server answers as before.
BAD_COMPLETIONS = [
    {}, [], "text", 7, None, {"prompt": None}, {"prompt": 5}, {"prompt": {}}, {"prompt": []}, {"prompt": [[]]},
    {"prompt": [["a"]]}, {"prompt": [1, "a"]}, {"prompt": ["a", 1]}, {"prompt": [10**9]}, {"prompt": [-1]},
    {"prompt": [1.5]}, {"prompt": [10**30]}, {"prompt": ""}, {"prompt": "a" * 200000},
    {"prompt": "a", "max_tokens": 0}, {"prompt": "a", "max_tokens": -1}, {"prompt": "a", "max_tokens": "5"},
    {"prompt": "a", "max_tokens": 10**9}, {"prompt": "a", "max_tokens": 10**30}, {"prompt": "a", "max_tokens": 1.5},
    {"prompt": "a", "temperature": -1}, {"prompt": "a", "temperature": "hot"}, {"prompt": "a", "temperature": []},
    {"prompt": "a", "temperature": 1e300}, {"prompt": "a", "top_p": 0}, {"prompt": "a", "top_p": 2},
    {"prompt": "a", "top_k": 0}, {"prompt": "a", "top_k": -5}, {"prompt": "a", "top_k": 10**12},
    {"prompt": "a", "min_p": 3}, {"prompt": "a", "n": 0}, {"prompt": "a", "n": 100000}, {"prompt": "a", "n": "2"},
    {"prompt": "a", "stop": 5}, {"prompt": "a", "stop": [5]}, {"prompt": "a", "stop": ["x"] * 1000},
    {"prompt": "a", "stop": "x" * 5000}, {"prompt": "a", "logit_bias": {"x": 1}},
    {"prompt": "a", "logit_bias": {"99999999": 1}}, {"prompt": "a", "logit_bias": {"1": "x"}},
    {"prompt": "a", "logit_bias": []}, {"prompt": "a", "frequency_penalty": 9},
    {"prompt": "a", "presence_penalty": -9}, {"prompt": "a", "repetition_penalty": 0},
    {"prompt": "a", "logprobs": -1}, {"prompt": "a", "logprobs": 10**7}, {"prompt": "a", "logprobs": "1"},
    {"prompt": "a", "echo": 1}, {"prompt": "a", "stream": "yes"}, {"prompt": "a", "stream_options": 5},
    {"prompt": "a", "seed": "x"}, {"prompt": "a", "seed": 1.5}, {"prompt": "a", "ignore_eos": "true"},
    {"prompt": "a", "stop_token_ids": [10**9]}, {"prompt": "a", "regex": "a+"}, {"prompt": "a", "model": 5},
    {"prompt": "a", "response_format": {"type": "json_object"}}, {"prompt": "a", "lora_path": "x"},
]
BAD_CHATS = [
    {"messages": []}, {"messages": "hi"}, {"messages": [5]}, {"messages": [{"role": "user"}]},
    {"messages": [{"role": "robot", "content": "x"}]}, {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": MESSAGES, "tool_choice": "required"}, {"messages": MESSAGES, "tools": [5]},
    {"messages": MESSAGES, "max_completion_tokens": 0}, {"messages": MESSAGES, "top_logprobs": 5},
]
BAD_BODIES = [
    b"", b"{", b"{\"prompt\":", b"{\"prompt\": \"a\"} trailing", b"\xff\xfe", b"{\"prompt\": \"\xff\"}",
    b"[" * 20000, b"{\"prompt\": " + b"[" * 20000 + b"]" * 20000 + b"}", b"{'prompt': 'a'}", b"nul", b"\x00",
    b"{\"prompt\": \"\\ud800\"}",
]


class ClientsTest(unittest.TestCase):
    program = model = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        if cls.model is None:
            vocab_size = json.loads((TINY / "config.json").read_text())["vocab_size"]
            write_byte_tokenizer(Path(cls.folder.name), vocab_size)
            flags = ["--model-path", TINY, "--tokenizer-path", cls.folder.name, "--max-total-tokens", 32768]
        else:
            flags = ["--model-path", cls.model, "--max-total-tokens", 16384]
        cls.server = Server(cls.program, *flags, "--served-model-name", "tiny")
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"exit code {code}:\n{cls.server.read_log()}"
        cls.folder.cleanup()

    def test_models_are_listed(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat_streams_the_text_of_the_whole_answer(self):
        for sampling in ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 11}):
            arguments = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, **sampling}
            whole = self.client.chat.completions.create(**arguments)
            self.assertEqual(whole.choices[0].message.role, "assistant")
            self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
            text, role, finish, usage = "", None, None, None
            for chunk in self.client.chat.completions.create(
                    **arguments, stream=True, stream_options={"include_usage": True}):
                if chunk.usage:
                    usage = chunk.usage
                for choice in chunk.choices:
                    role = role or choice.delta.role
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(role, "assistant")
            self.assertEqual(finish, whole.choices[0].finish_reason)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_chat_logprobs_belong_to_the_text(self):
        answer = self.client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for item in content:
            self.assertEqual(len(item.top_logprobs), 3)
            self.assertEqual(item.top_logprobs[0].logprob, item.logprob)  # greedy took the likeliest
            self.assertLessEqual(item.logprob, 0)

    def test_completions_stream_the_text_of_the_whole_answer(self):
        arguments = {"model": "tiny", "prompt": ["The sky", "Water is"], "max_tokens": 20, "n": 2, "seed": 5,
                     "temperature": 0.7}
        whole = self.client.completions.create(**arguments)
        self.assertEqual([c.index for c in whole.choices], [0, 1, 2, 3])
        texts = [""] * 4
        for chunk in self.client.completions.create(**arguments, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [c.text for c in whole.choices])

    def test_echo_with_logprobs_scores_the_prompt(self):
        ids = list(range(40, 60))
        answer = self.client.completions.create(
            model="tiny", prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.token_logprobs), len(ids) + 1)
        self.assertIsNone(logprobs.token_logprobs[0])
        for value, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:]):
            self.assertLessEqual(value, max(top.values()))

    def test_answers_have_the_forms_of_openais_types(self):
        body = {"messages": MESSAGES, "max_tokens": 6, "logprobs": True, "top_logprobs": 2, "n": 2}
        chat = self.server.json("POST", "/v1/chat/completions", body)
        ChatCompletion.model_validate(chat)
        with self.assertRaises(pydantic.ValidationError):  # the check does check
            ChatCompletion.model_validate({**chat, "metadata": {"seed": 1}})
        text = {"prompt": ["a", "b"], "max_tokens": 6, "logprobs": 2, "n": 2}
        Completion.model_validate(self.server.json("POST", "/v1/completions", text))
        # Of an echoed prompt the first token has no logprob: null, as evaluation harnesses expect it.
        echoed = self.server.json("POST", "/v1/completions", {**text, "echo": True})
        for choice in echoed["choices"]:
            self.assertIsNone(choice["logprobs"]["token_logprobs"].pop(0))
            self.assertIsNone(choice["logprobs"]["top_logprobs"].pop(0))
        Completion.model_validate(echoed)
        usage = {"include_usage": True, "continuous_usage_stats": True}
        for path, request, form in (("/v1/chat/completions", body, ChatCompletionChunk),
                                    ("/v1/completions", text, Completion)):
            _, stream = self.server.raw("POST", path, {**request, "stream": True, "stream_options": usage})
            events = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: ")]
            self.assertEqual(events.pop(), "[DONE]")
            chunks = [json.loads(event) for event in events]
            self.assertTrue(all(chunk["usage"] for chunk in chunks))
            self.assertEqual(chunks[-1]["choices"], [])
            for chunk in chunks:
                if form is Completion:  # the type is the whole answer's: a reason in every choice
                    for choice in chunk["choices"]:
                        choice["finish_reason"] = choice["finish_reason"] or "stop"
                form.model_validate(chunk)
        ModelCard.model_validate(self.server.json("GET", "/v1/models")["data"][0])

    def test_a_seed_that_comes_back_gives_the_same_answer(self):
        body = {"prompt": "Once", "max_tokens": 12, "temperature": 1.0, "ignore_eos": True}
        first, second = (self.server.json("POST", "/v1/completions", body) for _ in range(2))
        self.assertNotEqual(first["metadata"]["seed"], second["metadata"]["seed"])
        again = self.server.json("POST", "/v1/completions", {**body, "seed": int(first["metadata"]["seed"])})
        self.assertEqual(again["choices"], first["choices"])

    def test_logit_bias_and_penalties_steer(self):
        ids = list(range(40, 60))
        for bias, expected in ((100, True), (-100, False)):
            answer = self.server.json("POST", "/generate", {"input_ids": ids, "sampling_params": {
                "max_new_tokens": 8, "temperature": 0, "ignore_eos": True, "logit_bias": {"77": bias}}})
            self.assertEqual(77 in answer["output_ids"], expected)
        plain = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
        repeated = self.server.json("POST", "/generate", {"input_ids": ids, "sampling_params": plain})
        varied = self.server.json("POST", "/generate", {"input_ids": ids, "sampling_params": {
            **plain, "presence_penalty": 2, "frequency_penalty": 2}})
        self.assertGreaterEqual(len(set(varied["output_ids"])), len(set(repeated["output_ids"])))

    def test_stop_strings_are_never_sent(self):
        whole = self.client.completions.create(
            model="tiny", prompt="Once upon a time", max_tokens=40, temperature=0).choices[0].text
        stop = whole[10:13]
        self.assertTrue(stop.strip(), whole)
        arguments = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0,
                     "stop": [stop, "\x01never"]}
        cut = self.client.completions.create(**arguments).choices[0]
        self.assertEqual(cut.text, whole[:whole.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")
        streamed = "".join(chunk.choices[0].text
                           for chunk in self.client.completions.create(**arguments, stream=True))
        self.assertEqual(streamed, cut.text)

    def generate(self, i):
        body = {"input_ids": [3 + (i * 7 + k) % 250 for k in range(1 + i % 40)], "return_logprob": True,
                "logprob_start_len": 0,
                "sampling_params": {"max_new_tokens": 12 + i % 9, "ignore_eos": True, "sampling_seed": i,
                                    "temperature": 0 if i % 2 else 0.9}}
        answer = self.server.json("POST", "/generate", body)
        meta = answer["meta_info"]
        return (answer["output_ids"], answer["text"], meta["input_token_logprobs"],
                meta["output_token_logprobs"])

    def test_32_at_a_time_give_the_bits_of_one_at_a_time(self):
        alone = [self.generate(i) for i in range(32)]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            together = list(pool.map(self.generate, range(32)))
        self.assertEqual(together, alone)

    def test_bad_requests_are_refused_and_change_nothing(self):
        before = self.generate(5)
        for path, bodies in (("/v1/completions", BAD_COMPLETIONS), ("/v1/chat/completions", BAD_CHATS)):
            for body in bodies:
                status, text = self.server.raw("POST", path, json.dumps(body))
                self.assertEqual(status, 400, (str(body)[:200], text[:200]))
                self.assertTrue(json.loads(text)["message"], body)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"):
            for body in BAD_BODIES:
                status, text = self.server.raw("POST", path, body)
                self.assertEqual(status, 400, (path, body[:60], text[:200]))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.completions.create(model="tiny", prompt="a", max_tokens=10, top_p=7)
        self.assertIn("top_p", str(refused.exception))
        self.assertEqual(self.generate(5), before)

    def test_a_client_that_goes_away_frees_its_place(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = {"input_ids": [5] * 20, "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
        connection.request("POST", "/generate", json.dumps(body))
        response = connection.getresponse()
        response.read1(100)
        connection.sock.close() if connection.sock else None
        response.close()
        connection.close()
        deadline = time.monotonic() + 20
        while self.server.json("GET", "/v1/loads?include=core")["loads"][0]["num_running_reqs"]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_information_is_there(self):
        self.assertEqual(self.server.json("GET", "/get_model_info")["weight_version"], "default")
        info = self.server.json("GET", "/server_info")
        self.assertEqual(info["served_model_name"], "tiny")
        self.assertGreater(info["max_total_num_tokens"], 0)
        status, text = self.server.raw("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertIn(b"sglang:generation_tokens_total", text)
        tokens = self.server.json("POST", "/tokenize", {"prompt": "hello"})["tokens"]
        self.assertEqual(self.server.json("POST", "/detokenize", {"tokens": tokens})["text"], "hello")


class IdsOnlyTest(unittest.TestCase):
    program = None

    def test_serves_ids_and_drains_on_sigterm(self):
        server = Server(self.program, "--model-path", TINY, "--skip-tokenizer-init", "--max-total-tokens", 8192)
        answer = server.json("POST", "/generate", {"input_ids": [5, 6, 7], "sampling_params": {
            "max_new_tokens": 5, "temperature": 0, "ignore_eos": True}})
        self.assertEqual(answer["text"], "")
        self.assertEqual(len(answer["output_ids"]), 5)
        self.assertEqual(server.raw("POST", "/generate", {"text": "x"})[0], 400)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.json, "POST", "/generate", {"input_ids": [5], "sampling_params": {
                "max_new_tokens": 300, "ignore_eos": True}})
            while not running.done() and not server.json("GET", "/v1/loads")["loads"][0]["num_running_reqs"]:
                time.sleep(0.005)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(running.result()["meta_info"]["completion_tokens"], 300)
        # No second signal: that one would end the process at once, by design.
        self.assertEqual(server.process.wait(60), 0, server.read_log())

    def test_sigterm_during_the_load_does_not_wait_for_it(self):
        with tempfile.TemporaryDirectory() as scratch:
            model = copy_checkpoint(TINY, Path(scratch) / "model")
            with_long_vocabulary(model, 1 << 21)  # half a gigabyte of zeros to read, none on the disk
            log = Path(scratch) / "log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [self.program, "serve", "--port", "0", "--device", serving.DEVICE, "--skip-tokenizer-init",
                     "--max-total-tokens", "8192", "--model-path", str(model)], stdout=output, stderr=subprocess.STDOUT)
            while "starting" not in log.read_text() and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(60), 0, log.read_text())
            self.assertIn("before the model was loaded", log.read_text())
            self.assertNotIn("fired up", log.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model")
    options, rest = parser.parse_known_args()
    serving.DEVICE = options.device
    ClientsTest.program = IdsOnlyTest.program = str(Path(options.program).resolve())
    ClientsTest.model = options.model
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
