"""Prints the tables of docs/results.md and docs/decisions.md on the temperature of recovery and on random masks.

python benchmarks/temperature_tables.py
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harness import rows
from tables import difference, hits, recoveries

LAST = 4  # looks at the end of a recovery, averaged
NORMAL = 1.96  # for 95 %


def temperature_table() -> None:
    """Recovered at temperature 1 and at 4."""
    names = ("mode", "MACs asked for", "temperature", "epochs", "best epoch", "same answer, held-out", "top-1")
    print("| " + " | ".join([*names, "points lost", "s"]) + " |")
    print("| --- " * 9 + "|")
    files = (
        ("1", "long_1000_images_*"),
        ("4", "temperature_4_deit_*"),
        ("4, pictures mixed", "temperature_4_blended_*"),
    )
    found = [(label, row) for label, pattern in files for row in recoveries(pattern)]
    for label, row in sorted(found, key=lambda pair: (pair[1]["mode"], pair[1]["target_macs"])):
        agree = " → ".join(f"{row[f'held_out_agreement_{when}']:.1f}" for when in ("before", "after"))
        lost = difference(row["base_right"], row["right_after"], row["images"])
        cells = [
            row["mode"],
            f"{row['target_macs']:g}",
            label,
            str(row["epochs"]),
            str(row["stages"][-1]["best_epoch"]),
        ]
        print(
            "| "
            + " | ".join([*cells, agree, f"{row['top1_after']:.2f}", lost, f"{row['recovery_seconds']:.0f}"])
            + " |"
        )
    print()


def settings_table() -> None:
    """Settings of recovery, by training images that it has not seen."""
    print("| run | settings | steps | error | KL | same answer |")
    print("| --- " * 6 + "|")
    for row in rows("recovery_settings_*.json"):
        looks = row["looks"][-LAST:]
        error, kl, agree = (sum(look[name] for look in looks) / LAST for name in ("err", "kl", "agree"))
        print(f"| {row['call']} | {row['settings']} | {looks[-1]['step']} | {error:.4f} | {kl:.4f} | {agree:.1f} % |")
    print()


def draws_table() -> None:
    """Static masks after one recovery, random ones drawn five times."""
    found = recoveries("random_draws_*.json")
    print("| static drop by | before | after | held-out loss | same answer, held-out |")
    print("| --- " * 5 + "|")
    for row in sorted(found, key=lambda row: (row["mode"], row["seed"])):
        name = row["mode"].removeprefix("static drop").removeprefix(", ") or "effect, with mirror images"
        name += f", draw {row['seed']}" if name == "random" else ""
        loss, agree = (
            " → ".join(f"{row[f'held_out_{what}_{when}']:{form}}" for when in ("before", "after"))
            for what, form in (("loss", ".3f"), ("agreement", ".1f"))
        )
        print(f"| {name} | {row['top1_before']:.2f} | {row['top1_after']:.2f} | {loss} | {agree} |")
    print()
    draws = [row for row in found if row["mode"] == "static drop, random"]
    own = next(row for row in found if row["mode"] == "static drop")
    words = [f"{when} {against(own, draws, f'right_{when}')}" for when in ("before", "after")]
    print(f"Effect less the mean of the {len(draws)} draws: " + ", ".join(words))
    print()


def against(own: dict[str, Any], draws: list[dict[str, Any]], which: str) -> str:
    """A row less the mean of others on the same images, in points, with the 95 % interval."""

    def right(row: dict[str, Any]) -> Tensor:
        return hits(row[which], row["images"]).double()

    gain = 100 * (right(own) - torch.stack([right(row) for row in draws]).mean(dim=0))
    mean, margin = float(gain.mean()), NORMAL * float(gain.std()) / math.sqrt(len(gain))
    return f"{mean:.2f} ({mean - margin:.2f} to {mean + margin:.2f})"


if __name__ == "__main__":
    temperature_table()
    settings_table()
    draws_table()
