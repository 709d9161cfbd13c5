#!/usr/bin/env python3
"""Writes the manifest of a checkpoint directory: every file's size and SHA-256 (docs/reload.md).

Run it when everything else is in place: `nibble serve --watch` takes the manifest as the sign that
the checkpoint is complete. It appears whole, by a rename.
Usage: write_manifest.py DIRECTORY [--weight-version NAME]
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

NAME = "weights_manifest.json"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def manifest_of(directory, weight_version=None):
    files = sorted(path for path in Path(directory).iterdir()
                   if path.suffix in (".safetensors", ".json") and path.name != NAME)
    if not any(path.suffix == ".safetensors" for path in files):
        raise SystemExit(f"{directory}: no .safetensors file")
    manifest = {"format": 1}
    if weight_version:
        manifest["weight_version"] = weight_version
    manifest["files"] = {path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in files}
    return manifest


def write_manifest(directory, weight_version=None):
    target = Path(directory) / NAME
    temporary = target.with_suffix(".tmp")
    with open(temporary, "w") as file:
        json.dump(manifest_of(directory, weight_version), file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--weight-version")
    options = parser.parse_args()
    print(write_manifest(options.directory, options.weight_version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
