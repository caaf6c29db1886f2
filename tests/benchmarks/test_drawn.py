"""Models made for their speed alone: MACs as asked for, and rows of models that can't be slimmed."""

import pytest
import torch

import patchslim as ps
from drawn import quick_method
from paper_cells import Block
from patchslim.cli.common import open_model
from patchslim.data import tensor_images
from patchslim.data.transform import data_config
from patchslim.hosts import open_host
from patchslim.peers import Cell, Job, SpeedConfig
from speed_rows import SpeedBlock


@pytest.mark.parametrize("name", ["ps-static", "dps", "ps-predicted", "ps-matched", "power"])
@pytest.mark.parametrize("ratio", [0.75, 0.6, 0.45])
def test_drawn_models_have_the_macs_asked_for(name: str, ratio: float) -> None:
    model = open_model("digits_vit")
    images = torch.randn(2, *data_config(model)["input_size"])
    cell = quick_method(name).build(Job(open_host(model), tensor_images(images)), ratio)
    assert isinstance(cell, Cell)
    assert ratio - 0.03 < cell.macs / ps.count_macs(model) <= ratio
    assert cell.macs == ps.count_macs(cell.module)
    with torch.no_grad():
        assert cell.module(images).shape == model(images).shape


def test_speed_of_a_model_that_is_no_host() -> None:
    found = SpeedBlock(Block("swin_s3_tiny_224", ()), torch.device("cpu"), SpeedConfig(1, seconds=0.01)).run(None)
    assert (found["base"], found["rows"]) == (None, [])
    assert found["host"]["throughput"] > 0
    assert found["host"]["method"] == "host"
