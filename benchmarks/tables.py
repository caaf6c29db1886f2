"""Prints the tables of docs/results.md from the raw files under results/.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

import export_tables
import gpu_tables
from harness import RESULTS, rows
from patchslim.measure import paired

SHORT = 12  # epochs of the table of recovery
SCORES = ("impact", "attention", "random", "radial", "uniform")


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


def hits(right: str, images: int) -> Tensor:
    """Which images are right, from the hex digits of a raw file: (images,) booleans."""
    return torch.tensor([bit == "1" for bit in f"{int(right, 16):0{images}b}"])


def lost(row: dict[str, Any]) -> str:
    """Points lost against the host on the same images, with the 95 % interval."""
    return difference(row["base_right"], row["right"], row["images"])


def modes(files: str = "modes_deit_tiny_*.json") -> list[dict[str, Any]]:
    """All rows of some tables of modes, each with what the host got right and where it was measured."""
    found = []
    for path in sorted(RESULTS.glob(files)):
        table = json.loads(path.read_text())
        where = "H200" if "H200" in table["device"] else "CPU"
        shared = {"base_right": table["base_right"], "images": table["images"], "where": where}
        found += [row | shared for row in table["rows"]]
    return found


def mode_table() -> None:
    """Every way of choosing, no tuning; then those that go by pairs, by today's rule for them."""
    _mode_table(modes())
    _mode_table(modes("matched_product_*.json"))


def _mode_table(found: list[dict[str, Any]]) -> None:
    print("| select, removed | MACs | top-1 | points lost | patches per block | measured on |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in sorted(found, key=lambda row: (-row["target_macs"], row["top1"])):
        counts = ", ".join(str(count) for count in row["patches_per_block"])
        drops = f" (dropped in {', '.join(str(block) for block in row['drops'])})" if row["drops"] else ""
        macs = row["image_macs"]["mean"] if "image_macs" in row else row["macs_ratio"]
        numbers = f"{macs:.3f} | {row['top1']:.2f} | {lost(row)}"
        print(f"| {row['mode']} | {numbers} | {counts}{drops} | {row['where']} |")
    print()


def rank_table() -> None:
    """How well G ranks patches of images it has not seen."""
    found = [row for row in modes() if "rank_correlation" in row]
    print("| G, block | " + " | ".join(str(block) for block in range(1, 12)) + " |")
    print("| --- " * 12 + "|")
    for row in sorted(found, key=lambda row: (-row["target_macs"], row["mode"])):
        cells = [
            f"{row['rank_correlation'][str(b)]:.2f}" if str(b) in row["rank_correlation"] else "" for b in range(1, 12)
        ]
        print(f"| {row['mode']}, {row['target_macs']:g} | " + " | ".join(cells) + " |")
    print()


def threshold_table() -> None:
    """What images keep when a threshold decides, by how sure the host is of them."""
    print("| MACs asked | mean | 5th percentile | 95th | least sure quarter | second | third | surest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in modes():
        if "image_macs" in row:
            macs = [f"{row['image_macs'][name]:.3f}" for name in ("mean", "p5", "p95")]
            patches = [f"{group['patches']:.1f}" for group in row["by_confidence"]]
            print(f"| {row['target_macs']:g} | " + " | ".join(macs + patches) + " |")
    print()


def difference(first: str, second: str, images: int) -> str:
    """The first less the second on the same images, in points, with the 95 % interval."""
    found = paired(hits(first, images), hits(second, images))
    return f"{found.difference:.2f} ({found.low:.2f} to {found.high:.2f})"


def recoveries(pattern: str) -> list[dict[str, Any]]:
    """All rows of the tables of recovery that match, each with what the host got right."""
    found = []
    for path in sorted(RESULTS.glob(pattern)):
        table = json.loads(path.read_text())
        shared = {name: table.get(name) for name in ("base_right", "images", "base_top1")}
        found += [row | shared | {"epochs": table["recovery"]["epochs"]} for row in table["rows"]]
    return sorted(found, key=lambda row: (-row["target_macs"], row["top1_after"]))


def _recovered() -> list[dict[str, Any]]:
    return recoveries("recovery_deit_tiny_*.json")


def _both(row: dict[str, Any]) -> list[str]:
    """Top-1 and points lost, before and after recovery."""
    cells = []
    for when in ("before", "after"):
        cells += [f"{row[f'top1_{when}']:.2f}", difference(row["base_right"], row[f"right_{when}"], row["images"])]
    return cells


def recovery_table() -> None:
    """Before and after recovery."""
    print("| mode | MACs | epochs | before | points lost | after | points lost | same answer, held-out | recovery, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in _recovered():
        cells = [row["mode"], f"{row['macs_ratio']:.3f}", str(row["epochs"]), *_both(row)]
        agree = [f"{row[f'held_out_agreement_{when}']:.1f}" for when in ("before", "after")]
        print("| " + " | ".join([*cells, " → ".join(agree), f"{row['recovery_seconds']:.0f}"]) + " |")
    print()


def long_table() -> None:
    """Recovered for longer."""
    short = {(row["mode"], row["target_macs"]): row for row in _recovered()}
    print("| mode | MACs asked for | 12 epochs: held-out loss | points lost | 120 epochs | points lost | top-1 | s |")
    print("| --- " * 8 + "|")
    for row in recoveries("long_recovery_*.json"):
        cells = [row["mode"], f"{row['target_macs']:g}"]
        for each in (short[row["mode"], row["target_macs"]], row):
            lost = difference(each["base_right"], each["right_after"], each["images"])
            cells += [f"{each['held_out_loss_after']:.3f}", lost]
        print("| " + " | ".join([*cells, f"{row['top1_after']:.2f}", f"{row['recovery_seconds']:.0f}"]) + " |")
    print()


def thousand_table() -> None:
    """Chosen by 1,000 images instead of 256: short recoveries, then long ones."""
    pairs = [(False, _recovered()), (True, recoveries("long_recovery_*.json"))]
    known = {(row["mode"], row["target_macs"], long): row for long, found in pairs for row in found}
    print(
        "| mode | MACs asked for | epochs | before | points lost | after | points lost | held-out loss | with 256 | s |"
    )
    print("| --- " * 10 + "|")
    for row in recoveries("recovery_1000_images_*.json") + recoveries("long_1000_images_*.json"):
        cells = [row["mode"], f"{row['target_macs']:g}", str(row["epochs"]), *_both(row)]
        losses = [
            " → ".join(f"{each[f'held_out_loss_{when}']:.3f}" for when in ("before", "after"))
            for each in (row, known[row["mode"], row["target_macs"], row["epochs"] > SHORT])
        ]
        print("| " + " | ".join([*cells, *losses, f"{row['recovery_seconds']:.0f}"]) + " |")
    print()


def thousand_comparison() -> None:
    """What the effect score gains over the others there."""
    found = {row["mode"]: row for row in recoveries("recovery_1000_images_*.json")}
    own = found["static drop"]
    print("| effect against | before | after recovery | held-out loss after, effect's is " + _loss(own) + " |")
    print("| --- | --- | --- | --- |")
    for score in SCORES:
        other = found[f"static drop, {score}"]
        cells = [difference(own[right], other[right], own["images"]) for right in ("right_before", "right_after")]
        print(f"| {score} | " + " | ".join([*cells, _loss(other)]) + " |")
    print()


def _loss(row: dict[str, Any]) -> str:
    return f"{row['held_out_loss_after']:.3f}"


def one_rate_table() -> None:
    """One learning rate for everything that learns, the classifier included, against two rates without it."""
    now = {(row["mode"], row["target_macs"]): row for row in _recovered()}
    print("| mode | MACs | one rate: epochs | held-out loss | top-1 | two rates: epochs | held-out loss | top-1 |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in recoveries("one_rate_recovery_*.json"):
        other = now[row["mode"], row["target_macs"]]
        if row["patches_per_block"] != other["patches_per_block"]:
            continue  # another plan by now
        cells = [
            f"{each['epochs']} | {each['held_out_loss_after']:.3f} | {each['top1_after']:.2f}" for each in (row, other)
        ]
        print(f"| {row['mode']} | {row['macs_ratio']:.3f} | " + " | ".join(cells) + " |")
    print()


def trust_table() -> None:
    """How far the static search believes in cross terms (docs/decisions.md)."""
    print("| trust | error, its own images | error, others | KL | same answer |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows("trust_*.json"):
        print(
            f"| {row['trust']:g} | {row['searched_error']:.4f} | {row['error']:.4f} | {row['kl']:.4f} | "
            f"{row['agree']:.1f} % |"
        )
    print()


def cover_table() -> None:
    """What becomes of static patches that leave, and which should stay (docs/decisions.md)."""
    found = rows("cover_*.json")
    own = next(row for row in found if row["score"] == "coverage" and "right" in row)
    print("| which stay | the others | MACs | error | KL | same answer | top-1 | coverage less that |")
    print("| --- " * 8 + "|")
    for row in found:
        name = f"random, draw {row['seed']}" if row["score"] == "random" else row["score"]
        ways = {None: "drop", "own": "join the one they resemble most", "fixed": "merge in fixed groups"}
        judged = f"{row['error']:.4f} | {row['kl']:.4f} | {row['agree']:.1f} %"
        top1, less = ("", "") if "right" not in row else (f"{row['top1']:.2f}", "")
        if top1 and row is not own:
            less = difference(own["right"], row["right"], row["images"])
        print(f"| {name} | {ways[row['groups']]} | {row['macs_ratio']:.3f} | {judged} | {top1} | {less} |")
    print()


def rate_table() -> None:
    """The learning rate of recovery, by held-out training images."""
    print("| learning rate | loss before | after | same answer as the host before | after |")
    print("| --- | --- | --- | --- | --- |")
    for path in sorted(RESULTS.glob("recovery_rate_*.json")):
        table = json.loads(path.read_text())
        row = table["rows"][0]
        losses = [f"{row[f'held_out_loss_{when}']:.3f}" for when in ("before", "after")]
        agree = [f"{row[f'held_out_agreement_{when}']:.1f} %" for when in ("before", "after")]
        print(f"| {table['recovery']['learning_rate']:g} | " + " | ".join(losses + agree) + " |")
    print()


def known_table() -> None:
    """What a perfect G would be worth (docs/decisions.md)."""
    found = rows("known_scores_*.json")
    print("| exact score | drop: error | KL | same answer | merge: error | KL | same answer |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for score in dict.fromkeys(row["score"] for row in found):
        own = {row["removed"]: row for row in found if row["score"] == score}
        cells = [
            f"{own[way]['error']:.4f} | {own[way]['kl']:.4f} | {own[way]['agree']:.1f} %" for way in ("drop", "merge")
        ]
        print(f"| {score} | " + " | ".join(cells) + " |")
    print()


def score_comparison() -> None:
    """What the effect score gains over the others, image by image, before and after the same recovery."""
    start = "static drop"
    plain, after = ({(row["mode"], row["target_macs"]): row for row in found} for found in (modes(), _recovered()))
    print("| effect against | at 0.6, before | at 0.55, before | at 0.55, after recovery |")
    print("| --- | --- | --- | --- |")
    for score in ("impact", "attention", "random", "radial", "uniform"):
        cells = []
        for table, ratio, right in ((plain, 0.6, "right"), (plain, 0.55, "right"), (after, 0.55, "right_after")):
            own, other = table[start, ratio], table[f"{start}, {score}", ratio]
            cells.append(difference(own[right], other[right], own["images"]))
        print(f"| {score} | " + " | ".join(cells) + " |")
    print()


def step_table() -> None:
    """Merging in many blocks or in a few."""
    print("| merging in | patches per block | error | KL | same answer | top-1 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows("merge_steps_*.json"):
        counts = ", ".join(str(count) for count in row["patches_per_block"])
        numbers = f"{row['error']:.4f} | {row['kl']:.4f} | {row['agree']:.1f} % | {row['top1']:.2f}"
        print(f"| {row['merging in']} | {counts} | {numbers} |")
    print()


def merge_table() -> None:
    """Ways of matching and merging at two schedules (docs/decisions.md)."""
    found = rows("merge_variants_*.json")
    for schedule in sorted({row["schedule"] for row in found}):
        print("| keys compared | pairs by | weight in the average | its length | error | KL | same answer |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for row in found:
            if row["schedule"] == schedule:
                print(f"| {merging(row)} | {row['error']:.4f} | {row['kl']:.4f} | {row['agree']:.1f} % |")
        print()


def merging(row: dict[str, Any]) -> str:
    """One way, in four cells."""
    constant = f"{row['constant']:g}"
    rule = f"distance × (attention + {constant})"
    if row["pairs by"] == "difference":
        rule = f"similarity − {constant} × attention" if row["constant"] else "similarity"
    return f"{row['keys']} | {rule} | {row['weight']} | {row['length']}"


if __name__ == "__main__":
    merge_table()
    step_table()
    recovery_table()
    long_table()
    thousand_table()
    thousand_comparison()
    one_rate_table()
    trust_table()
    cover_table()
    rate_table()
    known_table()
    score_comparison()
    mode_table()
    rank_table()
    threshold_table()
    score_table()
    tolerance_table()
    stale_table()
    speed_table()
    gpu_tables.main()
    export_tables.main()
