"""Exact scores of every image's own patches: against all paths of heads, and against a slow loop over images."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.evidence.features import Features
from patchslim.evidence.scores import exact_scores, impact, path_moment
from patchslim.hosts import Host, open_host
from small import make_host, make_images, relative

PATCHES = 16


def scores_of(model: Any, images: Tensor, counts: tuple[int, ...], score: Any = "impact") -> Tensor:
    host = open_host(model)
    return exact_scores(host, Features(host, as_source(images), 2, 2**30), counts, score)


def counts_of(model: Any, *counts: int) -> tuple[int, ...]:
    """The counts, the last one 0 where no patch is read."""
    return counts if ps.inspect(model).reads_patches else (*counts[:-1], 0)


def host_features(host: Host, image: Tensor) -> list[Tensor]:
    """Z_0 … Z_L by running the host."""
    found = [host.embed(image)]
    for block in host.blocks:
        found.append(block(found[-1]))
    return found


def slow_scores(host: Host, image: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Algorithm 1 for one image (1, C, H, W), at full shape, its masks being sets of its own patches: (depth, N)."""
    info, prefix = host.info, host.info.prefix_tokens
    z = host_features(host, image)
    kept: dict[int, set[int]] = {} if info.reads_patches else {info.depth: set()}
    scores = torch.zeros(info.depth, PATCHES)
    for layer in range(info.depth - len(kept), 0, -1):
        x, alive, maps = z[layer], set(range(PATCHES)), []
        for above in range(layer + 1, info.depth + 1):
            maps.append(full_map(host, above, x, alive) * mask_of(host, kept[above])[:, None])
            x = masked_block(host, above, x, kept[above], alive)
            alive = kept[above]
        rows = tokens_of(host, alive)
        readout = torch.zeros(1, info.tokens, info.tokens)
        readout[0, torch.tensor(rows)[:, None], torch.tensor(rows)] = host.readout_moment(x[:, rows])[0]
        moment = path_moment(maps[::-1], readout).diagonal(dim1=1, dim2=2)
        block = host.blocks[layer - 1]
        own = host.attention(block, z[layer - 1], info.tokens)
        score = impact(moment, own, host.normed(block, z[layer - 1]))[0, prefix:]
        scores[layer - 1] = score / score.sum()
        best = sorted(range(PATCHES), key=lambda patch: -float(scores[layer - 1, patch]))
        others = [patch for patch in best if patch not in kept.get(layer + 1, set())]
        kept[layer] = kept.get(layer + 1, set()) | set(others[: counts[layer - 1] - len(kept.get(layer + 1, set()))])
        assert len(kept[layer]) == counts[layer - 1]
    return scores


def tokens_of(host: Host, patches: set[int]) -> list[int]:
    """The prefix and some patches, by token number."""
    prefix = host.info.prefix_tokens
    return [*range(prefix), *(prefix + patch for patch in sorted(patches))]


def mask_of(host: Host, patches: set[int]) -> Tensor:
    """Those tokens as a boolean mask."""
    mask = torch.zeros(host.info.tokens, dtype=torch.bool)
    mask[tokens_of(host, patches)] = True
    return mask


def full_map(host: Host, layer: int, x: Tensor, alive: set[int]) -> Tensor:
    """Attention among living tokens, at full shape: (1, H, tokens, tokens), zero for the dead."""
    rows = torch.tensor(tokens_of(host, alive))
    small = host.attention(host.blocks[layer - 1], x[:, rows], len(rows))
    full = torch.zeros(1, host.info.heads, host.info.tokens, host.info.tokens)
    full[:, :, rows[:, None], rows] = small
    return full


def masked_block(host: Host, layer: int, x: Tensor, kept: set[int], alive: set[int]) -> Tensor:
    """The host's own block with dead keys masked; rows outside `kept` stay as they were."""
    n = host.info.tokens
    out = host.blocks[layer - 1](x, attn_mask=mask_of(host, alive).expand(1, 1, n, n))
    return torch.where(mask_of(host, kept)[:, None], out, x)


@torch.no_grad()
def test_with_everything_kept_equals_all_paths_of_heads() -> None:
    for kind in ("class", "mean"):
        model: Any = make_host(kind, num_heads=2)
        host, images = open_host(model), make_images(3)
        prefix = host.info.prefix_tokens
        found = scores_of(model, images, counts_of(model, 16, 16, 16, 16))
        read = torch.zeros(host.info.tokens)
        read[0 if kind == "class" else slice(None)] = 1.0
        for number, image in enumerate(images.split(1)):
            z = host_features(host, image)
            maps = [host.attention(block, x, x.shape[1])[0] for block, x in zip(host.blocks, z, strict=False)]
            for layer in range(1, 5 if kind == "mean" else 4):
                score = torch.zeros(host.info.tokens)
                for path in itertools.product(range(2), repeat=4 - layer):
                    row = read
                    for above in range(4, layer, -1):
                        row = row @ maps[above - 1][path[above - layer - 1]]
                    for head in range(2):
                        own = maps[layer - 1][head] @ host.normed(host.blocks[layer - 1], z[layer - 1])[0].abs()
                        score += row.square() * own.square().sum(dim=1)
                expected = score[prefix:] / score[prefix:].sum()
                assert relative(found[number, layer - 1].exp(), expected) < 1e-4


@pytest.mark.parametrize("counts", [(16, 16, 16, 16), (12, 7, 4, 3), (16, 9, 9, 2), (5, 5, 1, 1)])
@torch.no_grad()
def test_equals_the_slow_loop_with_each_images_own_order(kind: str, counts: tuple[int, ...]) -> None:
    model, images = make_host(kind), make_images(3)
    host, counts = open_host(model), counts_of(model, *counts)
    found = scores_of(model, images, counts)
    scored = host.info.depth if host.info.reads_patches else host.info.depth - 1
    for number, image in enumerate(images.split(1)):
        expected = slow_scores(host, image, counts)
        assert relative(found[number, :scored].exp(), expected[:scored]) < 1e-4


def test_images_choose_differently_and_pruning_changes_scores() -> None:
    """Else the loops above could agree by having nothing of an image's own to follow."""
    model, images = make_host(), make_images(3)
    whole, pruned = (scores_of(model, images, counts) for counts in ((16, 16, 16, 0), (12, 7, 4, 0)))
    best = {frozenset(row.topk(4).indices.tolist()) for row in pruned[:, 2]}
    assert len(best) > 1
    assert torch.equal(whole[:, 2], pruned[:, 2])  # nothing above block 3 has changed
    assert relative(pruned[:, 0].exp(), whole[:, 0].exp()) > 1e-2


@pytest.mark.parametrize("score", ["impact", "attention"])
def test_scores_are_shares(kind: str, score: Any) -> None:
    model, images = make_host(kind), make_images(5)
    counts = counts_of(model, 12, 7, 4, 3)
    found = scores_of(model, images, counts, score)
    assert found.shape == (5, 4, PATCHES)
    scored = 4 if counts[-1] else 3
    assert torch.allclose(found[:, :scored].exp().sum(dim=2), torch.ones(5, scored), atol=1e-5)


@torch.no_grad()
def test_attention_scores_are_column_norms_of_the_hosts_maps(kind: str) -> None:
    model, images = make_host(kind), make_images(3)
    host = open_host(model)
    counts = counts_of(model, 12, 7, 4, 3)
    found = scores_of(model, images, counts, "attention")
    for number, image in enumerate(images.split(1)):
        for layer in range(4 if counts[-1] else 3):
            x = host_features(host, image)[layer]
            attention = host.attention(host.blocks[layer], x, x.shape[1])[0]  # (H, n, n)
            columns = torch.stack([attention[:, :, token].norm() for token in range(x.shape[1])])
            patches = columns[host.info.prefix_tokens :]
            assert relative(found[number, layer].exp(), patches / patches.sum()) < 1e-5


def test_scores_do_not_depend_on_batches_or_the_bound_on_memory() -> None:
    model, images = make_host(), make_images(5)
    host = open_host(model)
    whole = exact_scores(host, Features(host, as_source(images), 5, 2**30), (12, 7, 4, 0), "impact")
    parts = exact_scores(host, Features(host, as_source(images), 2, 0.0), (12, 7, 4, 0), "impact")
    assert torch.allclose(whole, parts, atol=1e-4)
