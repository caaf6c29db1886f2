"""Prints the tables of docs/results.md from the raw files under results/.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
SCORES = ("impact", "attention", "random", "radial", "uniform")


def rows(pattern: str) -> list[dict[str, Any]]:
    """All rows of the raw files that match."""
    return [row for path in sorted(RESULTS.glob(pattern)) for row in json.loads(path.read_text())["rows"]]


def cell(found: list[dict[str, Any]], **wanted: Any) -> str:
    """Top-1 of the rows that have these values, in order of their seeds."""
    same = [row for row in found if all(row[name] == value for name, value in wanted.items())]
    return ", ".join(f"{row['top1']:.2f}" for row in sorted(same, key=lambda row: row["seed"])) or "–"


def score_table() -> None:
    """Every score without tuning, and impact with it."""
    plain = rows("scores_deit_tiny_untuned_*.json") + rows("scores_deit_tiny_random_seeds_*.json")
    tuned = rows("scores_deit_tiny_tuned_*.json")
    columns = [("drop", 0.6), ("drop", 0.52), ("carry", 0.6), ("carry", 0.52)]
    print("| score | " + " | ".join(f"{removed}, {ratio:g}" for removed, ratio in columns) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for name, found in [*((score, plain) for score in SCORES), ("impact", tuned)]:
        cells = [cell(found, score=name, removed=removed, target_macs=ratio) for removed, ratio in columns]
        label = f"{name}, blocks tuned" if found is tuned else name
        print(f"| {label} | " + " | ".join(cells) + " |")
    print()


def tolerance_table() -> None:
    """The paper's own tolerances."""
    print("| removed | ε | tuned | MACs | top-1 | patches per block |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows("scores_deit_tiny_tolerance_*.json"):
        tuned = "3 epochs" if row["tune_epochs"] else "no"
        counts = ", ".join(str(count) for count in row["patches_per_block"])
        head = f"| {row['removed']} | {row['tolerance']:g} | {tuned} | {row['macs_ratio']:.3f} "
        print(head + f"| {row['top1']:.2f} | {counts} |")
    print()


def stale_table() -> None:
    """Carried against dropped, by the block at which patches stop being computed."""
    found = rows("stale_keys_*.json")
    print("| first pruned block | " + " | ".join(str(row["first_pruned_block"]) for row in found) + " |")
    print("| --- " * (len(found) + 1) + "|")
    for removed in ("drop", "carry"):
        print(f"| {removed} | " + " | ".join(f"{row[removed]:.1f}" for row in found) + " |")
    print()


def speed_table() -> None:
    """Slim DeiT-S on the CPU."""
    print("| mode | batch | host, images/s | slim, images/s | speed-up | promised by the MACs | share |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows("cpu_speed_*.json"):
        mode = "compiled" if row["compile"] else "eager"
        rates = f"| {mode} | {row['batch_size']} | {row['baseline_throughput']:.1f} | {row['throughput']:.1f} "
        print(rates + f"| {row['speedup']:.2f}× | {row['ideal_speedup']:.2f}× | {row['share_of_ideal']:.0%} |")


if __name__ == "__main__":
    score_table()
    tolerance_table()
    stale_table()
    speed_table()
