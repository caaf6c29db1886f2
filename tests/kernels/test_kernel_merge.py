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
from patchslim.kernels.match import LEARNT_FLOOR, match, match_lighter, take, unit_keys
from patchslim.kernels.merge import Merged, merge, merge_into_first, merge_lighter, merge_lighter_by_class, merge_pairs

pytest.importorskip("triton")
from patchslim.kernels import merge_triton, pairs_triton


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
        found = match(unit_keys(k, prefix), n, weight if weighed else None)
        place = pairs_triton.pair(k[:, :, prefix:], weight, n)
    else:
        z = normal(batch, t, 6)
        found = match_lighter(z[..., :-1], n, z[..., -1].exp())
        place = pairs_triton.pair_lighter(z, n)
    check_places(place, found, n)
    wanted, share_of = merge(x, size, found, prefix, importance), size[:, prefix:] if importance is None else importance
    tokens, grown = merge_triton.merge_rows(x, size, share_of, place, n)
    torch.testing.assert_close(tokens, wanted.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grown, wanted.size, rtol=1e-6, atol=1e-6)
    gain, bias = drawn(1)(20), drawn(2)(20)
    again, _, normed = merge_triton.merge_normed(x, size, share_of, place, n, gain, bias, 1e-5)
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
    place, found = pairs_triton.pair_lighter_by_class(q, k, z, size, 0.4, n, LEARNT_FLOOR)
    torch.testing.assert_close(found, importance, rtol=1e-5, atol=1e-6)
    check_places(place, wanted, n)


def both(way: str, tokens: tuple[Tensor, Tensor | None], n: int, k: Tensor, weighed: bool, norm: nn.Module) -> None:
    """A way of merging gives the same with kernels as without."""
    x, size = tokens
    normal, prefix = drawn(5), 1
    t = x.shape[1] - prefix
    z, importance = normal(len(x), t, 6), normal(len(x), t).abs() if weighed else None
    weight, q = normal(len(x), t).exp() if weighed else None, normal(len(x), k.shape[1], 1, k.shape[3])

    def merged() -> Merged:
        if way == "pairs":
            return merge_pairs(x, size, k, n, prefix, importance, weight)
        if way == "into first":
            return merge_into_first(x, size, k, n, prefix, importance)
        if way == "lighter":
            return merge_lighter(x, size, z, n, prefix, importance)
        return merge_lighter_by_class(x, size, k, z, n, prefix, q, 0.4, norm)

    with torch.no_grad(), kernels_run(False):
        wanted = merged()
    with torch.no_grad(), kernels_run() as asked:
        found = merged()
    assert asked or (way == "lighter" and weighed)
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.size, wanted.size, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.to, wanted.to)
    assert torch.equal(take(wanted.to, wanted.keep), torch.arange(n, device=DEVICE).expand(len(x), -1))
    if way in ("pairs", "into first"):
        assert torch.equal(found.keep, wanted.keep)
    assert wanted.normed is None
    if found.normed is not None:
        torch.testing.assert_close(found.normed, norm(found.x), rtol=1e-5, atol=1e-5)
    assert (found.normed is not None) == (way == "by class" and isinstance(norm, nn.LayerNorm))


@given(
    st.sampled_from(["pairs", "into first", "lighter", "by class"]),
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
    x, k, z = normal(1, 300, 8), keys_of(normal, 1, 2, 300, 4), normal(1, 299, 4)
    wanted = merge_lighter_by_class(x, None, k, z, 200, 1, normal(1, 2, 1, 4), 0.5, nn.LayerNorm(8))
    assert wanted.x.shape == (1, 201, 8)
    with kernels_run():
        found = merge_lighter(x, None, z, 200, 1, None)  # would otherwise need more than one program holds
    assert torch.equal(found.to, match_lighter(z[..., :-1], 200, z[..., -1].exp()).to)
