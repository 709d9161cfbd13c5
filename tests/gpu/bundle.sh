#!/usr/bin/env bash
# Collects the GPU tests and the nibble program of a build with the libraries they need (all but
# glibc) into a folder that can be carried to a machine with a GPU; tests/gpu/run.sh runs it there.
# Usage: tests/gpu/bundle.sh BUILD_DIR OUT_DIR
set -euo pipefail
build=${1:?usage: bundle.sh BUILD_DIR OUT_DIR}
out=${2:?usage: bundle.sh BUILD_DIR OUT_DIR}
mkdir -p "$out/lib"
cp "$(dirname "$0")/run.sh" "$(dirname "$0")/sanitize.sh" "$out/"
for program in nibble bench/w4a16_bench tests/gpu/w4a16_check tests/gpu/kernels_check tests/gpu/attention_check tests/gpu/decode_step_check tests/gpu/overlap_check bench/step_bench \
  tests/gpu/w4a16_check_barriers tests/gpu/kernels_check_barriers \
  tests/gpu/bench_gemm_check tests/matrix/nibble_matrix_test tests/golden/nibble_golden_test tests/backends/nibble_backends_test \
  tests/engine/nibble_engine_test tests/model/nibble_model_test tests/tensor/nibble_tensor_test; do
  if [ ! -x "$build/$program" ]; then
    echo "not built: $program"
    continue
  fi
  strip -o "$out/$(basename "$program")" "$build/$program"
  ldd "$build/$program" | awk '$2 == "=>" && $3 ~ /^\// &&
    $3 !~ /\/(libc|libm|libdl|librt|libpthread|libresolv)\.so/ {print $3}' |
    xargs -r -I{} cp -nL {} "$out/lib/"
done
# What the golden tests read: the sets of the repository and, where the full collection is there
# ($NIBBLE_GOLDEN, a folder like tests/data/golden), the rest of what is served.
data=$(dirname "$0")/../data
mkdir -p "$out/test_data/golden/vendor"
for set in llama smollm2 qwen2 qwen3 llama-nvfp4 qwen2-nvfp4 qwen3-nvfp4 llama-nvfp4-awq qwen3_moe \
  vendor/llama-modelopt-nvfp4 vendor/llama-modelopt-w4a16 vendor/llama-modelopt-nvfp4-awq \
  vendor/llama-modelopt-mlp-weight-only vendor/llama-ct-nvfp4a16 vendor/llama-ct-nvfp4 \
  vendor/qwen3-modelopt-nvfp4; do
  for from in "${NIBBLE_GOLDEN:-}" "$data/golden"; do
    if [ -d "$from/$set" ] && [ ! -d "$out/test_data/golden/$set" ]; then
      cp -r "$from/$set" "$out/test_data/golden/$set"
    fi
  done
done
cp -r "$data/w4a4_bf16" "$data/w4a16_bf16" "$out/test_data/"
du -sh "$out"
