#!/usr/bin/env bash
# From a fresh clone on Debian 12 to an answer: installs packages, builds the program, makes the demo
# checkpoint, starts the server, asks one question over HTTP, prints the answer with tokens/s.
# Usage: tools/quickstart.sh [QUESTION]
set -euo pipefail
cd "$(dirname "$0")/.."
question=${1:-What is the capital of France?}

say() { printf '\n== %s (%d s)\n' "$*" $SECONDS; }

say "packages"
tools/setup.sh build

say "program: build/release/nibble"
cmake --preset release >build-release.log 2>&1 && cmake --build --preset release >>build-release.log 2>&1 || {
  tail -n 40 build-release.log
  exit 1
}
mv build-release.log build/release/build.log

say "demo checkpoint: SmolLM2-135M-Instruct, rewritten in BF16, then NVFP4"
tools/make_demo.sh
model=demo/SmolLM2-135M-Instruct-NVFP4

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
say "server: build/release/nibble serve --model-path $model --port $port"
build/release/nibble serve --model-path "$model" --port "$port" >build/release/serve.log 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 1500); do
  kill -0 $server 2>/dev/null || { cat build/release/serve.log; echo "the server ended"; exit 1; }
  curl -sf "$url/health" >/dev/null && break
  sleep 0.2
done

say "question: $question"
python3 tools/ask.py --url "$url" "$question"

cat <<END

That was build/release/nibble. Go on with:
  build/release/nibble serve --model-path $model          # then, in another terminal:
  tools/ask.py "Write a haiku about the sea."             # or any OpenAI client at http://127.0.0.1:30000/v1
  build/release/nibble generate --model-path $model "Once upon a time"
  build/release/nibble inspect $model
  tools/test.sh                                           # the tests
END
