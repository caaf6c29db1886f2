"""The tables of speed on a GPU, from the raw files under results/; `tables.py` prints them with the others."""

from __future__ import annotations

from typing import Any

from harness import rows

NAMES = {"deit_tiny_patch16_224": "DeiT-Ti", "deit_small_patch16_224": "DeiT-S", "deit_base_patch16_224": "DeiT-B"}
SLIM = ("static drop", "matched merge")


def main() -> None:
    """All of them."""
    speed_table("gpu_speed_h200_*.json")
    speed_table("gpu_speed_batch1_h200_*.json")
    steps_table()
    peer_table()
    quantised_table()


def by_model(pattern: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows of a raw file by model, then by name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows(pattern):
        found.setdefault(row["model"], {})[row["row"]] = row
    return found


def speed_table(pattern: str) -> None:
    """Slim models against both hosts."""
    print(
        "| | images/s: host | host, same embedding | slim | over the host | over the same embedding | share of ideal |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model, own in by_model(pattern).items():
        host, same = own["host"], own["host, same embedding"]
        for name in SLIM:
            slim = own[name]
            gain = slim["throughput"] / same["throughput"]
            share = gain / (host["macs"] / slim["macs"])
            rates = " | ".join(f"{row['throughput']:,.0f}" for row in (host, same, slim))
            over = f"{slim['throughput'] / host['throughput']:.2f}× | {gain:.2f}×"
            print(f"| {NAMES[model]}, {name} | {rates} | {over} | {share:.1%} |")
    print()


def steps_table() -> None:
    """Matched merge at batch 1, by the number of blocks that merge."""
    print("| | images/s: host | merging in 9 blocks | in 3 | over the host: 9 | 3 |")
    print("| --- | --- | --- | --- | --- | --- |")
    names = ("host", "matched merge", "matched merge, 3 steps")
    for model, own in by_model("gpu_batch1_steps_h200_*.json").items():
        host, many, few = (own[name]["throughput"] for name in names)
        print(f"| {NAMES[model]} | {host:,.0f} | {many:,.0f} | {few:,.0f} | {many / host:.2f}× | {few / host:.2f}× |")
    print()


def peer_table() -> None:
    """Matched merge beside peers' own code."""
    print("| | host | matched merge | EViT | ToMe | over EViT | over ToMe | mode of ToMe |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model, own in by_model("gpu_peers_h200_*.json").items():
        rates = {name: own[name]["throughput"] for name in ("host", "matched merge", "EViT", "ToMe")}
        over = [f"{rates['matched merge'] / rates[name]:.2f}×" for name in ("EViT", "ToMe")]
        cells = [f"{rate:,.0f}" for rate in rates.values()] + over
        print(f"| {NAMES[model]} | " + " | ".join(cells) + f" | {own['ToMe']['best']} |")
    print()


def quantised_table() -> None:
    """Plain, slim, quantised, both, by torchao."""
    print("| layers in | images/s: plain | slim | quantised | both | both over slim |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows("quantised_*.json"):
        names = ("baseline_same_embedding_", "", "baseline_quantised_", "quantised_")
        rates = " | ".join(f"{row[f'{name}throughput']:,.0f}" for name in names)
        print(f"| {row['quantised_to']} | {rates} | {row['quantised_over_slim']:.2f}× |")
    print()
