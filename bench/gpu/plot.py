#!/usr/bin/env python3
"""Draws a figure of w4a16_bench --json: time beside BF16 cuBLAS over rows, as an SVG.

Usage: plot.py BURST.json OUT.svg. One line each for nibble, Marlin and the floor, geometric means over the
twelve layer shapes. Marlin is compared through the cuBLAS of its own run, as in summarize.py.
"""
import json
import math
import sys

from summarize import CUBLAS, M, MARLIN, SHAPES, mean

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 34, 52
TOP_RATIO, STEP = 3.0, 0.5


def x_of(m):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(m) / math.log2(M[-1])


def y_of(ratio):
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(ratio, TOP_RATIO) / TOP_RATIO)


def text(x, y, words, anchor="middle", color="#333", size=12, extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
            f'font-size="{size}" {extra}>{words}</text>')


def line(points, color, label, label_y, dash=""):
    path = " ".join(f"{x_of(m):.1f},{y_of(r):.1f}" for m, r in points)
    style = f' stroke-dasharray="{dash}"' if dash else ""
    dots = "" if dash else "".join(
        f'<circle cx="{x_of(m):.1f}" cy="{y_of(r):.1f}" r="3" fill="{color}"/>' for m, r in points)
    return (f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{style}/>{dots}'
            + text(WIDTH - RIGHT + 10, label_y, label, "start", color, 13))


def main():
    document = json.load(open(sys.argv[1]))
    rows = {(r["shape"], r["m"]): r for r in document["rows"] if r["shape"] in SHAPES}
    used = [m for m in M if all((s, m) in rows for s in SHAPES)]
    ours = [(m, mean(rows[s, m]["us"] / rows[s, m]["cublas_us"] for s in SHAPES)) for m in used]
    floor = [(m, mean(rows[s, m]["floor_us"] / rows[s, m]["cublas_us"] for s in SHAPES)) for m in used]
    marlin = [(m, mean(MARLIN[s][M.index(m)] / CUBLAS[s][M.index(m)] for s in SHAPES)) for m in used]

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           text(LEFT, 20, f"W4A16 on one {document['machine']['name']}: "
                "time as a multiple of BF16 cuBLAS (lower is better)", "start", size=14)]
    for i in range(int(TOP_RATIO / STEP) + 1):
        ratio = i * STEP
        color = "#555" if ratio == 1 else "#e4e4e4"
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(ratio):.1f}" y2="{y_of(ratio):.1f}" stroke="{color}"/>')
        out.append(text(LEFT - 8, y_of(ratio) + 4, f"{ratio:g}", "end"))
    for m in used:
        out.append(text(x_of(m), HEIGHT - BOTTOM + 18, str(m)))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "rows (tokens in the batch)"))
    out.append(text(WIDTH - RIGHT + 10, y_of(1) + 4, "BF16 cuBLAS", "start", "#555", 13))
    labels = [("#c0392b", marlin, "Marlin", ""), ("#1f6fb4", ours, "nibble", ""), ("#7a7a7a", floor, "floor (bytes, operations)", "5 4")]
    last = None
    for color, points, label, dash in sorted(labels, key=lambda entry: y_of(entry[1][-1][1])):
        at = y_of(points[-1][1]) + 4
        for taken in (y_of(1) + 4, last):
            if taken is not None and abs(at - taken) < 16:
                at = taken + 16 if at >= taken else taken - 16
        last = at
        out.append(line(points, color, label, at, dash))
    out.append("</svg>")
    open(sys.argv[2], "w").write("\n".join(out) + "\n")


main()
