"""Cached features: the host's own, to the last bit the same within any bound on memory, and the bound holds."""

from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.evidence.features import Features
from patchslim.hosts import open_host
from small import make_host, make_images

IMAGES, BATCH = 10, 4
LAYER_BYTES = BATCH * 17 * 24 * 4  # a batch of 4 images, 17 tokens, width 24, fp32


def stored_bytes(features: Features) -> int:
    """What is held now."""
    return sum(z.numel() * 4 for batch in features.stored for z in batch.values())


def features_within(model: Any, layers_that_fit: int) -> Features:
    return Features(open_host(model), as_source(make_images(IMAGES)), BATCH, layers_that_fit * LAYER_BYTES)


@pytest.mark.parametrize("layers_that_fit", [0, 1, 4, 7, 100])
def test_the_bound_holds_and_features_are_the_hosts(layers_that_fit: int) -> None:
    model: Any = make_host().requires_grad_(False)
    features, plenty = features_within(model, layers_that_fit), features_within(model, 1000)
    plenty.focus((0,))
    expected: list[Tensor] = [model._pos_embed(model.patch_embed(make_images(IMAGES)))]
    for block in model.blocks:
        expected.append(block(expected[-1]))
    for layers in ((2, 3, 4), (1, 2, 3), (0, 1, 2)):
        features.focus(layers)
        assert stored_bytes(features) <= layers_that_fit * LAYER_BYTES
        assert features.count == IMAGES
        for _ in range(2):  # the second pass gives the same
            batches = list(features.batches(*layers))
            assert [len(batch[0]) for batch in batches] == [4, 4, 2]
            for batch, other in zip(batches, plenty.batches(*layers), strict=True):
                assert all(torch.equal(*pair) for pair in zip(batch, other, strict=True))
            for layer, parts in zip(layers, zip(*batches, strict=True), strict=True):
                torch.testing.assert_close(torch.cat(parts), expected[layer], atol=1e-5, rtol=1e-5)
    assert features.keeps_all == (layers_that_fit == 100)


def test_what_is_kept_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    features = features_within(make_host().requires_grad_(False), 4)  # two of the three layers at work, of two batches
    features.focus((1, 2))
    seen: list[int] = []
    compute = Features._compute

    def noted(self: Features, images: Tensor, layers: frozenset[int]) -> dict[int, Tensor]:
        seen.append(len(images))
        return compute(self, images, layers)

    monkeypatch.setattr(Features, "_compute", noted)
    features.focus((1, 2))
    list(features.batches(1, 2))
    assert seen == [2]  # the batch that did not fit


def test_a_source_of_which_no_image_can_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = as_source(make_images(2))
    monkeypatch.setattr(source, "batches", lambda size: iter(()))
    with pytest.raises(ps.DataError, match=r"There are no images in .* to calibrate on"):
        Features(open_host(make_host()), source, 2, 2**30).focus((0,))
