#!/usr/bin/env python3
"""Does a checkpoint still know what its BF16 original knows? Scores 200 questions through the server, and
perplexity and KL through `nibble eval`, and compares them with tests/accuracy/thresholds.json.

Usage: gate.py --program build/ci/nibble --original BF16_DIR [--json OUT] [--record] [--only NAME]

120 questions have four answers, of which the likeliest continuation counts (as multiple-choice benchmarks score); 80
are sums, answered greedily after four examples. The quantized checkpoints are made here, by the recipes that the
thresholds name. --record prints the figures and judges nothing. Exit code 0: every figure holds.
"""
import argparse
import concurrent.futures
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import serving  # noqa: E402

EXAMPLES = "2 + 2 = 4\n5 - 3 = 2\n1 * 6 = 6\n10 + 15 = 25\n"
WINDOW, WINDOWS = 448, 2


def choose(server, task):
    """The option whose continuation of the prompt is likeliest; the prompt's own part is the same in all."""
    answers = server.json("POST", "/generate", {
        "text": [f"{task['prompt']} {option}" for option in task["options"]],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0})
    sums = [sum(entry[0] or 0.0 for entry in answer["meta_info"]["input_token_logprobs"]) for answer in answers]
    return sums.index(max(sums)) == task["answer"]


def calculate(server, task):
    answer = server.json("POST", "/generate", {
        "text": EXAMPLES + task["prompt"],
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "stop": "\n"}})
    number = re.match(r"\s*(-?\d+)", answer["text"])
    return number is not None and number.group(1) == task["answer"]


def score_tasks(program, directory, mode, tasks):
    server = serving.Server(program, "--model-path", directory, "--nvfp4-mode", mode, "--log-level", "warn")
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            right = list(pool.map(
                lambda task: (choose if task["kind"] == "choice" else calculate)(server, task), tasks))
    finally:
        server.stop()
    return {kind: sum(hit for hit, task in zip(right, tasks) if task["kind"] == kind) for kind in ("choice", "arithmetic")}


def score_text(program, directory, mode, original, scratch):
    out = scratch / "eval.json"
    subprocess.run([program, "eval", "kl", "--model-path", directory, "--reference", original, "--nvfp4-mode", mode,
                    "--text", HERE / "prose.txt", "--window", str(WINDOW), "--windows", str(WINDOWS), "--json", out],
                   check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def mean_of(document, key):
    values = [window[key] for window in document["windows"]]
    return sum(values) / len(values)


def judge(name, found, limits):
    failures = []
    for key, limit in limits.items():
        at_least = key in ("choice", "arithmetic")
        if not (found[key] >= limit if at_least else found[key] <= limit):  # NaN holds nothing
            failures.append(f"{name}: {key} is {found[key]:.4g}, expected {'at least' if at_least else 'at most'} {limit}")
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--original", required=True, help="the BF16 checkpoint")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--record", action="store_true", help="print figures, judge nothing")
    parser.add_argument("--only", help="one row of the thresholds")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    serving.DEVICE = arguments.device
    rows = json.loads((HERE / "thresholds.json").read_text())
    tasks = [json.loads(line) for line in (HERE / "tasks.jsonl").read_text().splitlines()]
    figures, failures, made = {}, [], {}
    print(f"{'checkpoint':<24} {'choice':>7} {'sums':>5} {'ppl':>8} {'kl':>8}")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, row in rows.items():
            if arguments.only not in (None, name):
                continue
            directory = arguments.original
            if row["recipe"]:
                if row["recipe"] not in made:
                    made[row["recipe"]] = str(scratch / row["recipe"])
                    subprocess.run([arguments.program, "quantize", arguments.original, made[row["recipe"]],
                                    "--recipe", row["recipe"]], check=True, stdout=subprocess.DEVNULL)
                directory = made[row["recipe"]]
            found = score_tasks(arguments.program, directory, row["mode"], tasks)
            text = score_text(arguments.program, directory, row["mode"], arguments.original, scratch)
            found["ppl"], found["kl"] = mean_of(text, "ppl"), mean_of(text, "kl")
            figures[name] = found
            print(f"{name:<24} {found['choice']:>4}/120 {found['arithmetic']:>2}/80 {found['ppl']:>8.3f} {found['kl']:>8.4f}",
                  flush=True)
            if not arguments.record:
                failures += judge(name, found, row["limits"])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
