"""Kernels that pair and merge patches against the tensor operations that say what they compute; interpreted where there
is no GPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernel_inputs import DEVICE, SHAPES, drawn, kernels_run, keys_of
from patchslim.kernels.match import (
    LEARNT_FLOOR,
    Match,
    all_into_first,
    learnt_weight,
    match,
    match_lighter,
    pair,
    pair_lighter,
    pairs_by_distance,
    pairs_by_keys,
    take,
    unit_keys,
)
from patchslim.kernels.merge import Merged, merge, merge_rows

pytest.importorskip("triton")


def check_places(place: Tensor, wanted: Any, n: int) -> None:
    """A kernel's places (B, t) are those of a match."""
    assert torch.equal(place.long(), wanted.to)
    assert (take(place, wanted.keep) == torch.arange(n, device=DEVICE)).all()


@given(SHAPES, st.integers(0, 2), st.floats(0, 1), st.booleans(), st.booleans(), st.integers(0, 99))
@example((2, 2, 75, 4), 1, 0.8, True, True, 0)  # more pairs than one program looks after
@example((2, 2, 75, 4), 1, 0.8, False, False, 0)
@example((1, 1, 70, 4), 1, 0.5, False, True, 1)
@settings(max_examples=8, deadline=None)
def test_pairs_and_merges(shape: Any, prefix: int, share: float, weighed: bool, keys: bool, seed: int) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    k, x = keys_of(normal, batch, heads, prefix + t, width), normal(batch, prefix + t, 20)
    size = normal(batch, prefix + t).abs() + 1
    n = t - round(share * (t - t // 2))  # as many as there are pairs may go
    importance = normal(batch, t).abs() if weighed else None
    if keys:
        weight = normal(batch, t).exp() if weighed else torch.ones(batch, t, device=DEVICE)
        found = match(unit_keys(k, prefix), n, weight)
        place = pair(k[:, :, prefix:], weight, n)
    else:
        z = normal(batch, t, 6)
        found = match_lighter(z[..., :-1], n, z[..., -1].exp())
        (place,) = pair_lighter(z, n, None, None, None, 0.0)
    check_places(place, found, n)
    wanted, share_of = merge(x, size, found, prefix, importance), size[:, prefix:] if importance is None else importance
    tokens, grown = merge_rows(x, size, share_of, place, n, None, None, 0.0)
    torch.testing.assert_close(tokens, wanted.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grown, wanted.size, rtol=1e-6, atol=1e-6)
    gain, bias = drawn(1)(20), drawn(2)(20)
    again, _, normed = merge_rows(x, size, share_of, place, n, gain, bias, 1e-5)
    assert torch.equal(again, tokens)
    torch.testing.assert_close(normed, F.layer_norm(tokens, (20,), gain, bias, 1e-5), rtol=1e-5, atol=1e-5)
    rows = torch.arange(batch, device=DEVICE)[:, None]
    goes = place[:, :, None] == torch.arange(n, device=DEVICE)
    alone, own = goes.sum(dim=1) == 1, goes.int().argmax(dim=1)  # places that one patch goes to, and which
    assert torch.equal(tokens[:, prefix:][alone], x[rows, prefix + own][alone])


@given(SHAPES, st.integers(1, 2), st.floats(0, 1), st.booleans(), st.integers(0, 99))
@example((2, 2, 75, 4), 1, 0.8, False, 0)  # several tiles and programs
@example((1, 2, 196, 4), 1, 0.5, True, 2)
@settings(max_examples=8, deadline=None)
def test_pairs_by_the_class_tokens_attention(shape: Any, prefix: int, share: float, shared: bool, seed: int) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    k, q = keys_of(normal, batch, heads, prefix + t, width), normal(batch, heads, 1, width)
    size = normal(1 if shared else batch, prefix + t).abs() + 1
    n = t - round(share * (t - t // 2))
    rows = (0.4 * q @ k.transpose(2, 3) + size.log()[:, None, None]).softmax(dim=-1).mean(dim=1)[:, 0]
    importance = rows[:, prefix:] * t
    z = normal(batch, t, 6)
    wanted = match_lighter(z[..., :-1], n, z[..., -1].exp() * (importance + LEARNT_FLOOR) ** 2)
    place, found = pair_lighter(z, n, q, k, size, 0.4)
    torch.testing.assert_close(found, importance, rtol=1e-5, atol=1e-6)
    check_places(place, wanted, n)


def both(way: str, tokens: tuple[Tensor, Tensor | None], n: int, k: Tensor, weighed: bool, norm: nn.Module) -> None:
    """A way of merging gives the same with kernels as without."""
    x, size = tokens
    normal, prefix = drawn(5), 1
    t = x.shape[1] - prefix
    z, importance = normal(len(x), t, 6), normal(len(x), t).abs() if weighed else None
    weight, query = normal(len(x), t).exp(), (normal(len(x), k.shape[1], 1, k.shape[3]), 0.4)

    def merged() -> Merged:
        if way == "by keys":
            return merge(x, size, pairs_by_keys(k, n, prefix, weight), prefix, importance)
        if way == "into first":
            return merge(x, size, all_into_first(k, n, prefix), prefix, importance)
        found, attention = pairs_by_distance(z, n, k, size, query if way == "by class" else None)
        assert (attention is not None) == (way == "by class")
        return merge(x, size, found, prefix, attention, norm)

    with torch.no_grad(), kernels_run(False):
        wanted = merged()
    with torch.no_grad(), kernels_run() as asked:
        found = merged()
    assert asked
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.size, wanted.size, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.found.to.long(), wanted.found.to)
    for one in (found.found, wanted.found):
        assert torch.equal(take(wanted.found.to, one.keep), torch.arange(n, device=DEVICE).expand(len(x), -1))
    if way in ("by keys", "into first"):
        assert torch.equal(found.found.keep, wanted.found.keep)
    assert wanted.normed is None
    if found.normed is not None:
        torch.testing.assert_close(found.normed, norm(found.x), rtol=1e-5, atol=1e-5)
    assert (found.normed is not None) == (way in ("lighter", "by class") and isinstance(norm, nn.LayerNorm))


@given(
    st.sampled_from(["by keys", "into first", "lighter", "by class"]),
    SHAPES,
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(["none", "shared", "own"]),
    st.integers(0, 99),
)
@example("into first", (2, 2, 75, 4), 0.9, True, "own", 0)  # many join one
@settings(max_examples=24, deadline=None)
def test_a_merge_is_the_same_with_kernels(
    way: str, shape: Any, share: float, weighed: bool, sizes: str, seed: int
) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    x, k = normal(batch, 1 + t, 20), keys_of(normal, batch, heads, 1 + t, width)
    size = None if sizes == "none" else normal(1 if sizes == "shared" else batch, 1 + t).abs() + 1
    fewest = 1 if way == "into first" else t // 2
    norm = nn.Identity() if seed % 2 else nn.LayerNorm(20).to(DEVICE)
    both(way, (x, size), t - round(share * (t - fewest)), k, weighed, norm)


def test_many_patches_do_without_kernels() -> None:
    normal = drawn(0)
    k, z = keys_of(normal, 1, 2, 300, 4), normal(1, 299, 4)
    for query in (None, (normal(1, 2, 1, 4), 0.5)):
        with kernels_run():
            found, attention = pairs_by_distance(z, 200, k, None, query)  # would need more than one program holds
        wanted = match_lighter(z[..., :-1], 200, learnt_weight(z[..., -1], attention))
        assert isinstance(found, Match)
        assert torch.equal(found.to, wanted.to)
