"""ToMe against its own code's numbers, plain loops, and what proportional attention promises."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import open_host, open_slim
from patchslim.kernels.attention import sized
from patchslim.methods import ToMe
from patchslim.slimmed import states_of
from patchslim.steps.tokens import Tokens
from patchslim.steps.tome import joined, match
from small import make_host, make_images
from tasks import budget, by_steps, golden_host, made, says, task_of

# What facebookresearch/ToMe at af95e4b gives for the golden hosts, the first two images and r = 3, 2, 4, 1.
GOLDEN = {
    "class": [
        [-0.74201, 1.00398, 0.59923, -0.5719, 1.06778, -0.87044, 1.21997],
        [-0.96382, 0.94393, 0.54396, -0.69812, 1.06473, -0.80676, 1.33025],
    ],
    "distilled": [
        [0.17472, 0.20512, -0.48987, 0.08141, 0.59169, 0.85813, 0.36745],
        [0.28328, 0.19221, -0.40542, 0.18262, 0.6956, 0.61461, 0.38319],
    ],
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_its_own_code_gives_the_same(kind: str) -> None:
    slim = merged(golden_host(kind), [3, 2, 4, 1])
    torch.testing.assert_close(says(slim, make_images(2)), torch.tensor(GOLDEN[kind]), atol=2e-5, rtol=0)


def merged(model: nn.Module, removals: list[int]) -> Any:
    """ToMe with so many merges in each block."""
    return by_steps(model, ToMe().steps(ps.inspect(model), removals))


def slow_merge(rows: Tensor, metric: Tensor, r: int, prefix: int) -> list[Tensor]:
    """One image, with loops: rows (t, c) and metric (t, k) → the rows that are left, even ones first."""
    unit = metric / metric.norm(dim=1, keepdim=True)
    best: dict[int, tuple[float, int]] = {}
    for even in range(0, len(rows), 2):
        alike = [(float(unit[even] @ unit[odd]), -odd) for odd in range(1, len(rows), 2) if odd >= prefix]
        if even >= prefix and alike:
            best[even] = max(alike)
    gone = sorted(best, key=lambda even: -best[even][0])[:r]
    sums = {token: rows[token].clone() for token in range(len(rows)) if token not in gone}
    for even in gone:
        sums[-best[even][1]] += rows[even]
    front = list(range(prefix))
    evens = [token for token in range(0, len(rows), 2) if token in sums and token >= prefix]
    odds = [token for token in range(1, len(rows), 2) if token >= prefix]
    return [sums[token] for token in front + evens + odds]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 11), st.integers(0, 10), st.integers(0, 5))
def test_matching_is_what_loops_find(prefix: int, patches: int, seed: int, share: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, prefix + patches, 3, generator=generator, dtype=torch.float64)
    metric = torch.randn(2, prefix + patches, 4, generator=generator, dtype=torch.float64)
    r = share * (patches // 2) // 5
    found = joined(rows, match(metric, r, prefix), prefix)
    assert found.shape[1] == prefix + patches - r
    for image in range(2):
        expected = torch.stack(slow_merge(rows[image], metric[image], r, prefix))
        torch.testing.assert_close(found[image], expected)


def test_nothing_merged_is_the_host(kind: str) -> None:
    model = make_host(kind)
    torch.testing.assert_close(says(merged(model, [0] * 4), make_images()), says(model, make_images()))


def test_equal_tokens_may_merge() -> None:
    """Proportional attention: tokens that are the same merge without changing what any other token sees."""
    model = make_host()
    host = open_host(model)
    slim = open_slim(merged(model, [8, 0, 0, 0]))
    with torch.no_grad():
        x = host.embed(make_images(2))
        x[:, 2::2] = x[:, 1:-1:2]  # patches in pairs, an even token and the odd one before it
        expected = x
        for block in host.blocks:
            expected = block(expected)
        found = states_of(slim, x)[-1].tensor()
    assert found.shape[1] == 9
    torch.testing.assert_close(found[:, 0], expected[:, 0])


def test_sizes_count_what_merged() -> None:
    slim = merged(make_host(), [4, 3, 2, 1])
    host, sources = open_slim(slim), ps.sources(slim, make_images())
    with torch.no_grad():
        states = states_of(host, host.embed(make_images()))
    for state, rows, tokens in zip(states, sources, (13, 10, 8, 7), strict=True):
        assert isinstance(state, Tokens)
        assert state.size is not None
        assert state.size.shape == (3, tokens)
        assert torch.equal(state.size[:, 1:], rows.sum(dim=2))
        assert bool((rows.sum(dim=1) == 1).all())  # every patch is in just one token
        assert bool((state.size[:, 0] == 1).all())


def test_proportional_attention_repeats_keys() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    size = torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0]])
    often = size[0].long()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(often, dim=2), v.repeat_interleave(often, dim=2)
    )
    torch.testing.assert_close(sized(size)(q, k, v, scale=0.5, dropout=0.0, fused=True), expected)


def test_the_ratio_decides_r() -> None:
    """The fewest merges within the ratio, r in the first blocks and r - 1 in the others."""
    ratios, fewer = (0.9, 0.7, 0.55), 0
    for ratio in ratios:
        task = task_of(make_host(), ratio=ratio)
        found, slim = made(ToMe(), task)
        r = found.detail["r"]
        assert r == sorted(r, reverse=True)
        assert max(r) - min(r) <= 1
        assert sum(r) > fewer
        fewer, less = sum(r), list(r)
        less[r.index(min(r)) - 1 if min(r) < max(r) else -1] -= 1  # the schedule before it
        assert ps.count_macs(slim) <= budget(task, ratio) < ps.count_macs(merged(make_host(), less))


def test_no_block_merges_more_than_half() -> None:
    model = make_host("registers")
    assert merged(model, [20] * 4).plan.counts == (8, 4, 2, 1)
