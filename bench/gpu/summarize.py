#!/usr/bin/env python3
"""Summarises w4a16_bench --json: per m, geometric means against the floor, cuBLAS, the cold read and Marlin.

Marlin's times are anchors from another run of another program, so it is compared through BF16 cuBLAS:
(Marlin / cuBLAS there) over (ours / cuBLAS here).
"""
import json
import math
import statistics
import sys

SHAPES = "q8.qkv q8.o q8.gate_up q8.down l70.qkv l70.o l70.gate_up l70.down q30.qkv q30.o fi.up fi.down".split()
M = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
MARLIN = {
    "q8.qkv": [11.9, 11.9, 12.0, 12.0, 12.9, 16.0, 22.9, 31.2, 48.3, 93.7, 168, 402, 671],
    "q8.o": [9.6, 9.6, 9.5, 9.6, 10.2, 11.7, 16.3, 22.4, 33.7, 64.1, 115, 243, 452],
    "q8.gate_up": [29.0, 29.1, 28.8, 28.9, 31.6, 34.2, 48.4, 88.0, 175, 379, 696, 1285, 2568],
    "q8.down": [20.0, 20.0, 19.8, 19.9, 21.1, 24.0, 35.9, 60.9, 89.9, 207, 372, 691, 1226],
    "l70.qkv": [23.6, 23.6, 23.4, 23.5, 25.4, 32.7, 46.2, 71.8, 136, 297, 592, 1055, 2028],
    "l70.o": [19.2, 19.1, 19.0, 19.0, 20.8, 29.5, 44.4, 62.1, 125, 262, 478, 896, 1655],
    "l70.gate_up": [105, 105, 105, 105, 116, 130, 183, 363, 821, 1515, 2983, 5806, 11701],
    "l70.down": [53.7, 53.8, 53.3, 53.4, 58.4, 82.8, 128, 190, 457, 800, 1451, 2781, 5514],
    "q30.qkv": [10.2, 10.2, 10.2, 10.2, 10.8, 11.4, 16.0, 22.5, 26.2, 44.7, 79.6, 160, 339],
    "q30.o": [9.5, 9.4, 9.4, 9.4, 10.0, 11.3, 15.9, 16.2, 22.4, 34.0, 61.7, 112, 213],
    "fi.up": [34.1, 34.0, 33.7, 33.8, 36.8, 50.6, 77.7, 108, 243, 484, 848, 1644, 3175],
    "fi.down": [34.8, 34.8, 34.4, 34.6, 37.6, 42.3, 59.3, 110, 236, 472, 924, 1654, 3306],
}
CUBLAS = {
    "q8.qkv": [15.4, 16.1, 16.1, 15.7, 15.8, 16.1, 16.3, 16.5, 20.4, 35.4, 68.4, 133, 260],
    "q8.o": [13.1, 13.1, 13.0, 13.0, 13.2, 11.6, 11.6, 13.8, 16.8, 24.0, 44.5, 92.2, 184],
    "q8.gate_up": [47.9, 47.9, 48.2, 53.4, 48.9, 49.4, 50.0, 54.1, 72.7, 135, 267, 535, 1219],
    "q8.down": [30.0, 29.4, 30.1, 29.2, 28.5, 27.0, 27.6, 33.3, 41.6, 67.6, 128, 256, 549],
    "l70.qkv": [45.8, 46.1, 46.3, 47.0, 42.9, 43.6, 41.9, 43.4, 61.5, 112, 218, 435, 859],
    "l70.o": [33.5, 33.0, 33.3, 32.9, 33.3, 33.7, 36.8, 36.2, 48.6, 88.2, 173, 345, 750],
    "l70.gate_up": [212, 212, 213, 214, 215, 216, 225, 242, 322, 640, 1450, 2839, 5539],
    "l70.down": [110, 111, 111, 112, 106, 108, 112, 119, 170, 303, 668, 1275, 2725],
    "q30.qkv": [7.9, 8.1, 7.9, 7.9, 7.9, 8.0, 8.0, 8.3, 10.4, 17.4, 30.1, 57.8, 114],
    "q30.o": [9.3, 9.5, 9.4, 9.4, 9.4, 9.6, 9.0, 9.6, 10.7, 16.7, 24.1, 44.1, 86.6],
    "fi.up": [65.6, 65.9, 66.3, 66.7, 67.5, 69.2, 67.0, 69.3, 97.2, 198, 356, 696, 1540],
    "fi.down": [69.4, 68.5, 68.8, 68.5, 68.8, 69.1, 66.5, 68.7, 96.1, 181, 368, 745, 1583],
}


def mean(values):
    values = list(values)
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def main():
    rows = {}
    for row in json.load(open(sys.argv[1]))["rows"]:
        if row["shape"] in MARLIN:
            key = (row["shape"], row["m"])
            if key not in rows or row["us"] < rows[key]["us"]:
                rows[key] = row
    print("| m | x floor | x floor > 25 MB | x read > 25 MB | TFLOP/s median | cuBLAS TFLOP/s | ours / cuBLAS time | Marlin / ours | > 25 MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for i, m in enumerate(M):
        here = [rows[s, m] for s in SHAPES if (s, m) in rows]
        if not here:
            continue
        large = [r for r in here if r["n"] * r["k"] * 0.5625 > 25e6]
        gain = lambda r: (MARLIN[r["shape"]][i] / CUBLAS[r["shape"]][i]) / (r["us"] / r["cublas_us"])
        cublas = statistics.median(2 * r["n"] * r["k"] * m / r["cublas_us"] / 1e6 for r in here)
        print(f"| {m} | {mean(r['us'] / r['floor_us'] for r in here):.2f} | {mean(r['us'] / r['floor_us'] for r in large):.2f} "
              f"| {mean(r['us'] / r['read_us'] for r in large):.2f} | {statistics.median(r['tflops'] for r in here):.0f} "
              f"| {cublas:.0f} | {mean(r['us'] / r['cublas_us'] for r in here):.2f} | {mean(map(gain, here)):.2f} | {mean(map(gain, large)):.2f} |")


if __name__ == "__main__":
    main()
