"""Static patches for the others to join: nested, of the size asked for, and by the host's own keys."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.scores import radial_scores, uniform_scores
from patchslim.scores.coverage import coverage_order
from patchslim.search import cover as module
from patchslim.search.cover import FLOOR, Cover
from patchslim.search.features import Features
from small import make_host, make_images

PATCHES, DEPTH = 16, 4


def cover_of(model: Any, images: Tensor, score: Any = "coverage", batch_size: int = 3, cache: float = 2**30) -> Cover:
    host = open_host(model)
    return Cover(host, Features(host, as_source(images), batch_size, cache), score, seed=0)


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(1, PATCHES), min_size=DEPTH, max_size=DEPTH).map(lambda n: sorted(n, reverse=True)),
    score=st.sampled_from(["coverage", "random", "radial", "uniform"]),
)
def test_sets_are_nested_and_of_the_size_asked_for(counts: list[int], score: str) -> None:
    model = make_host("mean")
    kept = cover_of(model, make_images(2), score).kept(counts)
    assert [len(block) for block in kept] == counts
    outer = set(range(PATCHES))
    for block in kept:
        assert block == sorted(block)
        assert set(block) <= outer
        outer = set(block)


@torch.no_grad()
def test_the_first_block_that_removes_goes_by_keys_and_attention_of_the_host() -> None:
    model: Any = make_host()
    images = make_images(4)
    block, x = model.blocks[1], model.blocks[0](open_host(model).embed(images))
    attn = block.attn
    qkv = attn.qkv(block.norm1(x)).reshape(len(x), x.shape[1], 3, attn.num_heads, attn.head_dim)
    keys = F.normalize(qkv[:, 1:, 1].flatten(2), dim=-1)
    heed = torch.einsum("bhd,bnhd->bhn", qkv[:, 0, 0], qkv[:, :, 1]).mul(attn.scale).softmax(dim=-1).mean(dim=1)[:, 1:]
    order = coverage_order((1 - keys @ keys.transpose(1, 2)).square(), heed * PATCHES + FLOOR)
    kept = cover_of(model, images).kept([PATCHES, 10, 10, 0])
    assert kept[0] == list(range(PATCHES))
    assert kept[1] == kept[2] == sorted(set(range(PATCHES)) - set(order[:6]))
    assert kept[3] == []


@pytest.mark.parametrize("score", ["radial", "uniform"])
def test_a_fixed_order_keeps_what_scores_most(score: str) -> None:
    model = make_host()
    scores = {"radial": radial_scores, "uniform": uniform_scores}[score](ps.inspect(model).grid)
    kept = cover_of(model, make_images(2), score).kept([9, 5, 5, 0])
    for block in kept[:3]:
        left = [patch for patch in range(PATCHES) if patch not in block]
        assert min(scores[block]) >= max(scores[left])


def test_neither_batches_nor_the_cache_change_it() -> None:
    model, images = make_host(), make_images(5)
    counts = [12, 9, 5, 0]
    wanted = cover_of(model, images, batch_size=5).kept(counts)
    assert cover_of(model, images, batch_size=2).kept(counts) == wanted
    assert cover_of(model, images, batch_size=2, cache=0.0).kept(counts) == wanted


def test_no_more_images_are_looked_at_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = make_host(), make_images(8)
    monkeypatch.setattr(module, "PAIR_BYTES", 4 * PATCHES**2 * 5)
    found = cover_of(model, images, batch_size=3)
    assert {len(keys) for keys in found.keys} == {5}
    assert found.kept([9, 6, 3, 0]) == cover_of(model, images[:5]).kept([9, 6, 3, 0])


def test_a_search_finds_patches_that_cover_and_meets_the_ratio(kind: str) -> None:
    model, images = make_host(kind), make_images(6)
    plan, tuned = ps.search(model, images, ps.SearchConfig(target_macs=0.75))
    assert (plan.select, plan.removed, plan.groups, tuned) == ("static", "merge", "own", {})
    assert plan.provenance["settings"]["score"] == "coverage"
    assert ps.count_macs(model, plan) <= 0.75 * ps.count_macs(model)
    assert plan.kept == cover_of(model, images, batch_size=6).kept(plan.counts)


def test_at_most_so_many_blocks_group() -> None:
    model, images = make_host(depth=6), make_images(4)
    plan, _ = ps.search(model, images, ps.SearchConfig(target_macs=0.7, choosing_blocks=1))
    assert len(plan.choosing) == 1
