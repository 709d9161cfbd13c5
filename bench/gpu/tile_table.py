#!/usr/bin/env python3
"""Writes the table of measured tiles (src/backends/cuda/nvfp4_w4a16_tiles_h200.cpp) from a sweep.

Usage: tile_table.py SWEEP.json... > nvfp4_w4a16_tiles_h200.cpp
The sweep: w4a16_bench --no-cublas --tiles all --shapes all --m 8,16,32,64,128,256,384,512 --json SWEEP.json
The first time of a tile counts: sweeps made again come before those that they replace, sweeps that add tiles anywhere.
A tile other than the rule's first choice must win by 1 %: less is noise.
"""

import json
import sys

ROWS = [8, 16, 32, 64, 128, 256, 384, 512]
NAMES = {
    "t8": "Tokens8",
    "t16": "Tokens16",
    "t32": "Tokens32",
    "t64": "Tokens64",
    "t128": "Tokens128",
    "t128w": "Tokens128Whole",
    "t32s": "Tokens32Slices",
    "t64s": "Tokens64Slices",
    "t64w": "Tokens64Whole",
    "t128m": "Tokens128Mixed",
    "strips8": "Strips8",
}
PREFERRED = {8: "t8", 16: "t16", 32: "t32", 64: "t64", 128: "t128", 256: "t128w", 384: "t128w", 512: "t128w"}


def main():
    times = {}
    for row in [row for path in sys.argv[1:] for row in json.load(open(path))["rows"]]:
        matrix = times.setdefault((row["shape"], row["n"], row["k"]), {})
        tile = row["kernel"].split(":")[1]
        matrix.setdefault(row["m"], {}).setdefault(tile, row["us"])
    print("// Written by bench/gpu/tile_table.py from a sweep on an NVIDIA H200; not edited by hand.")
    print('#include "backends/cuda/nvfp4_w4a16_tiles.h"\n')
    print("namespace nibble::cuda {\n\nnamespace {\n\nusing enum W4A16Tile;\n")
    print("// One line a matrix: n, k, the tile for up to 8, 16, 32, 64, 128, 256, 384, 512 rows.")
    print("// clang-format off")
    print("constexpr W4A16MeasuredTiles kTiles[] = {")
    for (name, n, k), by_rows in times.items():
        best = []
        for rows in ROWS:
            tiles = by_rows[rows]
            preferred = PREFERRED[rows]
            fastest = min(tiles, key=tiles.get)
            best.append(preferred if tiles[fastest] > 0.99 * tiles[preferred] else fastest)
        print(f"    {{{n}, {k}, {{{', '.join(NAMES[t] for t in best)}}}}},  // {name}")
    print("};\n// clang-format on\n\n}  // namespace\n")
    print("std::span<const W4A16MeasuredTiles> h200_tiles() { return kTiles; }\n")
    print("}  // namespace nibble::cuda")


if __name__ == "__main__":
    main()
