"""Kernels that choose and merge patches against the tensor functions that say what they compute; interpreted where
there is no GPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernel_inputs import DEVICE, DTYPES, SIZES, drawn, kernels_run, sizes_of
from patchslim.kernels.attention import size_rows
from patchslim.kernels.available import MOST_TOKENS
from patchslim.kernels.match import Match, all_into_first, chosen, kernels_choose, match, take, weigh
from patchslim.kernels.match_kernels import choose
from patchslim.kernels.merge import merge

pytest.importorskip("triton")

CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def features(seed: int, batch: int, t: int, channels: int, dtype: torch.dtype) -> Tensor:
    """Features and the logarithm of weights, as a linear layer gives them: (B, t, c + 1), a part of all tokens'."""
    return drawn(seed)(batch, t + 1, channels + 1).to(dtype)[:, 1:]


def rules(z: Tensor, size: Tensor | None, n: int, first: bool) -> tuple[Match, Tensor]:
    """By the tensor functions."""
    weight = weigh(z[..., -1], size)
    return all_into_first(z[..., :-1], n) if first else match(z[..., :-1], weight, n), weight


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.integers(1, 2), st.integers(1, 40), st.sampled_from([3, 31]), st.floats(0, 1), SIZES, st.booleans(), st.data()
)
@example(2, 196, 31, 0.5, "own", False, None)
@example(1, 197, 31, 0.9, "none", True, None)
@example(1, 300, 5, 0.7, "shared", False, None)  # more than a program looks at at a time
@example(1, 70, 90, 0.6, "none", False, None)  # more channels than it holds
@settings(max_examples=12, deadline=None)
def test_what_goes_and_what_it_joins(
    dtype: torch.dtype, batch: int, t: int, channels: int, share: float, sizes: str, first: bool, data: Any
) -> None:
    seed = 0 if data is None else data.draw(st.integers(0, 99))
    z, size = features(seed, batch, t, channels, dtype), sizes_of(sizes, drawn(seed + 1), batch, t)
    n = t - round(share * (t - 1))
    root, weight = choose(z, size, n, first)
    wanted, weighs = rules(z, size, n, first)
    assert torch.equal(root.long(), wanted.root)
    torch.testing.assert_close(weight, weighs, rtol=1e-5, atol=0.0)


@pytest.mark.skipif(DEVICE == "cpu", reason="takes the interpreter minutes")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("t", [784, 1369, 4096])
def test_many_patches(dtype: torch.dtype, t: int) -> None:
    z, size = features(0, 1, t, 31, dtype), sizes_of("own", drawn(1), 1, t)
    for first in (False, True):
        assert torch.equal(choose(z, size, t // 3, first)[0].long(), rules(z, size, t // 3, first)[0].root)
    x, sizes = drawn(2)(1, t + 1, 40), sizes_of("own", drawn(3), 1, t + 1)
    found, weight = rules(z, size, t // 3, False)
    check_merge(x, sizes, found, 1, weight, nn.LayerNorm(40).to(DEVICE))


@pytest.mark.parametrize("first", [False, True])
def test_of_patches_that_are_all_alike_as_many_stay_as_are_asked_for(first: bool) -> None:
    """What is equal has some order, and nobody joins one that is gone."""
    z = torch.ones(2, 50, 4, device=DEVICE)
    for n in (1, 20, 50):
        root, _ = choose(z, None, n, first)
        stays = root == torch.arange(50, device=DEVICE)
        assert (stays.sum(dim=1) == n).all()
        assert take(stays.int(), root.long()).all()
        assert stays[:, 0].all()  # of equal weights the first is the heavier


def check_merge(x: Tensor, size: Tensor | None, found: Match, prefix: int, weight: Tensor | None, norm: Any) -> None:
    """A merge is the same with a kernel; a token that nobody joins is itself to the bit."""
    with torch.no_grad(), kernels_run(False):
        wanted = merge(x, size, found, prefix, weight, norm)
    with torch.no_grad(), kernels_run() as asked:
        got = merge(x, size, found._replace(root=found.root.int()), prefix, weight, norm)
    assert asked
    close = CLOSE[x.dtype]
    torch.testing.assert_close(got.x, wanted.x, rtol=close, atol=close)
    assert torch.equal(got.size.expand_as(wanted.size), wanted.size)
    counts = torch.zeros_like(found.to[:, : found.n]).scatter_add(1, found.to, torch.ones_like(found.to))
    alone = torch.cat([torch.ones_like(counts[:, :1]).expand(-1, prefix) == 1, counts == 1], dim=1)
    every = torch.cat([torch.arange(prefix, device=DEVICE).expand(len(x), -1), found.keep + prefix], dim=1)
    assert torch.equal(got.x[alone], take(x, every)[alone])
    assert got.log_size is not None
    assert torch.equal(got.log_size, size_rows(got.size, x))
    assert (got.normed is not None) == isinstance(norm, nn.LayerNorm)
    if got.normed is not None:
        normed = F.layer_norm(got.x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        torch.testing.assert_close(got.normed, normed, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.integers(1, 2), st.integers(0, 2), st.integers(1, 40), st.floats(0, 1), SIZES, st.booleans(), st.integers(0, 99)
)
@example(1, 1, 300, 0.9, "own", True, 0)
@settings(max_examples=12, deadline=None)
def test_merging(
    dtype: torch.dtype, batch: int, prefix: int, t: int, share: float, sizes: str, weighed: bool, seed: int
) -> None:
    normal, n = drawn(seed), t - round(share * (t - 1))
    x, size = normal(batch, prefix + t, 20).to(dtype), sizes_of(sizes, normal, batch, prefix + t)
    found, weight = rules(normal(batch, t, 6), None, n, first=seed % 3 == 0)
    norm = nn.Identity() if seed % 2 else nn.LayerNorm(20).to(DEVICE, dtype)
    check_merge(x, size, found, prefix, weight if weighed else None, norm)


def test_where_kernels_serve_they_are_asked_and_elsewhere_not() -> None:
    normal = drawn(0)
    z = normal(2, 30, 6)
    with kernels_run() as asked:
        found, weight = chosen(z, None, 12)
    assert asked
    wanted, weighs = chosen(z, None, 12)
    assert torch.equal(found.to, wanted.to)
    torch.testing.assert_close(weight, weighs)
    assert not kernels_choose(torch.zeros(1, 4, 4))
    with torch.no_grad():
        assert kernels_choose(z) == (DEVICE == "cuda")
        assert not kernels_choose(z.double())
        assert not kernels_choose(torch.zeros(1, MOST_TOKENS + 1, 2, device=DEVICE))


def test_an_image_of_no_numbers_leaves_the_others_alone() -> None:
    z, n = features(0, 3, 40, 5, torch.float32).clone(), 13
    wanted, _ = choose(z, None, n, False)
    z[1] = torch.nan
    root, weight = choose(z, None, n, False)
    assert torch.equal(root[[0, 2]], wanted[[0, 2]])
    assert int((root[1] == torch.arange(40, device=DEVICE)).sum()) == n  # as many stay as are asked for
    with torch.no_grad(), kernels_run():
        merged = merge(drawn(1)(3, 41, 8), None, Match(root, n), 1, weight)
    assert merged.x[[0, 2]].isfinite().all()
