"""One pruned block against the masked oracle and the whole host; similarity against a loop; orders against scores."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from figures.one_block import Cut, hits_of, kept_of, logits_after, macs_ratio, pruned_block
from figures.orders import effect_order, lone_scores, order_of
from figures.similarity import by_block, patch_similarity
from figures.work import Work
from flops import unfused
from hf_small import FEW, make_hf
from patchslim.data import as_source, tensor_images
from patchslim.hosts import Host, answer_of, open_host
from patchslim.plan import make_plan
from patchslim.scores.effect import removal_effect
from patchslim.search.effects import Effects
from patchslim.search.exact import exact_scores
from patchslim.search.features import Features
from patchslim.search.greedy import PROBES
from patchslim.slim.masked import masked_logits
from small import make_host, make_images, relative

ORDER, PATCHES, DEPTH = [5, 3, 14, 0, 9, 1, 12, 7, 2, 15, 4, 10, 6, 13, 8, 11], 16, 4


def features_of(host: Host, images: Tensor) -> Features:
    return Features(host, as_source(images), 2, 2**30)


@torch.no_grad()
def lone_logits(model: nn.Module, layer: int, count: int, removed: str, images: Tensor) -> Tensor:
    """The figures' way: the blocks before as they are, one pruned, the blocks after."""
    host = open_host(model)
    x = host.embed(images)
    for block in host.blocks[: layer - 1]:
        x = block(x, None)
    return logits_after(host, layer, pruned_block(host, layer, x, torch.tensor(ORDER), count, removed))


@torch.no_grad()
def oracle(model: nn.Module, layer: int, count: int, removed: Any, images: Tensor) -> Tensor:
    kept = [range(PATCHES) if block < layer else ORDER[:count] for block in range(1, DEPTH + 1)]
    return masked_logits(model, make_plan(ps.inspect(model), [list(block) for block in kept], removed), images)


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 3, 4])
def test_a_patch_that_leaves_is_masked_from_there_on(kind: str, layer: int) -> None:
    model, images = make_host(kind), make_images()
    assert relative(lone_logits(model, layer, 6, "drop", images), oracle(model, layer, 6, "drop", images)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 2, 4])
def test_a_skipped_block_is_equation_2_with_one_mask(kind: str, layer: int) -> None:
    model, images = make_host(kind), make_images()
    host = open_host(model)
    prefix, x = host.info.prefix_tokens, host.embed(images)
    mask = torch.ones(prefix + PATCHES, 1, dtype=torch.bool)
    mask[[prefix + patch for patch in ORDER[6:]]] = False
    for number, block in enumerate(host.blocks, start=1):
        out = block(x, None)
        x = torch.where(mask, out, x) if number == layer else out
    found = lone_logits(model, layer, 6, "skip", images)
    assert relative(found, host.logits(x)) < 1e-5
    if layer == DEPTH:  # no block follows, so carried patches are skipped ones
        assert relative(found, oracle(model, layer, 6, "carry", images)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("removed", ["skip", "drop"])
def test_everything_kept_is_the_host(kind: str, removed: str) -> None:
    model, images = make_host(kind), make_images()
    assert relative(lone_logits(model, 2, PATCHES, removed, images), model(images)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_models_of_transformers_are_pruned_alike(name: str) -> None:
    model, images = make_hf(name), make_images()
    assert relative(lone_logits(model, 2, PATCHES, "skip", images), answer_of(model(images))) < 1e-5
    assert relative(lone_logits(model, 2, 6, "drop", images), oracle(model, 2, 6, "drop", images)) < 1e-5
    assert len(by_block(open_host(model), images)) == 1 + 3 * DEPTH


def test_shared_features_give_what_whole_networks_give() -> None:
    model, images = make_host(), make_images(40)
    cuts = [Cut("random", 0, way, rate) for way in ("skip", "drop") for rate in (0.3, 0.7)]
    with torch.no_grad():
        wanted = {cut: lone_logits(model, 2, kept_of(ps.inspect(model), cut.rate), cut.removed, images) for cut in cuts}
        labels = wanted[cuts[3]].argmax(dim=1)  # the last cut gets all of them right, the others some
    labels[::5] = -1
    work = Work(model, val=tensor_images(images, labels), batch_size=16)
    found = hits_of(work, 2, cuts, {("random", 0): ORDER})
    for cut, right in zip(cuts, found, strict=True):
        assert torch.equal(right, (wanted[cut].argmax(dim=1) == labels)[labels >= 0])
    assert found[3].all()
    assert not found[2].all()


@torch.no_grad()
@pytest.mark.parametrize("removed", ["skip", "drop"])
@pytest.mark.parametrize("layer", [1, 3])
def test_macs_are_torchs(removed: str, layer: int) -> None:
    model, cut = unfused(), Cut("random", 0, removed, 0.6)
    info = ps.inspect(model)
    with FlopCounterMode(display=False) as counter:
        lone_logits(model, layer, kept_of(info, cut.rate), removed, make_images(1))
    assert counter.get_total_flops() == pytest.approx(
        2 * macs_ratio(info, layer, cut) * ps.count_macs(model), rel=1e-12
    )


@settings(max_examples=30)
@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 1000))
def test_similarity_is_the_mean_over_all_pairs(patches: int, width: int, seed: int) -> None:
    x = torch.randn(3, patches, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for own, found in zip(x, patch_similarity(x), strict=True):
        pairs = [(i, j) for i in range(patches) for j in range(patches) if i != j]
        loop = [float(F.cosine_similarity(own[i], own[j], dim=0)) for i, j in pairs]
        assert float(found) == pytest.approx(sum(loop) / len(loop), abs=1e-9)


def test_similarity_is_of_what_the_host_computes(kind: str) -> None:
    model, images = make_host(kind), make_images()
    host, seen = open_host(model), {"block output": list[Tensor](), "attention output": [], "attention heads": []}
    blocks: list[Any] = list(host.blocks)
    for block in blocks:
        block.register_forward_hook(lambda part, given, out: seen["block output"].append(out))
        block.attn.register_forward_hook(lambda part, given, out: seen["attention output"].append(out))
        block.attn.norm.register_forward_pre_hook(lambda part, given: seen["attention heads"].append(given[0]))
    with torch.no_grad():
        model(images)
    found = by_block(open_host(make_host(kind)), images)
    assert len(found) == 1 + 3 * DEPTH
    for (of, block), own in found.items():
        if block:
            wanted = patch_similarity(seen[of][block - 1][:, host.info.prefix_tokens :])
            torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", ["impact", "attention"])
def test_scores_are_those_of_each_image_averaged(score: Any) -> None:
    host, images = open_host(make_host()), make_images(5)
    features = features_of(host, images)
    each = exact_scores(host, features, (PATCHES,) * DEPTH, score).exp()
    for layer in (1, 2, 3):
        found = lone_scores(host, features, layer, score)
        torch.testing.assert_close(found.float(), each[:, layer - 1].mean(dim=0), rtol=1e-4, atol=1e-6)
        order = order_of(host, features, layer, score, [8])
        assert found[order].tolist() == sorted(found.tolist(), reverse=True)


def test_the_effect_takes_the_least_first_and_goes_on_from_there() -> None:
    host, images = open_host(make_host().requires_grad_(False)), make_images(5)
    features = features_of(host, images)
    layer, everything = 2, torch.full((PATCHES,), DEPTH - 1)
    parts = [jacobian for jacobian, _ in Effects(host, features, 0).batches(everything, PROBES, 0)]
    effect = removal_effect(torch.cat(parts)).sum(dim=0)[layer - 1]
    one, many = (effect_order(host, features, layer, counts) for counts in ([15], [15, 10, 4]))
    assert one[-1] == many[-1] == int(effect.argmin())
    assert sorted(many) == list(range(PATCHES))
    assert many[:4] == sorted(many[:4])  # those that stay


def test_patches_that_nobody_reads_change_nothing() -> None:
    model, images = make_host().requires_grad_(False), make_images(9)
    labels = model(images).argmax(dim=1)
    work = Work(model, val=tensor_images(images, labels))
    host = work.host
    order = effect_order(host, features_of(host, images), DEPTH, [4])
    cuts = [Cut("effect", 0, way, 0.75) for way in ("skip", "drop")]
    assert all(right.all() for right in hits_of(work, DEPTH, cuts, {("effect", 0): order}))
