"""Draws docs/recovery.png, accuracy against MACs of every mode before and after recovery, from the raw files.

python benchmarks/recovery_figure.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tables import recoveries

OUT = Path(__file__).parent.parent / "docs" / "recovery.png"
COLOURS = {
    "matched merge": "C0",
    "predicted merge": "C1",
    "predicted drop": "C2",
    "static drop": "C3",
    "static merge": "C4",
}


def main() -> None:
    """One line per mode before recovery, dashed, and one after."""
    rows = recoveries("recovery_deit_tiny_*.json")
    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for mode, colour in COLOURS.items():
        own = sorted((row for row in rows if row["mode"] == mode), key=lambda row: row["macs_ratio"])
        if own:
            fewer = [100 * (1 - row["macs_ratio"]) for row in own]
            axes.plot(fewer, [row["top1_after"] for row in own], "o-", color=colour, label=mode)
            axes.plot(fewer, [row["top1_before"] for row in own], "o--", color=colour, alpha=0.45, markersize=4)
    axes.axhline(rows[0]["base_top1"], color="grey", linewidth=1, label="host")
    axes.set_xlabel("fewer MACs, %")
    axes.set_ylabel(f"top-1 on {rows[0]['images']:,} images, %")
    axes.set_title(
        f"DeiT-Ti, no labels: dashed as slimmed, solid after {rows[0]['epochs']} epochs of recovery", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(OUT, dpi=110)


if __name__ == "__main__":
    main()
