"""Prints the tables of docs/results.md and docs/decisions.md on recovery: its temperature and settings, as it
comes by several seeds, what more was tried, and after it static masks drawn several times.

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


def plateau_table() -> None:
    """Ways to learn more from the same pictures, by images that recovery has and has not seen."""
    print("| settings | steps | seeds | error, TRAIN | KL | same answer | KL, photographs | KL, TRAIN seen |")
    print("| --- " * 8 + "|")
    kinds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows("recovery_plateau_*.json"):
        kinds.setdefault((row["settings"], row["steps"]), []).append(row)
    for (settings, steps), found in kinds.items():
        error, kl, other, seen = (
            ", ".join(f"{row[when][name]:.4f}" for row in found)
            for when, name in (("after", "err_t"), ("after", "kl_t"), ("after", "kl_n"), ("seen", "kl_s"))
        )
        agree = ", ".join(f"{row['after']['agree_t']:.1f}" for row in found)
        print(f"| {settings} | {steps} | {len(found)} | {error} | {kl} | {agree} % | {other} | {seen} |")
    print()


def default_table() -> None:
    """Matched merge recovered as it comes, by several seeds; and by distances, on a CPU."""
    for files in ("default_recovery_*.json", "distances_recovered_*.json"):
        print("| MACs asked for | seed | before | points lost | after | points lost | best epoch | KL, held-out | s |")
        print("| --- " * 9 + "|")
        for row in sorted(recoveries(files), key=lambda row: (-row["target_macs"], row["recovery_seed"])):
            kl = " → ".join(f"{row[f'held_out_kl_{when}']:.4f}" for when in ("before", "after"))
            last = f"{row['stages'][-1]['best_epoch']} of {row['stages'][-1]['epochs']}"
            tops = [cell for when in ("before", "after") for cell in _top(row, when)]
            seconds = f"{row['recovery_seconds']:.0f}"
            cells = [f"{row['target_macs']:g}", str(row["recovery_seed"]), *tops, last, kl, seconds]
            print("| " + " | ".join(cells) + " |")
        print()


def _top(row: dict[str, Any], when: str) -> tuple[str, str]:
    """Top-1 and the points lost, in two cells."""
    top1, lost = f"{row[f'top1_{when}']:.2f}", row.get(f"lost_{when}")
    if lost is None:
        return top1, difference(row["base_right"], row[f"right_{when}"], row["images"])
    return top1, f"{lost['difference']:.2f} ({lost['low']:.2f} to {lost['high']:.2f})"


def draws_table() -> None:
    """Static masks after one recovery, those that a seed changes drawn several times."""
    found = recoveries("random_draws_*.json")
    draws = recoveries("effect_draws_*.json")
    print("| static drop by | before | after | held-out loss | same answer, held-out |")
    print("| --- " * 5 + "|")
    for name, row in [(f"effect, draw {row['seed']}", row) for row in by_seed(draws)] + [
        (_named(row), row) for row in sorted(found, key=lambda row: (row["mode"], row["seed"]))
    ]:
        loss, agree = (
            " → ".join(f"{row[f'held_out_{what}_{when}']:{form}}" for when in ("before", "after"))
            for what, form in (("loss", ".3f"), ("agreement", ".1f"))
        )
        print(f"| {name} | {row['top1_before']:.2f} | {row['top1_after']:.2f} | {loss} | {agree} |")
    print()
    print("| mean of the draws of effect, less | before | after |")
    print("| --- " * 3 + "|")
    for score in ("random", "radial", "attention", "uniform", "impact"):
        others = [row for row in found if row["mode"] == f"static drop, {score}"]
        words = [against(draws, others, f"right_{when}") for when in ("before", "after")]
        mean = f", mean of {len(others)} draws" if len(others) > 1 else ""
        print(f"| {score}{mean} | {words[0]} | {words[1]} |")
    print()


def joined_table() -> None:
    """Static patches that others join, and what they gain over static patches that drop, after the same recovery."""
    own = by_seed(recoveries("static_merge_*.json"))
    print("| seed | MACs | patches per block | before | points lost | after | points lost | KL, held-out | s |")
    print("| --- " * 9 + "|")
    for row in own:
        counts = ", ".join(map(str, row["patches_per_block"]))
        drops = f" (dropped in {', '.join(map(str, row['drops']))})" if row["drops"] else ""
        kl = " → ".join(f"{row[f'held_out_kl_{when}']:.4f}" for when in ("before", "after"))
        tops = [cell for when in ("before", "after") for cell in _top(row, when)]
        cells = [str(row["seed"]), f"{row['macs_ratio']:.3f}", counts + drops, *tops, kl]
        print("| " + " | ".join([*cells, f"{row['recovery_seconds']:.0f}"]) + " |")
    print()
    print("| static merge, less static drop by | before | after |")
    print("| --- " * 3 + "|")
    found = recoveries("random_draws_*.json")
    for score in ("effect", "random", "radial", "attention", "uniform", "impact"):
        others = [row for row in found if row["mode"] == f"static drop, {score}"] or recoveries("effect_draws_*.json")
        words = [against(own, others, f"right_{when}") for when in ("before", "after")]
        mean = f", mean of {len(others)} draws" if len(others) > 1 else ""
        print(f"| {score}{mean} | {words[0]} | {words[1]} |")
    print()


def by_seed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in order of their seeds."""
    return sorted(found, key=lambda row: int(row["seed"]))


def _named(row: dict[str, Any]) -> str:
    name = str(row["mode"]).removeprefix("static drop").removeprefix(", ") or "effect, with mirror images"
    return f"{name}, draw {row['seed']}" if name == "random" else name


def against(own: list[dict[str, Any]], others: list[dict[str, Any]], which: str) -> str:
    """The mean of some rows less that of others on the same images, in points, with a 95 % interval over images and
    draws."""
    mine, theirs = (torch.stack([hits(row[which], row["images"]).double() for row in found]) for found in (own, others))
    gain = mine.mean(dim=0) - theirs.mean(dim=0)
    spread = float(gain.var()) / len(gain) + _between(mine) + _between(theirs)
    mean, margin = 100 * float(gain.mean()), 100 * NORMAL * math.sqrt(spread)
    return f"{mean:.2f} ({mean - margin:.2f} to {mean + margin:.2f})"


def _between(right: Tensor) -> float:
    """The variance of a mean over draws: (draws, images) → its share of right answers'; 0 where there is one draw."""
    return float(right.mean(dim=1).var()) / len(right) if len(right) > 1 else 0.0


if __name__ == "__main__":
    temperature_table()
    settings_table()
    plateau_table()
    default_table()
    draws_table()
    joined_table()
