"""Pairs by weight times distance, against a slow loop."""

import math

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.slim.merge import TINY, Match, match, match_by_cost
from patchslim.slim.reduce import weigh


def keys_of(images: int, patches: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys at unit length (B, t, c) and log weights (B, t)."""
    generator = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(images, patches, 6, generator=generator, dtype=torch.float64), dim=-1)
    return keys, torch.randn(images, patches, generator=generator, dtype=torch.float64)


def slow_pairs(keys: Tensor, weight: list[float], r: int) -> dict[int, int]:
    """Which patch joins which, of one image: keys (t, c)."""
    costs = []
    for mover in range(0, len(keys), 2):
        host = max(range(1, len(keys), 2), key=lambda other: float(keys[mover] @ keys[other]))
        distance = max(1 - float(keys[mover] @ keys[host]), TINY)
        costs.append((math.exp(weight[mover]) * distance, mover, host))
    return {mover: host for _, mover, host in sorted(costs)[:r]}


def pairs_of(found: Match, image: int) -> dict[int, int]:
    keep = found.keep[image].tolist()
    return {gone: keep[into] for gone, into in zip(found.gone[image].tolist(), found.into[image].tolist(), strict=True)}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), patches=st.integers(2, 17), seed=st.integers(0, 9999))
def test_match_by_cost_is_the_slow_loop(data: st.DataObject, patches: int, seed: int) -> None:
    keys, weight = keys_of(3, patches, seed)
    n = data.draw(st.integers(patches // 2, patches))
    found = match_by_cost(keys, n, weight)
    assert found.keep.shape == (3, n)
    assert found.gone.shape == found.into.shape == (3, patches - n)
    for image in range(3):
        assert pairs_of(found, image) == slow_pairs(keys[image], weight[image].tolist(), patches - n)
        assert sorted(found.keep[image].tolist() + found.gone[image].tolist()) == list(range(patches))
        assert all(into >= found.first for into in found.into[image].tolist())


def test_with_equal_weights_the_most_alike_go_as_in_plain_matching() -> None:
    keys, _ = keys_of(3, 15, 1)
    plain, found = match(keys, 10), match_by_cost(keys, 10, torch.zeros(3, 15, dtype=torch.float64))
    assert all(pairs_of(plain, image) == pairs_of(found, image) for image in range(3))


def test_a_patch_of_great_weight_stays_and_the_scale_of_weights_does_not_matter() -> None:
    keys, weight = keys_of(3, 16, 2)
    weight[:, 4] = 20.0
    found = match_by_cost(keys, 9, weight)
    assert not (found.gone == 4).any()
    again = match_by_cost(keys, 9, weight - 7.0)
    assert all(torch.equal(a, b) for a, b in zip(found[:3], again[:3], strict=True))


def test_a_copy_goes_first_whatever_it_weighs() -> None:
    keys, weight = keys_of(1, 16, 3)
    keys[0, 6] = keys[0, 3]
    weight[0, 6] = weight.max() + 2
    assert pairs_of(match_by_cost(keys, 15, weight), 0) == {6: 3}


def test_weights_are_the_geometric_mean_of_what_G_says_and_attention() -> None:
    generator = torch.Generator().manual_seed(4)
    score, attention = torch.randn(2, 3, 9, generator=generator)
    attention = attention.exp()
    share = score.exp() / score.exp().sum(dim=1, keepdim=True)
    assert torch.allclose(weigh(score, None).exp(), share, atol=1e-6)
    assert torch.allclose(weigh(score, attention).exp(), (share * attention).sqrt(), atol=1e-5)
    assert torch.allclose(weigh(score + 5, attention), weigh(score, attention), atol=1e-5)
