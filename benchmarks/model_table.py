"""Parameters and MACs of T2T-ViT and LV-ViT, published beside ours. Nothing is run: weights are never made.

python benchmarks/model_table.py
"""

from __future__ import annotations

from functools import cache

import timm
import torch

import patchslim as ps

# Million parameters and GMACs by the models' own repositories (LV-ViT's has no MACs), and GMACs as Table 2 of the Patch
# Slimming paper prints them. A number after the name is the image side.
PUBLISHED: dict[str, tuple[float, float | None, float | None]] = {
    "t2t_vit_7": (4.3, 1.1, None),
    "t2t_vit_10": (5.9, 1.5, None),
    "t2t_vit_12": (6.9, 1.8, None),
    "t2t_vit_14": (21.5, 4.8, 5.2),
    "t2t_vit_19": (39.2, 8.5, 8.9),
    "t2t_vit_24": (64.1, 13.8, 14.1),
    "t2t_vit_t_14": (21.5, 6.1, None),
    "t2t_vit_t_19": (39.2, 9.8, None),
    "t2t_vit_t_24": (64.1, 15.0, None),
    "t2t_vit_14 384": (21.7, None, None),
    "lvvit_t": (8.53, None, None),
    "lvvit_s": (26.15, None, 6.6),
    "lvvit_m": (55.83, None, 16.0),
    "lvvit_s 384": (26.3, None, None),
    "lvvit_m 384": (56.03, None, None),
    "lvvit_m 448": (56.13, None, None),
    "lvvit_l 448": (150.47, None, None),
}


@cache
def measured(name: str) -> tuple[ps.HostInfo, int]:
    """A model's description and its MACs."""
    model, *size = name.split()
    with torch.device("meta"):
        made = timm.create_model(model, **({"img_size": int(size[0])} if size else {}))
    return ps.inspect(made), ps.count_macs(made)


def row(name: str) -> str:
    """One line of the table."""
    info, macs = measured(name)
    parameters, own, paper = PUBLISHED[name]
    shown = [f"`{info.name}`", str(info.image_size[0]), f"{info.parameters / 1e6:.2f} M", f"{parameters} M"]
    shown += [f"{macs / 1e9:.2f} G", *("" if gmacs is None else f"{gmacs} G" for gmacs in (own, paper))]
    return f"| {' | '.join(shown)} |"


def table() -> list[str]:
    """The whole table in Markdown."""
    head = "| model | image side | parameters | published | MACs | published | by Patch Slimming, Table 2 |"
    return [head, "| --- " * 7 + "|", *(row(name) for name in PUBLISHED)]


if __name__ == "__main__":
    print("\n".join(table()))
