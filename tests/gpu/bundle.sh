#!/usr/bin/env bash
# Collects the GPU tests and the nibble program of a build with the libraries they need (all but
# glibc) into a folder that can be carried to a machine with a GPU; tests/gpu/run.sh runs it there.
# Usage: tests/gpu/bundle.sh BUILD_DIR OUT_DIR
set -euo pipefail
build=${1:?usage: bundle.sh BUILD_DIR OUT_DIR}
out=${2:?usage: bundle.sh BUILD_DIR OUT_DIR}
mkdir -p "$out/lib"
cp "$(dirname "$0")/run.sh" "$out/"
for program in nibble bench/w4a16_bench tests/gpu/w4a16_check tests/gpu/kernels_check \
  tests/gpu/bench_gemm_check tests/matrix/nibble_matrix_test; do
  if [ ! -x "$build/$program" ]; then
    echo "not built: $program"
    continue
  fi
  strip -o "$out/$(basename "$program")" "$build/$program"
  ldd "$build/$program" | awk '$2 == "=>" && $3 ~ /^\// &&
    $3 !~ /\/(libc|libm|libdl|librt|libpthread|libresolv)\.so/ {print $3}' |
    xargs -r -I{} cp -nL {} "$out/lib/"
done
du -sh "$out"
