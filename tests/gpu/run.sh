#!/usr/bin/env bash
# Runs everything that needs a GPU and prints a table of results; exit code 0: all passed.
# Usage: run.sh [FOLDER]       a folder of tests/gpu/bundle.sh, or (default) the one this script is in
#   GPU_TEST_CHECKPOINT      a model directory for `nibble inspect --device cuda`
#   GPU_TEST_LIBRARIES      where libcublas.so.13 is, if not in /usr/local/cuda/lib64
#   GPU_TEST_LOGS            where the logs go (default: FOLDER/logs)
set -uo pipefail
folder=$(cd "${1:-$(dirname "$0")}" && pwd)
logs=${GPU_TEST_LOGS:-$folder/logs}
mkdir -p "$logs"
export LD_LIBRARY_PATH="$folder/lib:${GPU_TEST_LIBRARIES:-/usr/local/cuda/lib64}:${LD_LIBRARY_PATH:-}"
results=()
failed=0
under=() # a command that runs the program of a step

# step NAME PROGRAM ARGUMENTS...: exit code 77 or a missing program counts as skipped.
step() {
  local name=$1 program=$2 begin=$SECONDS code=0 result=passed
  shift 2
  if [ ! -x "$folder/$program" ]; then
    results+=("$(printf '%-22s %-12s' "$name" missing)")
    failed=1
    return
  fi
  timeout 300 "${under[@]}" "$folder/$program" "$@" >"$logs/$name.log" 2>&1 || code=$?
  if [ $code = 77 ]; then
    result=skipped
  elif [ $code != 0 ]; then
    result="FAILED ($code)"
    failed=1
    tail -n 30 "$logs/$name.log"
  fi
  results+=("$(printf '%-22s %-12s %4d s  %s' "$name" "$result" $((SECONDS - begin)) \
    "$(tail -n 1 "$logs/$name.log" | cut -c -90)")")
}

step w4a16_check w4a16_check
step w4a16_check_sm80 w4a16_check --kernel sm80
step kernels_check kernels_check
step attention_check attention_check --no-timing
step decode_step_check decode_step_check
step overlap_check overlap_check
step matrix nibble_matrix_test --gtest_brief=1 "--gtest_filter=*nvfp4_w4a16_sm90:*nvfp4_w4a16_sm80:*nvfp4_w4a4_sm90:*cublaslt*:*gemm_bf16_rows_sm90:*gemm_bf16_rows_cuda"
step backends nibble_backends_test --gtest_brief=1 "--gtest_filter=Cuda/*:*OnGpu.*"
step golden nibble_golden_test --gtest_brief=1 "--gtest_filter=Cuda/*"
step tensor nibble_tensor_test --gtest_brief=1 "--gtest_filter=*OnGpu.*"
step model nibble_model_test --gtest_brief=1 "--gtest_filter=FusedStepChoice.*"
# The engine's own tests, on the GPU.
step engine nibble_engine_test --gtest_brief=1 --nibble_device=cuda \
  "--gtest_filter=DecodeGraphs*:DecodeStepOnGpu*:Engine.*:Lifecycle.*"
step bench_gemm_check bench_gemm_check
step bench_gemm nibble bench gemm --device cuda --shapes q8.qkv,q8.gate_up,q30.o --m 1,64,512,2048
step bench_gemm_w4a4 nibble bench gemm --device cuda --ops w4a4 --shapes q8.qkv --m 1,64,512

# A whole small model under compute-sanitizer: memory errors everywhere, races in decode attention.
# racecheck's warnings are left out: it does not follow an order that goes through several barriers
# (the warps of decode attention hand their results on one after another), nor the barriers of the
# products' largest tiles (docs/benchmarks.md).
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
  small="Cuda/GoldenModel.GreedyTokensAgreeWhileTheMarginsAreClear"
  under=("$sanitizer" --tool memcheck --error-exitcode 9)
  step memcheck nibble_golden_test --gtest_brief=1 \
    "--gtest_filter=$small/qwen3_nvfp4_w4a16:$small/llama_nvfp4_*:$small/llama_nvfp4_awq_w4a16"
  under=("$sanitizer" --tool racecheck --print-level error --kernel-regex kns=attention_decode --error-exitcode 9)
  step racecheck nibble_golden_test --gtest_brief=1 "--gtest_filter=$small/qwen3_nvfp4_w4a16"
  under=()
fi
if [ -n "${GPU_TEST_CHECKPOINT:-}" ]; then
  step inspect nibble inspect --device cuda --no-scan "$GPU_TEST_CHECKPOINT"
fi

echo
printf '%s\n' "${results[@]}"
exit $failed
