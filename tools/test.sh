#!/usr/bin/env bash
# Builds and tests everything that can be tested without a GPU; what CI runs.
# Usage: tools/test.sh [--slow]
#   --slow  adds a minute of each fuzz target, the sanitizers over everything, the differential oracles, the
#           accuracy of the demo model, the kernels compiled for architectures that the default build has not, and
#           the linter over the whole tree
# Steps go on after a failure where they can; the last lines are a table of results and times.
# Logs: build/logs/<step>.log. NIBBLE_TEST_JOBS sets the number of parallel jobs (default: cores).
set -uo pipefail
cd "$(dirname "$0")/.."

slow=false
case "${1:-}" in
  "") ;;
  --slow) slow=true ;;
  *) echo "usage: tools/test.sh [--slow]" >&2; exit 2 ;;
esac

jobs=${NIBBLE_TEST_JOBS:-$(nproc)}
logs=build/logs
mkdir -p "$logs"
results=()
failed=0
started=$SECONDS

# step NAME COMMAND...: runs it into its log, prints the end of the log (all that matters when it
# failed), remembers result and time. "skip: reason" as the log's last line counts as skipped.
step() {
  local name=$1 begin=$SECONDS code=0 result=ok
  shift
  echo "== $name"
  "$@" </dev/null >"$logs/$name.log" 2>&1 || code=$?
  if [ $code != 0 ]; then
    result="FAILED ($code)"
    failed=1
    tail -n 150 "$logs/$name.log"
  else
    case "$(tail -n 1 "$logs/$name.log")" in "skip: "*) result=skipped ;; esac
    case $name in
      *ctest*) grep -E '^[0-9]+% tests passed|^Total Test time|^No tests' "$logs/$name.log" ;;
      *) tail -n 3 "$logs/$name.log" | cut -c -200 ;;
    esac
  fi
  results+=("$(printf '%-20s %-14s %5d s' "$name" "$result" $((SECONDS - begin)))")
  return $code
}

build() { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" ${2:+--target} ${2:+"$2"}; }

run_ctest() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error \
    --no-label-summary "$@"
}

# Puts cuobjdump on the path for the test gpu.sass, where GPU kernels were compiled and the toolkit has none.
find_cuobjdump() {
  if ! compgen -G 'build/ci/src/backends/cuda/*.o' >/dev/null; then
    echo "skip: no GPU kernels were compiled"
  elif command -v cuobjdump; then
    return 0
  else
    local python found
    python=$(tools/fetch_deps.sh sass) || return 1
    found=$(find "$(dirname "$python")/../lib" -name cuobjdump -type f | head -n 1)
    [ -n "$found" ] || { echo "no cuobjdump among the packages of tools/requirements/sass.txt"; return 1; }
    PATH=$(dirname "$found"):$PATH
    export PATH
    command -v cuobjdump
  fi
}

format_check() {
  git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | grep -v '^tests/data/' |
    xargs clang-format-19 --dry-run --Werror && echo "all formatted"
}

# Sources changed since the base: origin/main, or the commit before where that is this commit.
changed_sources() {
  local base
  base=$(git rev-parse -q --verify origin/main 2>/dev/null || git rev-parse -q --verify main)
  if [ -z "$base" ] || [ "$(git rev-parse "$base")" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse -q --verify HEAD~1) || return 0
  fi
  base=$(git merge-base "$base" HEAD)
  git diff --name-only --diff-filter=d "$base" | while read -r file; do
    case $file in
      src/*.h) echo "${file%.h}.cpp" ;;
      src/*.cpp | tests/*.cpp) echo "$file" ;;
    esac
  done | sort -u
}

# Those of the files on standard input that this build compiles. Not `grep && echo`: with pipefail a list that ends
# with a header-only name would fail the step.
compiled() {
  while read -r file; do
    if grep -qF "/$file\"" build/ci/compile_commands.json; then echo "$file"; fi
  done
}

# Lints the files on standard input; LINT_SECONDS bounds the whole.
lint() {
  local deadline=$((SECONDS + ${LINT_SECONDS:-300})) files left=0 i code=0 batch
  mapfile -t files
  # Without the compiler's precompiled headers, which clang cannot read and which hide a missing include, and
  # without warnings that only g++ has.
  mkdir -p build/ci/lint
  sed -E -e 's/ -Winvalid-pch| -include [^ ]*cmake_pch\.hxx//g' \
    -e 's/ -Wno-(restrict|stringop-[a-z]+|maybe-uninitialized|dangling-pointer)//g' \
    build/ci/compile_commands.json >build/ci/lint/compile_commands.json
  for ((i = 0; i < ${#files[@]}; i += jobs)); do
    if [ $SECONDS -ge $deadline ]; then
      left=$((${#files[@]} - i))
      break
    fi
    batch=("${files[@]:i:jobs}")
    printf '%s\n' "${batch[@]}" | xargs -P "$jobs" -n 1 clang-tidy-19 -quiet -p build/ci/lint || code=1
  done
  echo "linted $((${#files[@]} - left)) files"
  [ "$left" = 0 ] || echo "note: out of time, $left files left for tools/test.sh --slow"
  return $code
}
lint_changed() { changed_sources | compiled | lint; }
lint_all() { git ls-files 'src/*.cpp' | compiled | LINT_SECONDS=3000 lint; }

# The address and undefined-behaviour sanitizers over the folders that parse, compute and own memory.
# The server and the command line join in --slow: their sanitizer builds alone take ten minutes.
asan_folders="base tensor quant ops checkpoint text model engine golden"
# The thread sanitizer over the folders that own threads; the rest only runs on them.
tsan_folders="base engine server"
# build_folders PRESET FOLDERS: their test programs.
build_folders() {
  cmake --preset "$1" || return 1
  local targets=() folder
  for folder in $2; do targets+=("nibble_${folder}_test"); done
  cmake --build --preset "$1" -j "$jobs" --target "${targets[@]}"
}
run_folders() {
  local folder code=0
  for folder in $2; do
    echo "-- $folder"
    "build/$1/tests/$folder/nibble_${folder}_test" --gtest_brief=1 || code=1
  done
  return $code
}

# A minute of each fuzz target, from the seeds in tests/data/fuzz and those of tests/fuzz/seeds.txt.
fuzz() {
  build fuzz nibble_fuzzers || return 1
  local target name corpus own count=0 seed seeds
  for target in build/fuzz/tests/fuzz/*_fuzz; do
    [ -x "$target" ] || continue
    name=$(basename "$target")
    corpus=build/fuzz/corpus/$name
    own=tests/data/fuzz/$name
    [ -d "$own" ] || own=
    mkdir -p "$corpus"
    seeds=$(awk -v name="$name" '$1 == name {print $2}' tests/fuzz/seeds.txt)
    for seed in $seeds; do
      cp "$seed" "$corpus/$(sha256sum "$seed" | cut -c -16)"
    done
    echo "-- $name"
    "$target" -max_total_time=60 -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
      -artifact_prefix=build/fuzz/ "$corpus" ${own:+"$own"} >"build/fuzz/$name.log" 2>&1 || {
      tail -n 60 "build/fuzz/$name.log"
      return 1
    }
    tail -n 3 "build/fuzz/$name.log"
    count=$((count + 1))
  done
  [ $count -gt 0 ] || { echo "skip: no fuzz targets"; return 0; }
  echo "$count targets, a minute each"
}

oracles() {
  local script python count=0
  python=$(tools/fetch_deps.sh oracles) || return 1
  for script in tools/parity/*_parity.py; do
    [ -f "$script" ] || continue
    echo "-- $script"
    "$python" "$script" --program build/ci/nibble || return 1
    count=$((count + 1))
  done
  [ $count -gt 0 ] || { echo "skip: no tools/parity/*_parity.py"; return 0; }
  echo "$count oracles agree"
}

# 200 questions, perplexity and KL of the demo model and of what the quantizer makes of it.
accuracy() {
  NIBBLE=build/ci/nibble tools/make_demo.sh &&
    python3 tests/accuracy/gate.py --program build/ci/nibble --original demo/SmolLM2-135M-Instruct
}

# The kernels that are meant for every GPU, compiled for the architectures that no default build has. The Hopper
# kernels are compiled by every build.
architectures() {
  if ! grep -q '^CUDAToolkit_NVCC_EXECUTABLE:.*/nvcc' build/ci/CMakeCache.txt; then
    echo "skip: no nvcc"
    return 0
  fi
  cmake --build --preset ci -j "$jobs" --target nibble_cuda_architectures && echo "sm_80, 90a, 100a and 120a compile"
}

$slow && level=slow || level=test
if ! step packages tools/setup.sh $level; then
  echo "cannot go on without the packages"
  exit 1
fi
step layers python3 tools/check_layers.py
step tree python3 tools/check_tree.py
step format format_check
if step build build ci; then
  step cuobjdump find_cuobjdump
  step ctest run_ctest ci
  step isa python3 tools/check_isa.py build/ci
  step lint lint_changed
  $slow && step oracles oracles
  $slow && step accuracy accuracy
  $slow && step architectures architectures
fi
step build-asan build_folders asan "$asan_folders" && step tests-asan run_folders asan "$asan_folders"
if $slow; then
  step build-asan-all build asan && step ctest-asan run_ctest asan -LE 'slow|gpu'
  step build-tsan build_folders tsan "$tsan_folders" && step tests-tsan run_folders tsan "$tsan_folders"
  step fuzz fuzz
  step lint-all lint_all
fi

echo
echo "== summary: $((SECONDS - started)) s"
printf '%s\n' "${results[@]}"
grep -hE '^[0-9]+% tests passed' "$logs/ctest.log" "$logs/ctest-asan.log" 2>/dev/null
[ $failed = 0 ] && echo "all steps passed" || echo "FAILED"
exit $failed
