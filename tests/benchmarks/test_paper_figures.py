"""The paper's figures: one pruned block against the masked reference, similarity against loops, orders against scores,
and the command on the digits model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from benchmarks.paper.figures.blocks import (
    Cut,
    hits_of,
    kept_of,
    logits_after,
    lone_scores,
    macs_ratio,
    order_of,
    pruned_block,
    taylor_order,
)
from benchmarks.paper.figures.draw import FIGURES
from benchmarks.paper.figures.similarity import by_block, patch_similarity
from benchmarks.paper.figures.work import Work
from benchmarks.rows import Row
from flops import unfused
from patchslim.data import as_source, tensor_images
from patchslim.evidence.features import Features
from patchslim.evidence.scores import exact_scores
from patchslim.evidence.taylor import GateDerivatives, removal_effect
from patchslim.hosts import Host, open_host
from patchslim.plan import static_plan
from patchslim.search.greedy import PROBES
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
def test_a_patch_that_leaves_is_masked_from_there_on(kind: str) -> None:
    model, images = make_host(kind), make_images()
    for layer in (1, 3, 4):
        kept = [list(range(PATCHES)) if block < layer else ORDER[:6] for block in range(1, DEPTH + 1)]
        wanted = ps.masked_logits(model, static_plan(ps.inspect(model), kept), images)
        assert relative(lone_logits(model, layer, 6, "drop", images), wanted) < 1e-5


@torch.no_grad()
def test_a_skipped_block_is_equation_2_with_one_mask(kind: str) -> None:
    model, images = make_host(kind), make_images()
    host = open_host(model)
    prefix = host.info.prefix_tokens
    mask = torch.ones(prefix + PATCHES, 1, dtype=torch.bool)
    mask[[prefix + patch for patch in ORDER[6:]]] = False
    for layer in (1, 2, 4):
        x = host.embed(images)
        for number, block in enumerate(host.blocks, start=1):
            out = block(x, None)
            x = torch.where(mask, out, x) if number == layer else out
        assert relative(lone_logits(model, layer, 6, "skip", images), host.logits(x)) < 1e-5


def test_shared_features_give_what_whole_networks_give() -> None:
    model, images = make_host(), make_images(40)
    cuts = [Cut("random", 0, way, rate) for way in ("skip", "drop") for rate in (0.3, 0.7)]
    wanted = {cut: lone_logits(model, 2, kept_of(ps.inspect(model), cut.rate), cut.removed, images) for cut in cuts}
    labels = wanted[cuts[3]].argmax(dim=1)  # the last cut gets all of them right, the others some
    labels[::5] = -1
    work = Work("small", model, val=tensor_images(images, labels), batch_size=16)
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
    wanted = 2 * macs_ratio(info, layer, cut) * ps.count_macs(model)
    assert counter.get_total_flops() == pytest.approx(wanted, rel=1e-12)


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


def test_taylor_importance_takes_the_least_first_and_goes_on_from_there() -> None:
    host, images = open_host(make_host().requires_grad_(False)), make_images(5)
    features = features_of(host, images)
    layer, everything = 2, torch.full((PATCHES,), DEPTH - 1)
    parts = [jacobian for jacobian, _ in GateDerivatives(host, features, 0).batches(everything, PROBES, 0)]
    effect = removal_effect(torch.cat(parts)).sum(dim=0)[layer - 1]
    one, many = (taylor_order(host, features, layer, counts) for counts in ([15], [15, 10, 4]))
    assert one[-1] == many[-1] == int(effect.argmin())
    assert sorted(many) == list(range(PATCHES))
    assert many[:4] == sorted(many[:4])  # those that stay


DIGITS = ("--model", "digits_vit", "--pretrained", "--data", "digits:test", "--images", "8", "--val", "digits:test")
SMALL = (*DIGITS, "--limit", "30", "--rates", "0.5,0.9", "--blocks", "2", "--random-seeds", "0,1")


def test_every_figure_has_its_rows_its_table_and_its_picture(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("paper", "figures", *SMALL, "--tolerances", "0.05", "--ratio", "0.6", "--out", "rows")
    rows, shown = run(*words)
    by = {name: [row for row in rows if row.question == f"figure-{name}"] for name in FIGURES}
    # The host is a row of each but the first.
    assert {name: len(own) for name, own in by.items()} == {"sim": 19, "eps": 4, "even": 6, "layers": 25, "acc": 25}
    for name in FIGURES:
        assert Path(f"rows/pictures/figure_{name}_digits_vit.png").read_bytes().startswith(b"\x89PNG")
    even = {row.method: row for row in by["even"] if row.point is None}
    assert all((row.macs_ratio or 1) <= 0.6 for row in even.values() if row.method != "host")
    assert len(set((even["uniform"].patches_per_block or [])[:-1])) == 1
    # A class token is all that the head reads, so the last block's patches have nothing to lose.
    last = [row for row in by["layers"] if row.point and row.point["block"] == 6]
    assert {(row.top1, row.lost) for row in last} == {(by["layers"][0].top1, 0.0)}
    assert "| 2 | drop | 0.9 | random | 1 |" in shown

    monkeypatch.setattr("benchmarks.paper.figures.blocks.hits_of", None)  # nothing is measured anew
    again, _ = run(*words, "--resume", "--figures", "acc,layers,eps")
    assert [(row.key, row.top1) for row in again] == [(row.key, row.top1) for row in rows]
    panels = {name: FIGURES[name](by[name][1:], 50.0).axes for name in ("layers", "acc")}
    wanted = {"layers": {"50 % pruned", "90 % pruned"}, "acc": {"impact", "taylor", "random, 2 seeds"}}
    for name, drawn in panels.items():
        assert wanted[name] | {"host"} <= {line.get_label() for axes in drawn for line in axes.get_lines()}
    (own,) = (axes for axes in panels["acc"] if axes.get_title() == "block 2, this block and all later ones")
    (impact,) = (line for line in own.get_lines() if line.get_label() == "impact")
    assert impact.get_ydata().tolist() == [row.top1 for row in by["acc"] if _is(row, "impact", "drop")]


def _is(row: Row, score: str, removed: str) -> bool:
    return row.point is not None and (row.point["score"], row.point["removed"]) == (score, removed)


def test_without_weights_what_can_be_counted_is(run: Any) -> None:
    words = ("--model", "digits_vit", "--rates", "0.5", "--blocks", "2", "--out", "rows")
    rows, shown = run("paper", "figures", *words)
    found = {row.question for row in rows}
    assert found == {"figure-even", "figure-layers", "figure-acc"}
    assert {row.top1 for row in rows} == {None}
    dropped = [row.macs_ratio for row in rows if row.question == "figure-layers" and _is(row, "impact", "drop")]
    assert len(dropped) == 6
    assert dropped == sorted(dropped, key=float)  # the deeper, the less it saves
    assert [row.method for row in rows if row.question == "figure-even"] == ["host", "uniform"]
    assert shown.count(".png") == 3
