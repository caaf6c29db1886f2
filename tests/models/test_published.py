"""T2T-ViT and LV-ViT have the published parameters, and MACs that equal torch's counter. No weight is made."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from benchmarks.models import measured, table
from benchmarks.paper.published import published_models
from patchslim.models.stem_vit import REGISTERED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", published_models(), ids=lambda row: f"{row['model']}-{row['img_size']}")
def test_parameters_are_the_published_ones(row: dict[str, Any]) -> None:
    info, _ = measured(row["model"], row["img_size"])
    unit = 0.01 if row["model"].startswith("lv") else 0.1  # of the last printed digit
    assert abs(info.parameters / 1e6 - row["parameters"]) <= 0.51 * unit


@pytest.mark.parametrize("name", [name for name in REGISTERED if not name.endswith("_cls") or name == "lvvit_t_cls"])
@torch.no_grad()
def test_macs_equal_torchs_counter(name: str) -> None:
    set_fused_attn(False)
    try:
        with torch.device("meta"):
            model, image = timm.create_model(name).eval(), torch.zeros(1, 3, 224, 224)
    finally:
        set_fused_attn(True)
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert counter.get_total_flops() == 2 * ps.count_macs(model)


def test_the_docs_show_this_table() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [line for line in table() if line not in page] == []
