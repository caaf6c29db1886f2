"""Likeness against a brute-force average over images, and groups that are the same for every image."""

import itertools
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
from patchslim.plan import build_plan
from patchslim.search.features import Features
from patchslim.search.groups import Likeness, likeness, static_groups
from patchslim.slim.merge import FLOOR
from small import make_host, make_images, relative

DEPTH, PATCHES = 4, 16


def found_on(model: Any, images: Tensor, batch_size: int = 3) -> Likeness:
    host = open_host(model)
    return likeness(host, Features(host, as_source(images), batch_size, 2**30))


def slow_likeness(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Image by image, block by block, pair by pair, with the host's own blocks."""
    prefix = model.num_prefix_tokens
    similarity, importance = torch.zeros(DEPTH, PATCHES, PATCHES), torch.zeros(DEPTH, PATCHES)
    for image in images.split(1):
        x = open_host(model).embed(image)
        for layer, block in enumerate(model.blocks):
            attn = block.attn
            qkv = attn.qkv(block.norm1(x)).reshape(x.shape[1], 3, attn.num_heads, attn.head_dim)
            q, k = attn.q_norm(qkv[:, 0]), attn.k_norm(qkv[:, 1])  # (tokens, H, d_h)
            keys = k.flatten(1)[prefix:]
            for i, j in itertools.product(range(PATCHES), repeat=2):
                similarity[layer, i, j] += F.cosine_similarity(keys[i], keys[j], dim=0) / len(images)
            for head in range(attn.num_heads):
                row = (attn.scale * k[:, head] @ q[0, head]).softmax(dim=0)
                importance[layer] += row[prefix:] * PATCHES / attn.num_heads / len(images)
            x = block(x)
    return similarity, importance


@torch.no_grad()
def test_likeness_is_the_average_over_images(kind: str) -> None:
    model, images = make_host(kind), make_images(3)
    found = found_on(model, images, batch_size=2)
    similarity, importance = slow_likeness(model, images)
    assert torch.allclose(found.similarity, similarity, atol=1e-5)
    if not ps.inspect(model).reads_class:
        assert found.importance is None
    else:
        assert found.importance is not None
        assert torch.allclose(found.importance, importance, atol=1e-5)


def test_likeness_does_not_depend_on_batches_or_the_cache() -> None:
    model, images = make_host(), make_images(5)
    whole = found_on(model, images, batch_size=5)
    host = open_host(model)
    other = likeness(host, Features(host, as_source(images), 2, 0.0))
    assert whole.importance is not None
    assert other.importance is not None
    assert torch.allclose(whole.similarity, other.similarity, atol=1e-5)
    assert torch.allclose(whole.importance, other.importance, atol=1e-5)


@st.composite
def falling(draw: st.DrawFn) -> list[int]:
    """Counts that pairs can reach, the last one maybe 0."""
    counts, left = [], PATCHES
    for _ in range(DEPTH):
        left = draw(st.integers(max(1, left // 2), left))
        counts.append(left)
    return [*counts[:-1], draw(st.sampled_from([counts[-1], 0]))]


def random_likeness(seed: int, weighed: bool) -> Likeness:
    generator = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(DEPTH, PATCHES, 5, generator=generator), dim=-1)
    importance = torch.rand(DEPTH, PATCHES, generator=generator) * 2
    return Likeness(keys @ keys.transpose(1, 2), importance if weighed else None)


def slow_groups(found: Likeness, counts: list[int], drops: list[int]) -> tuple[list[list[int]], list[int]]:
    """One pair at a time: every second patch and its nearest, those of least weight times distance first."""
    alive, into, kept = list(range(PATCHES)), [-1] * PATCHES, []
    for layer, count in enumerate(counts):
        pairs = []
        for mover in alive[::2] if 0 < count < len(alive) else []:
            target = max(alive[1::2], key=lambda other: float(found.similarity[layer, mover, other]))
            weight = 1.0 if found.importance is None else float(found.importance[layer, mover]) + FLOOR
            pairs.append((weight * (1 - float(found.similarity[layer, mover, target])), mover, target))
        pairs.sort()
        for _, mover, target in pairs[: len(alive) - count]:
            into[mover] = -1 if layer + 1 in drops else target
        movers = [mover for _, mover, _ in pairs]
        stay = [*movers[len(alive) - count :], *alive[1::2]] if pairs else alive
        alive = stay if count else []
        kept.append(sorted(alive))
    return kept, into


@settings(max_examples=80, deadline=None)
@given(
    counts=falling(),
    drops=st.sets(st.integers(1, DEPTH)).map(sorted),
    seed=st.integers(0, 100),
    weighed=st.booleans(),
)
def test_groups_are_nested_and_every_removed_patch_joins_one_that_stays(
    counts: list[int], drops: list[int], seed: int, weighed: bool
) -> None:
    found = random_likeness(seed, weighed)
    kept, into = static_groups(found, counts, drops)
    assert [len(block) for block in kept] == counts
    alive = set(range(PATCHES))
    for layer, block in enumerate(kept, start=1):
        assert sorted(block) == block
        assert set(block) <= alive
        for patch in alive - set(block):
            assert into[patch] in block if block and layer not in drops else into[patch] == -1
        alive = set(block)
    assert all(into[patch] == -1 for patch in alive)
    assert (kept, into) == slow_groups(found, counts, drops)


def test_groups_make_a_plan_for_every_host(kind: str) -> None:
    model, images = make_host(kind), make_images(4)
    info = ps.inspect(model)
    counts = [12, 7, 5, 3 if info.reads_patches else 0]
    kept, into = static_groups(found_on(model, images), counts, (2,))
    plan = build_plan(info, removed="merge", kept=kept, into=into)
    assert list(plan.counts) == counts
    assert sum(target >= 0 for target in into) == PATCHES - (counts[3] or counts[2]) - 5  # block 2 drops its five


@pytest.mark.parametrize(("mover", "target"), [(4, 9), (0, 15), (14, 3)])
def test_patches_that_look_the_same_merge_first(mover: int, target: int) -> None:
    model: Any = make_host("mean")
    with torch.no_grad():
        model.pos_embed.zero_()  # a patch is what it shows, wherever it is
    images = make_images(4)
    cells = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (B, 3, 4, 4, 8, 8), a view
    cells[:, :, mover // 4, mover % 4] = cells[:, :, target // 4, target % 4]
    found = found_on(model, images)
    assert torch.allclose(found.similarity[:, mover, target], torch.ones(DEPTH))
    kept, into = static_groups(found, [15, 15, 15, 15])
    assert into[mover] == target
    assert all(block == [patch for patch in range(PATCHES) if patch != mover] for block in kept)
    # One patch stands for two of the same: the others compute what they did.
    slim: Any = ps.apply(model, build_plan(ps.inspect(model), removed="merge", kept=kept, into=into))
    with torch.no_grad():
        assert relative(slim.forward_features(images), model.forward_features(images)[:, kept[0]]) < 1e-5
