"""Pairs by weight times distance, against a slow loop."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.kernels.match import (
    LEARNT_FLOOR,
    TINY,
    Match,
    closeness,
    learnt_weight,
    match,
    match_lighter,
    take,
    unrounded,
)
from patchslim.kernels.merge import merge


def keys_of(images: int, patches: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys at unit length (B, t, c) and weights (B, t)."""
    generator = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(images, patches, 6, generator=generator, dtype=torch.float64), dim=-1)
    return keys, torch.randn(images, patches, generator=generator, dtype=torch.float64).exp()


def slow_pairs(keys: Tensor, weight: list[float], r: int) -> dict[int, int]:
    """Which patch joins which, of one image: keys (t, c)."""
    costs = []
    for mover in range(0, len(keys), 2):
        host = max(range(1, len(keys), 2), key=lambda other: float(keys[mover] @ keys[other]))
        distance = max(1 - float(keys[mover] @ keys[host]), TINY)
        costs.append((weight[mover] * distance, mover, host))
    return {mover: host for _, mover, host in sorted(costs)[:r]}


def most_alike(keys: Tensor, r: int) -> dict[int, int]:
    """The r most alike of every even patch with its nearest odd one, of one image: keys (t, c)."""
    alike = keys[::2] @ keys[1::2].T
    best = sorted(range(len(alike)), key=lambda mover: -float(alike[mover].max()))[:r]
    return {2 * mover: 2 * int(alike[mover].argmax()) + 1 for mover in best}


def pairs_of(found: Match, image: int) -> dict[int, int]:
    keep = found.keep[image].tolist()
    return {gone: keep[into] for gone, into in zip(found.gone[image].tolist(), found.into[image].tolist(), strict=True)}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), patches=st.integers(2, 17), seed=st.integers(0, 9999))
def test_match_is_the_slow_loop(data: st.DataObject, patches: int, seed: int) -> None:
    keys, weight = keys_of(3, patches, seed)
    n = data.draw(st.integers(patches // 2, patches))
    found = match(keys, n, weight)
    assert found.keep.shape == (3, n)
    assert found.gone.shape == found.into.shape == (3, patches - n)
    for image in range(3):
        assert pairs_of(found, image) == slow_pairs(keys[image], weight[image].tolist(), patches - n)
        assert sorted(found.keep[image].tolist() + found.gone[image].tolist()) == list(range(patches))
        assert all(into >= found.first for into in found.into[image].tolist())
    place = torch.arange(n).expand(3, -1)
    assert torch.equal(take(found.to, found.keep), place)
    assert torch.equal(take(found.to, found.gone), found.into)


def test_with_equal_weights_the_most_alike_go() -> None:
    keys, _ = keys_of(3, 15, 1)
    found = match(keys, 10, torch.ones(3, 15, dtype=torch.float64))
    for image in range(3):
        assert pairs_of(found, image) == most_alike(keys[image], 5)


def test_a_patch_of_great_weight_stays_and_the_scale_of_weights_does_not_matter() -> None:
    keys, weight = keys_of(3, 16, 2)
    weight[:, 4] = 1e9
    found = match(keys, 9, weight)
    assert not (found.gone == 4).any()
    again = match(keys, 9, weight / 1024)
    assert all(torch.equal(a, b) for a, b in zip(found[:3], again[:3], strict=True))


def test_a_copy_goes_first_whatever_it_weighs() -> None:
    keys, weight = keys_of(1, 16, 3)
    keys[0, 6] = keys[0, 3]
    weight[0, 6] = 8 * weight.max()
    assert pairs_of(match(keys, 15, weight), 0) == {6: 3}


def test_what_the_class_token_attends_to_weighs_more_and_nothing_weighs_nothing() -> None:
    log_weight, attention = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[0.0, 1.0, 4.0]])
    assert torch.equal(learnt_weight(log_weight, None), log_weight.exp())
    weight = learnt_weight(log_weight, attention)
    torch.testing.assert_close(weight, log_weight.exp() * (attention + LEARNT_FLOOR) ** 2)
    assert (weight > 0).all()


def test_autocast_rounds_neither_distances_nor_averages() -> None:
    generator = torch.Generator().manual_seed(0)
    z, x = torch.randn(2, 12, 5, generator=generator), torch.randn(2, 13, 8, generator=generator)
    distance = torch.nn.Linear(8, 6)

    def computed() -> list[Tensor]:
        found = match_lighter(z, 8, z[..., 0].exp())
        merged = merge(x, None, found, prefix=1)
        return [unrounded(z.device, closeness, z), *found[:3], merged.x, merged.size, unrounded(x.device, distance, x)]

    wanted = computed()
    with torch.autocast("cpu", torch.bfloat16):
        assert distance(x).dtype == torch.bfloat16
        assert all(torch.equal(*pair) for pair in zip(computed(), wanted, strict=True))
