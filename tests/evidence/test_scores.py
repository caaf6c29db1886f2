"""Scores of a block in a network that is slimmed above it, against all paths of heads at full shape; and the plain
scores, each by its defining property."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from patchslim.data import as_source
from patchslim.evidence.features import Features
from patchslim.evidence.network import Network, Partial
from patchslim.evidence.scores import (
    Score,
    attention_norm,
    radial_scores,
    random_scores,
    score_block,
    spread_scores,
)
from patchslim.hosts import open_host
from small import make_host, make_images, relative

TOKENS, HEADS = 17, 2
ORDER = [5, 9, 2, 11, *[patch for patch in range(16) if patch not in (5, 9, 2, 11)]]
KEPT = {2: {5, 9, 2, 11}, 3: {5, 9}, 4: set[int]()}  # above block 1


def half_slimmed() -> Partial:
    """Blocks 2 to 4 decided."""
    return Partial(ORDER, {layer: len(kept) for layer, kept in KEPT.items()})


def scores_of(model: Any, images: Tensor, carry: bool, score: Score = "impact") -> Tensor:
    host = open_host(model)
    features = Features(host, as_source(images), 2, 2**30)
    features.focus((0, 1))
    return score_block(Network(host, carry), features, half_slimmed(), 1, score, seed=3)


def mask(patches: set[int]) -> Tensor:
    """The class token and some patches."""
    return torch.tensor([token == 0 or token - 1 in patches for token in range(TOKENS)])


def attention(block: Any, x: Tensor, alive: set[int]) -> Tensor:
    """P of all tokens to those that are alive: (B, H, n, n)."""
    attn = block.attn
    q, k, _ = attn.qkv(block.norm1(x)).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    logits: Tensor = (q * attn.scale @ k.transpose(-2, -1)).masked_fill(~mask(alive), -torch.inf)
    return logits.softmax(-1)


@pytest.mark.parametrize("carry", [False, True])
@torch.no_grad()
def test_impact_equals_brute_force_on_the_half_slimmed_network(carry: bool) -> None:
    model: Any = make_host(num_heads=HEADS)
    images, everything, maps = make_images(3), set(range(16)), []
    z0: Tensor = model._pos_embed(model.patch_embed(images))
    x, alive = model.blocks[0](z0), everything
    for layer in (2, 3, 4):
        block, row = model.blocks[layer - 1], mask(KEPT[layer])[:, None]
        maps.append(attention(block, x, alive) * row)
        x = torch.where(row, block(x, attn_mask=mask(alive).expand(1, 1, TOKENS, TOKENS)), x)
        alive = everything if carry else KEPT[layer]
    own = attention(model.blocks[0], z0, everything) @ model.blocks[0].norm1(z0).abs()[:, None]
    total = torch.zeros(16)
    for image in range(3):
        score = torch.zeros(TOKENS)
        for path in itertools.product(range(HEADS), repeat=3):
            a = maps[2][image, path[2]] @ maps[1][image, path[1]] @ maps[0][image, path[0]]
            score += a[0].square() * own[image].square().sum((0, 2))  # row 0: the head reads the class token
        total += score[1:] / score[1:].sum() / 3
    assert relative(scores_of(model, images, carry).float(), total) < 1e-4


@torch.no_grad()
def test_attention_is_the_blocks_own_averaged_over_images() -> None:
    model: Any = make_host(num_heads=HEADS)
    images = make_images(3)
    columns = attention(model.blocks[0], model._pos_embed(model.patch_embed(images)), set(range(16)))
    norms = columns[..., 1:].square().sum(dim=(1, 2)).sqrt()
    expected = (norms / norms.sum(dim=1, keepdim=True)).mean(dim=0)
    assert relative(scores_of(model, images, carry=False, score="attention").float(), expected) < 1e-5


def test_scores_that_no_image_is_asked_for() -> None:
    model, images = make_host(), make_images(1)
    assert torch.equal(scores_of(model, images, False, "radial"), radial_scores((4, 4)))
    assert torch.equal(scores_of(model, images, False, "spread"), spread_scores((4, 4)))
    assert torch.equal(scores_of(model, images, False, "random"), random_scores(16, 3001))  # another in every block


def test_the_papers_attn_is_the_column_norm() -> None:
    attention = torch.rand(2, 3, 4, 4)
    expected = [[float(attention[b, :, :, i].norm()) for i in range(4)] for b in range(2)]
    assert torch.allclose(attention_norm(attention), torch.tensor(expected))


def test_random_is_seeded() -> None:
    assert torch.equal(random_scores(50, 3), random_scores(50, 3))
    assert not torch.equal(random_scores(50, 3), random_scores(50, 4))


def test_radial_keeps_the_centre_longest() -> None:
    scores = radial_scores((4, 6)).reshape(4, 6)
    assert torch.equal(scores, scores.flip(0))
    assert torch.equal(scores, scores.flip(1))
    assert float(scores[1, 2]) == float(scores.max())
    assert float(scores[0, 0]) == float(scores.min())


def test_spread_is_a_farthest_point_order() -> None:
    height, width = 5, 7
    order = spread_scores((height, width)).argsort(descending=True).tolist()
    assert sorted(order) == list(range(35))
    places = [(i // width, i % width) for i in range(35)]

    def gap(i: int, chosen: list[int]) -> float:
        return min((places[i][0] - places[j][0]) ** 2 + (places[i][1] - places[j][1]) ** 2 for j in chosen)

    for k in range(1, 35):
        best = max(gap(i, order[:k]) for i in range(35) if i not in order[:k])
        assert gap(order[k], order[:k]) == best
