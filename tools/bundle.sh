#!/usr/bin/env bash
# One folder with the program and the shared libraries it needs besides glibc, the driver and CUDA,
# for x86-64 machines without Debian's packages: OUT_DIR/nibble starts it.
# Usage: tools/bundle.sh BUILD_DIR OUT_DIR
set -euo pipefail
build=${1:?usage: bundle.sh BUILD_DIR OUT_DIR}
out=${2:?usage: bundle.sh BUILD_DIR OUT_DIR}
mkdir -p "$out/lib"
strip -o "$out/lib/nibble" "$build/nibble"
ldd "$build/nibble" | awk '$2 == "=>" && $3 ~ /^\// &&
  $3 !~ /\/(libc|libm|libdl|librt|libpthread|libresolv)\.so/ {print $3}' |
  xargs -r -I{} cp -nL {} "$out/lib/"
# cuBLAS is found by name where CUDA puts it.
cat >"$out/nibble" <<'SCRIPT'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH="$here/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64"
export LD_LIBRARY_PATH
exec "$here/lib/nibble" "$@"
SCRIPT
chmod +x "$out/nibble"
du -sh "$out"
