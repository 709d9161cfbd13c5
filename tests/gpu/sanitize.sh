#!/usr/bin/env bash
# Runs compute-sanitizer's memcheck and racecheck over the kernels on small shapes and prints a table; exit code 0: clean.
# Usage: sanitize.sh [FOLDER]   a folder of tests/gpu/bundle.sh, or (default) the one this script is in
#   GPU_TEST_LIBRARIES, GPU_TEST_LOGS   as for run.sh
#   SANITIZE_SECONDS            limit of a step (default 300)
set -uo pipefail
folder=$(cd "${1:-$(dirname "$0")}" && pwd)
logs=${GPU_TEST_LOGS:-$folder/logs}
mkdir -p "$logs"
export LD_LIBRARY_PATH="$folder/lib:${GPU_TEST_LIBRARIES:-/usr/local/cuda/lib64}:${LD_LIBRARY_PATH:-}"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
results=()
failed=0
options=()

# step TOOL NAME PROGRAM ARGUMENTS...
step() {
  local tool=$1 name=$2 program=$3 begin=$SECONDS code=0 result=clean
  shift 3
  timeout "${SANITIZE_SECONDS:-300}" "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 99 --print-limit 20 \
    "$folder/$program" "$@" >"$logs/$tool.$name.log" 2>&1 || code=$?
  if [ $code != 0 ]; then
    result="FAILED ($code)"
    failed=1
    tail -n 25 "$logs/$tool.$name.log"
  fi
  results+=("$(printf '%-10s %-22s %-12s %4d s  %s' "$tool" "$name" "$result" $((SECONDS - begin)) \
    "$(grep -a "SUMMARY" "$logs/$tool.$name.log" | tail -n 1 | cut -c -70)")")
}

matrix() { # TOOL BACKEND
  step "$1" "$2" nibble_matrix_test --gtest_brief=1 "--gtest_filter=*Exact*/$2"
}

for tool in memcheck racecheck; do
  # racecheck does not follow a barrier through __syncwarp(): kernels in which every lane arrives for itself.
  barriers=$([ $tool = racecheck ] && echo _barriers)
  step $tool w4a16_sm90 "w4a16_check$barriers" --shapes tiny
  step $tool w4a16_sm80 "w4a16_check$barriers" --kernel sm80 --shapes tiny  # compares with sm90
  step $tool fused_and_quantizers "kernels_check$barriers" --small
  # racecheck does not follow an order that goes through several barriers (the warps of decode attention hand their
  # results on one after another: warnings), nor one lane that arrives for its warp (prefill attention: left out).
  [ $tool = racecheck ] && options=(--print-level error --kernel-regex kns=attention_decode)
  step $tool attention attention_check --small
  [ $tool = racecheck ] && options=(--print-level error --kernel-regex-exclude kns=attention_prefill)
  step $tool overlap overlap_check --small
  # Blocks of this kernel wait for each other through memory, which racecheck does not look at.
  [ $tool = memcheck ] && step $tool decode_step decode_step_check --shape tiny
  options=()
  matrix $tool gemm_bf16_rows_cuda
  matrix $tool gemm_bf16_rows_sm90
done
# cuBLAS's own kernels are its own; ours beside them have no shared memory.
matrix memcheck gemm_bf16_cublaslt
matrix memcheck nvfp4_dequant_cublaslt
matrix memcheck nvfp4_w4a4_sm90

echo
printf '%s\n' "${results[@]}"
exit $failed
