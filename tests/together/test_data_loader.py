"""Images for slimming as people have them: torch's DataLoader gives the plan that a tensor gives."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import patchslim as ps
from patchslim.slimmed.assemble import plan_of
from small import make_images
from together.alike import LIBRARIES, host_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_data_loader_gives_the_plan_of_its_images(library: str) -> None:
    host, images = host_of(library), make_images(12)
    loader = DataLoader(TensorDataset(images, torch.arange(12)), batch_size=5)
    for method in ("drop", "merge"):
        found, wanted = (plan_of(ps.slim(host, own, method, macs=0.7)) for own in (loader, images))
        assert found is not None
        assert wanted is not None
        assert (found.steps, found.order) == (wanted.steps, wanted.order)
