"""Derivatives in gates against finite differences, and what closed and open gates mean against the slim model."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from patchslim.data import as_source
from patchslim.evidence import taylor as module
from patchslim.evidence.features import Features
from patchslim.evidence.scores import exact_scores
from patchslim.evidence.taylor import GateDerivatives, probes, removal_effect
from patchslim.hosts import Host, open_host
from patchslim.plan import static_plan
from patchslim.slimmed import slim_blocks
from small import make_host, make_images, relative

IMAGES, PATCHES, PROBES, SEED, STAGE = 3, 16, 4, 5, 2
EXITS = [3, 0, 1, 3, 2, 2, 1, 0, 3, 1, 2, 3, 0, 1, 2, 1]  # the last block that computes each patch
STEP = 1e-5


class WideFeatures(Features):
    """In float64, where the host is."""

    def _compute(self, images: Tensor, layers: frozenset[int]) -> dict[int, Tensor]:
        return super()._compute(images.to(next(self.host.model.parameters()).dtype), layers)


def derivatives_of(
    host: Host, batch_size: int = 2, limit: float = 2**30, images: Tensor | None = None
) -> GateDerivatives:
    images = make_images(IMAGES) if images is None else images
    return GateDerivatives(host, WideFeatures(host, as_source(images), batch_size, limit), SEED)


def exits_of(host: Host, everything: bool = False) -> Tensor:
    """Where each patch leaves; some stay for a pool."""
    last = host.info.depth if host.info.reads_patches else host.info.depth - 1
    if everything:
        return torch.full((PATCHES,), last)
    return torch.tensor(EXITS) + (last - 3) * (torch.tensor(EXITS) == 3)


def nested(host: Host, exits: Tensor) -> list[list[int]]:
    """The patches of every block."""
    return [[i for i, last in enumerate(exits.tolist()) if last >= block] for block in range(1, host.info.depth + 1)]


@torch.no_grad()
def read_by_head(host: Host, blocks: Any, images: Tensor) -> Tensor:
    """What the head reads after some blocks: (B, F)."""
    x = host.embed(images)
    for block in blocks:
        x = block(x)
    return host.features(x).flatten(1)


def slim_read(host: Host, exits: Tensor, images: Tensor) -> Tensor:
    """What the head reads in the slim model of nested sets."""
    return read_by_head(host, slim_blocks(host, static_plan(host.info, nested(host, exits)), {}), images)


def sorted_tokens(host: Host, exits: Tensor, images: Tensor) -> tuple[Tensor, list[int], list[int]]:
    """Z_0 with the patches that stay longest first, that order, and how many each block computes."""
    order = sorted(range(PATCHES), key=lambda patch: (-int(exits[patch]), patch))
    prefix = host.info.prefix_tokens
    x = host.embed(images)[:, [*range(prefix), *(prefix + patch for patch in order)]]
    blocks = host.info.depth if host.info.reads_patches else host.info.depth - 1
    return x.detach(), order, [len(kept) for kept in nested(host, exits)[:blocks]]


@cache
def wide(kind: str) -> Host:
    """A small host in float64."""
    return open_host(make_host(kind).double().requires_grad_(False))


@pytest.mark.parametrize("everything", [True, False])
@torch.no_grad()
def test_J_is_the_central_difference_in_the_gates_and_0_for_patches_that_are_gone(kind: str, everything: bool) -> None:
    host, images = wide(kind), make_images(IMAGES).double()
    exits, generator = exits_of(host, everything), torch.Generator().manual_seed(1000 * SEED + STAGE)
    derivatives = derivatives_of(host, images=images)
    found = torch.cat([jacobian for jacobian, _ in derivatives.batches(exits, PROBES, STAGE)])
    x, order, counts = sorted_tokens(host, exits, images)
    reference = read_by_head(host, host.blocks, images).float()
    # The batches are of 2 and 1 images, and so are the dice.
    directions = torch.cat([probes(part, PROBES, generator) for part in reference.split(2)]).double()
    expected = torch.zeros(IMAGES, len(counts), PATCHES, PROBES, dtype=torch.float64)
    for block, kept in enumerate(counts):
        for place in range(kept):
            read = []
            for sign in (1, -1):
                gates = [torch.ones(IMAGES, count, dtype=torch.float64) for count in counts]
                gates[block][:, place] += sign * STEP
                read.append(derivatives._readout(x, gates))
            slope = (read[0] - read[1]) / (2 * STEP)
            expected[:, block, order[place]] = torch.einsum("bf,bfk->bk", slope, directions)
    assert found.shape == expected.shape
    assert relative(found.double(), expected) < 1e-5
    for block in range(len(counts)):
        gone = exits <= block
        assert not found[:, block, gone].any()
        assert bool(found[:, block, ~gone].abs().sum(dim=-1).min() > 0) or kind in ("mean", "lv")


def test_r_is_how_far_the_slim_model_is_from_the_host(kind: str) -> None:
    host, images = wide(kind), make_images(IMAGES).double()
    exits, generator = exits_of(host), torch.Generator().manual_seed(1000 * SEED + STAGE)
    found = torch.cat([residual for _, residual in derivatives_of(host, images=images).batches(exits, PROBES, STAGE)])
    reference = read_by_head(host, host.blocks, images)
    directions = torch.cat([probes(part, PROBES, generator) for part in reference.float().split(2)]).double()
    expected = torch.einsum("bf,bfk->bk", slim_read(host, exits, images) - reference, directions)
    assert relative(found.double(), expected) < 1e-5
    whole = derivatives_of(host, images=images).batches(exits_of(host, everything=True), PROBES, STAGE)
    assert all(float(residual.abs().max()) < 1e-5 for _, residual in whole)


@pytest.mark.parametrize("everything", [True, False])
@torch.no_grad()
def test_open_gates_give_the_slim_models_readout(kind: str, everything: bool) -> None:
    host, images = wide(kind), make_images(IMAGES).double()
    exits = exits_of(host, everything)
    x, _, counts = sorted_tokens(host, exits, images)
    gates = [torch.ones(IMAGES, count, dtype=torch.float64) for count in counts]
    assert relative(derivatives_of(host)._readout(x, gates), slim_read(host, exits, images)) < 1e-12


@torch.no_grad()
def test_closing_a_patchs_gates_from_a_block_on_removes_it_there(kind: str) -> None:
    host, images = wide(kind), make_images(IMAGES).double()
    exits = exits_of(host)
    x, order, counts = sorted_tokens(host, exits, images)
    for patch, block in [(0, 3), (3, 1), (8, int(exits[8])), (4, 2), (2, 1)]:  # no longer computed in this block
        gates = [torch.ones(IMAGES, count, dtype=torch.float64) for count in counts]
        for layer in range(block, int(exits[patch]) + 1):
            gates[layer - 1][:, order.index(patch)] = 0
        fewer = exits.clone()
        fewer[patch] = block - 1
        assert relative(derivatives_of(host)._readout(x, gates), slim_read(host, fewer, images)) < 1e-12
        assert relative(slim_read(host, fewer, images), slim_read(host, exits, images)) > 1e-6


def test_log_scores_are_logs_of_shares_of_the_removal_effect(kind: str) -> None:
    host = open_host(make_host(kind).requires_grad_(False))
    found = derivatives_of(host).log_scores()
    assert found.shape == (IMAGES, 4, PATCHES)
    scored = 4 if host.info.reads_patches else 3
    assert torch.allclose(found[:, :scored].logsumexp(dim=2), torch.zeros(IMAGES, scored), atol=1e-5)
    assert not found[:, scored:].any()
    parts = derivatives_of(host).batches(exits_of(host, everything=True), module.SCORE_PROBES, 0)
    effect = torch.cat([removal_effect(jacobian) for jacobian, _ in parts])
    assert torch.allclose(found[:, :scored].exp(), effect / effect.sum(dim=2, keepdim=True), atol=1e-6)
    assert torch.equal(found, exact_scores(host, derivatives_of(host).features, (12, 7, 4, 0), "taylor", SEED))


def test_many_probes_give_the_effect_along_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are an estimate of ‖Σ J‖² over the whole readout, and closer the more they are."""
    host, images = wide("class"), make_images(2).double()
    exits = exits_of(host, everything=True)
    x, _, counts = sorted_tokens(host, exits, images)
    gates = [torch.ones(2, count, dtype=torch.float64).requires_grad_() for count in counts]
    read = derivatives_of(host)._readout(x, gates)
    rows = [torch.autograd.grad(read[:, k].sum(), gates, retain_graph=True) for k in range(read.shape[1])]
    whole = removal_effect(torch.stack([torch.stack(row, dim=1) for row in rows], dim=-1))
    whole = whole / whole.sum(dim=2, keepdim=True)
    errors = []
    for count in (4, 64, 512):
        monkeypatch.setattr(module, "SCORE_PROBES", count)
        errors.append(relative(derivatives_of(host, images=images).log_scores()[:, :3].exp().double(), whole))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.12


@pytest.mark.parametrize("kind", ["class", "mean"])
def test_scores_do_not_depend_on_batches_the_bound_or_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image takes as many dice whatever the others, in the order of the images."""
    host, images = open_host(make_host(kind).requires_grad_(False)), make_images(5)
    whole = derivatives_of(host, 5, images=images).log_scores()
    for batch_size, limit in ((2, 2.0**30), (2, 0.0), (1, 0.0)):
        parts = derivatives_of(host, batch_size, limit, images).log_scores()
        assert torch.allclose(whole, parts, atol=1e-3)
    monkeypatch.setattr(module, "MAP_BYTES", 1)
    alone = derivatives_of(host, 5, images=images)
    assert alone.chunk == 1
    assert torch.allclose(whole, alone.log_scores(), atol=1e-3)


def test_the_same_seed_gives_the_same_scores_and_nobody_elses_dice() -> None:
    host = open_host(make_host().requires_grad_(False))
    before = torch.random.get_rng_state()
    first, again = (derivatives_of(host).log_scores() for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = GateDerivatives(host, derivatives_of(host).features, SEED + 1).log_scores()
    assert not torch.equal(first, other)


def test_no_weight_keeps_a_gradient() -> None:
    model: nn.Module = make_host()
    derivatives_of(open_host(model)).log_scores()
    assert all(parameter.grad is None for parameter in model.parameters())
