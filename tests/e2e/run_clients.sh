#!/usr/bin/env bash
# Runs clients_test.py with the pinned clients of tools/requirements/client.txt; exits 77 (skipped)
# where they cannot be had. Usage: run_clients.sh PROGRAM [flags of clients_test.py]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
if ! python=$("$here/../../tools/fetch_deps.sh" client); then
  echo "skipped: the pinned Python clients could not be installed"
  exit 77
fi
exec "$python" "$here/clients_test.py" --program "$program" "$@"
