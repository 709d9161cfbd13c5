#!/usr/bin/env python3
"""Weight updates of a running server under a constant load of streams, as its clients see them.

Serves a model, keeps STREAMS requests streaming, and replaces the weights UPDATES times, to and fro between the
model and a copy with really different weights. Checks that no request is lost and that every answer is
of the weights it names; reports the gaps between tokens, the times of staging and commit, and memory.
Usage: reload_bench.py --program build/release/nibble --model DIR [--updates 200] [--streams 16]
                       [--running wait|swap] [--tokens 64]
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from serving import Server, copy_checkpoint, scale_tensors  # noqa: E402


def prompt_of(stream):
    return [3 + (stream * 31 + k * 7) % 400 for k in range(16 + stream)]


def body_of(stream, tokens):
    return json.dumps({"input_ids": prompt_of(stream), "stream": True, "sampling_params": {
        "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}})


class Stream(threading.Thread):
    def __init__(self, port, number, tokens, stop):
        super().__init__(daemon=True)
        self.port, self.number, self.tokens, self.stop = port, number, tokens, stop
        self.gaps, self.answers, self.lost = [], [], []

    def one(self, connection):
        connection.request("POST", "/generate", body_of(self.number, self.tokens), {"Content-Type": "application/json"})
        response = connection.getresponse()
        last, event = None, None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if last is not None:
                self.gaps.append(now - last)
            last = now
            event = line
        answer = json.loads(event[6:])
        meta = answer["meta_info"]
        if meta["finish_reason"]["type"] != "length" or len(answer["output_ids"]) != self.tokens:
            self.lost.append(meta["finish_reason"])
        self.answers.append((tuple(answer["output_ids"]),
                             tuple((v["weight_version"], v["tokens"]) for v in meta["weight_versions"])))

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while not self.stop.is_set():
            try:
                self.one(connection)
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)


def memory_of(process):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return {key: int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM")}


def quantiles(values, scale=1e3):
    ordered = sorted(values)
    pick = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))] * scale  # noqa: E731
    return f"median {pick(0.5):.1f}, 99 % {pick(0.99):.1f}, longest {ordered[-1] * scale:.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--running", default="wait", choices=["wait", "swap"])
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"a": copy_checkpoint(options.model, Path(folder) / "a"),
                 "b": copy_checkpoint(options.model, Path(folder) / "b")}
        scale_tensors(paths["b"], "input_layernorm", 1.25)
        server = Server(options.program, "--model-path", paths["a"], "--skip-tokenizer-init", "--max-total-tokens",
                        16384, "--weight-version", "a")

        def update(name, running=options.running, version=None):
            return server.json("POST", "/update_weights_from_disk", {
                "model_path": str(paths[name]), "running": running, "weight_version": version or name,
                "flush_cache": False})

        expected = {}
        for name in ("b", "a"):
            update(name)
            for number in range(options.streams):
                body = json.loads(body_of(number, options.tokens))
                del body["stream"]
                expected[name, number] = tuple(server.json("POST", "/generate", body)["output_ids"])
        different = sum(expected["a", n] != expected["b", n] for n in range(options.streams))
        assert different == options.streams, "the two checkpoints must differ"

        stop = threading.Event()
        streams = [Stream(server.port, number, options.tokens, stop) for number in range(options.streams)]
        for stream in streams:
            stream.start()
        time.sleep(2)
        quiet = [gap for stream in streams for gap in list(stream.gaps)]
        marks = [len(stream.gaps) for stream in streams]
        reports, early, begin = [], None, time.monotonic()
        for number in range(options.updates):
            reports.append(update("ba"[number % 2]))
            if number == min(20, options.updates // 4):
                early = memory_of(server.process)["VmRSS"]
        seconds = time.monotonic() - begin
        late = memory_of(server.process)
        gaps = [gap for stream, mark in zip(streams, marks) for gap in stream.gaps[mark:]]
        stop.set()
        for stream in streams:
            stream.join(180)
        bad, answers, lost = 0, 0, []
        for stream in streams:
            lost += stream.lost
            answers += len(stream.answers)
            for tokens, versions in stream.answers:
                names = [name for name, _ in versions]
                count = versions[0][1]  # what the first weights made must be theirs, and all of it when they were alone
                bad += tokens[:count] != expected[names[0], stream.number][:count]
                bad += len(names) == 1 and tokens != expected[names[0], stream.number]
        code = server.stop()
        print(f"{options.updates} updates in {seconds:.0f} s, {options.streams} streams, running={options.running}, "
              f"{reports[0]['bytes'] / 1e6:.0f} MB of weights")
        print(f"answers {answers}, lost {len(lost)} {lost[:3]}, of other weights than they name {bad}, exit code {code}")
        print("gap between tokens without updates:", quantiles(quiet))
        print("gap between tokens with updates:   ", quantiles(gaps))
        for key in ("staging", "wait", "commit"):
            print(f"{key}:", quantiles([report[f"{key}_seconds"] for report in reports]))
        print(f"resident: {early / 1e6:.0f} MB early, {late['VmRSS'] / 1e6:.0f} MB late, peak {late['VmHWM'] / 1e6:.0f} MB")
        return 1 if lost or bad or code else 0


if __name__ == "__main__":
    sys.exit(main())
