"""Parameters and MACs of T2T-ViT and LV-ViT, published beside ours. Nothing is run: weights are never made."""

from __future__ import annotations

from functools import cache

import timm
import torch

import patchslim as ps
from benchmarks.paper.published import published_models


@cache
def measured(model: str, img_size: int) -> tuple[ps.HostInfo, int]:
    """A model's description and its MACs."""
    with torch.device("meta"):
        made = timm.create_model(model, **({} if img_size == 224 else {"img_size": img_size}))
    return ps.inspect(made), ps.count_macs(made)


def table() -> list[str]:
    """The lines of docs/models.md."""
    head = "| model | image side | parameters | published | MACs | published | by Patch Slimming, Table 2 |"
    lines = [head, "| --- " * 7 + "|"]
    for row in published_models():
        info, macs = measured(row["model"], row["img_size"])
        shown = [f"`{info.name}`", str(info.image_size[0]), f"{info.parameters / 1e6:.2f} M", f"{row['parameters']} M"]
        shown += [f"{macs / 1e9:.2f} G", *(f"{row[key]} G" if key in row else "" for key in ("gmacs", "paper_gmacs"))]
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def models() -> None:
    """Print the table of docs/models.md."""
    print("\n".join(table()))
