"""What each part costs beside its floor and beside the plain way: `python docs/figures/performance_chart.py`.

Reads benchmarks/bench_h200.json and writes docs/images/performance.png: milliseconds per 1000 tokens on one
logarithmic axis, a line for each row of the benchmark from its floor to the slowest of its references.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER.parent / "images" / "performance.png"
RECORD = FOLDER.parents[1] / "benchmarks" / "bench_h200.json"
ROWS = {
    "geometry": ("A, Q, ΔU, KL, entropies,\n21 scales (affine head)", "the two products", "differentiating, grid"),
    "fp64": ("FP64 path, 257 scales,\nthree derivatives", "the two FP64 products", "node by node"),
    "huginn": ("A, Q, φ''' through\nHuginn's coda and head", "one forward pass", "Hessian–vector product (A, Q)"),
    "pass": ("a whole pass over GSM8K,\nOuro-1.4B's size", "the bare forward passes", None),
}
SLOW = {
    "geometry": "Hessian–vector product, endpoint utilities and grid",
    "fp64": "node by node",
    "huginn": "Hessian–vector product, A and Q only",
}
OURS, FLOOR, PLAIN = "#0072B2", "#222222", "#D55E00"


def milliseconds(measured: dict[str, Any]) -> float:
    """Per 1000 tokens."""
    return 1000.0 * float(measured["per_1000_tokens"])


def main() -> None:
    """Draw every row."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in record["rows"]}
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    for height, (name, (_, floor_name, plain_name)) in enumerate(reversed(ROWS.items())):
        row = rows[name]
        ours = milliseconds(row["measured"])
        floor = next(milliseconds(r) for r in row["references"] if r["floor"])
        axes.plot([floor], [height], marker="|", markersize=16, markeredgewidth=2, color=FLOOR, zorder=3)
        axes.plot([ours], [height], marker="o", markersize=9, color=OURS, zorder=4)
        axes.annotate(
            f"{floor_name}\n{floor:.2g} ms",
            (min(floor, ours), height),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
            color=FLOOR,
        )
        axes.annotate(
            f"loopscope, {ours:.2g} ms",
            (ours, height),
            xytext=(0, -18),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=OURS,
        )
        if plain_name is None:
            continue
        plain = next(r for r in row["references"] if r["name"] == SLOW[name])
        slow = milliseconds(plain)
        axes.plot([floor, slow], [height, height], color="#bbbbbb", linewidth=1.5, zorder=1)
        axes.plot([slow], [height], marker="o", markersize=8, markerfacecolor="white", color=PLAIN, zorder=3)
        axes.annotate(
            f"{plain_name}\n{slow:.3g} ms, {plain['ratio']:.3g} × as long",
            (slow, height),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=PLAIN,
        )
    axes.set_yticks(range(len(ROWS)), [label for label, *_ in reversed(ROWS.values())], fontsize=9)
    axes.set_ylim(-0.6, len(ROWS) - 0.35)
    axes.set_xscale("log")
    axes.set_xlim(0.03, 10000)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(f"milliseconds per 1000 tokens, {record['machine']['device']} (log scale)", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eeeeee", zorder=0)
    figure.savefig(PICTURE, dpi=160)


if __name__ == "__main__":
    main()
