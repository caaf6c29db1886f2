"""T2T-ViT and LV-ViT have the published parameters, and MACs that equal torch's counter. No weight is made."""

import runpy
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from patchslim.models.register import REGISTERED

ROOT = Path(__file__).parents[2]
TABLE = runpy.run_path(str(ROOT / "benchmarks" / "model_table.py"))


@pytest.mark.parametrize("name", list(TABLE["PUBLISHED"]))
def test_parameters_are_the_published_ones(name: str) -> None:
    info, _ = TABLE["measured"](name)
    published = TABLE["PUBLISHED"][name][0]
    unit = 0.01 if name.startswith("lv") else 0.1  # of the last printed digit
    assert abs(info.parameters / 1e6 - published) <= 0.51 * unit


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
    assert [line for line in TABLE["table"]() if line not in page] == []
