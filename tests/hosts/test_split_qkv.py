"""A split `qkv` layer gives what the whole one gives, in every way of slimming."""

from typing import Any

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.hosts import split_qkv_
from patchslim.hosts.projections import SplitQkv
from small import KINDS, WAYS, make_host, make_images, plan_for


def splits(model: nn.Module) -> int:
    return sum(isinstance(module, SplitQkv) for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_says_the_same(kind: str) -> None:
    model, images = make_host(kind), make_images()
    wanted = model(images)
    torch.testing.assert_close(split_qkv_(model, ())(images), wanted, atol=1e-5, rtol=1e-5)
    assert splits(model) == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_slim_model_says_the_same(way: str) -> None:
    host, images = make_host(), make_images()
    slim: Any = ps.apply(host, *plan_for(host, way))
    wanted = slim(images)
    whole = {"blocks.0.attn.qkv"}
    torch.testing.assert_close(split_qkv_(slim, whole)(images), wanted, atol=1e-5, rtol=1e-5)
    assert splits(slim) == 3
    assert isinstance(slim.blocks[0].attn.qkv, nn.Linear)


def test_rows_go_where_they_belong() -> None:
    qkv = nn.Linear(6, 9).eval()
    split = SplitQkv(qkv, 3)
    y = torch.randn(2, 5, 6)
    torch.testing.assert_close(split.q(y), qkv(y)[..., :3])
    torch.testing.assert_close(split.kv(y), qkv(y)[..., 3:])
    assert not split.training
    assert sum(weight.numel() for weight in split.parameters()) == sum(weight.numel() for weight in qkv.parameters())
