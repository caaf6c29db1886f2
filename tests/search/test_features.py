"""Cached features: within their bound, and the same whether cached or computed again."""

from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.search.features import Features
from small import make_host, make_images

LAYER_BYTES = 4 * 17 * 24 * 4  # a batch of 4 images, 17 tokens, width 24, fp32


def stored_bytes(features: Features) -> int:
    """What the cache holds now."""
    return sum(z.numel() * 4 for batch in features.stored for z in batch.values())


@pytest.mark.parametrize("layers_that_fit", [0, 1, 4, 7, 100])
def test_the_bound_holds_and_features_are_the_hosts(layers_that_fit: int) -> None:
    model: Any = make_host()
    images = make_images(10)
    limit = layers_that_fit * LAYER_BYTES
    features = Features(open_host(model.requires_grad_(False)), as_source(images), 4, limit)
    x: Tensor = model._pos_embed(model.patch_embed(images))
    expected = [x]
    for block in model.blocks:
        expected.append(block(expected[-1]))
    for layers in ((2, 3, 4), (1, 2, 3), (0, 1, 2)):
        features.focus(layers)
        assert stored_bytes(features) <= limit
        assert features.count == 10
        for _ in range(2):
            found = [torch.cat(parts) for parts in zip(*features.batches(*layers), strict=True)]
            for layer, z in zip(layers, found, strict=True):
                assert torch.allclose(z, expected[layer], atol=1e-5)
    assert features.keeps_all == (layers_that_fit == 100)


def test_the_plan_does_not_depend_on_the_bound() -> None:
    model, images = make_host(), make_images(10)
    settings: dict[str, Any] = {"score": "impact", "tolerance": 0.02, "step": 3, "tune_epochs": 1, "batch_size": 4}
    plans = [
        ps.search(model, images, ps.SearchConfig(**settings, cache_gib=gib))
        for gib in (0.0, 2.0, 5 * LAYER_BYTES / 2**30)
    ]
    assert plans[0][0].kept == plans[1][0].kept == plans[2][0].kept
    for name, weight in plans[0][1].items():
        assert torch.equal(weight, plans[1][1][name])


def test_no_images_is_told() -> None:
    with pytest.raises(ps.DataError):
        ps.search(make_host(), torch.empty(0, 3, 32, 32))
