#!/usr/bin/env bash
# Installs what nibble needs on Debian 12. Usage: tools/setup.sh [build|test|slow]
#   build  compiler, build tools and libraries (default)
#   test   build + test libraries, formatter, linter
#   slow   test + clang with its runtimes, for fuzzing
# Does nothing when everything is there; needs root or sudo otherwise.
set -euo pipefail

build=(g++ cmake ninja-build ccache mold pkg-config git ca-certificates curl python3 python3-venv
  libboost1.81-dev libboost-json1.81-dev libboost-system1.81-dev libcli11-dev libspdlog-dev
  libfmt-dev libexpected-dev libpcre2-dev libutf8proc-dev libssl-dev prometheus-cpp-dev)
test=(libgtest-dev libgmock-dev binutils clang-format-19 clang-tidy-19)
slow=(clang-19 libclang-rt-19-dev)

case "${1:-build}" in
  build) packages=("${build[@]}") ;;
  test) packages=("${build[@]}" "${test[@]}") ;;
  slow) packages=("${build[@]}" "${test[@]}" "${slow[@]}") ;;
  *) echo "usage: tools/setup.sh [build|test|slow]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [ "${status:0:2}" = ii ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || {
    echo "setup: no apt-get here; install what matches: ${missing[*]}" >&2
    exit 1
  }
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: run as root: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  # A third-party source that cannot be reached must not stop the rest.
  "${as_root[@]}" apt-get update -q >/dev/null || echo "setup: apt-get update complained; going on"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}" >/dev/null
fi

# at_least NAME FOUND WANTED
at_least() {
  [ "$(printf '%s\n%s\n' "$3" "$2" | sort -V | head -n 1)" = "$3" ] || {
    echo "setup: $1 $2 is too old, need $3 (Debian 12 has it)" >&2
    exit 1
  }
}
at_least g++ "$(g++ -dumpfullversion)" 12.2
at_least cmake "$(cmake --version | awk 'NR == 1 {print $3}')" 3.25
at_least ninja "$(ninja --version)" 1.11
at_least python "$(python3 -c 'import platform; print(platform.python_version())')" 3.11
