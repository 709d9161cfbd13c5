#!/usr/bin/env python3
"""Asks a running server one question and prints the answer as it arrives, then its speed.

Usage: ask.py [--url http://127.0.0.1:30000] [--max-tokens 64] [--temperature 0] QUESTION
Needs nothing but Python's standard library.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request


def stream_events(response):
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[len(b"data: "):].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


def ask(url, question, max_tokens, temperature):
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    start, first, last, usage = time.monotonic(), None, None, None
    with urllib.request.urlopen(request, timeout=600) as response:
        for event in stream_events(response):
            if "error" in event:
                raise RuntimeError(event["error"])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                text = choice.get("delta", {}).get("content")
                if text:
                    last = time.monotonic()
                    first = first or last
                    print(text, end="", flush=True)
    print()
    if first is None or usage is None:
        raise RuntimeError("the server sent no text or no usage")
    prompt, tokens = usage["prompt_tokens"], usage["completion_tokens"]
    speed = f"{(tokens - 1) / (last - first):.0f} tokens/s" if last > first else "one piece"
    print(f"[{tokens} tokens at {speed}; first one {1000 * (first - start):.0f} ms after a prompt of "
          f"{prompt} tokens]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("question")
    options = parser.parse_args()
    try:
        ask(options.url, options.question, options.max_tokens, options.temperature)
    except (urllib.error.URLError, RuntimeError) as problem:
        detail = problem.read().decode() if isinstance(problem, urllib.error.HTTPError) else ""
        print(f"ask.py: {problem} {detail}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
