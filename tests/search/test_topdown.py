"""Algorithm 1 against a slow, full-shape version of itself, and block tuning."""

from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.evidence.scores import radial_scores
from patchslim.hosts.base import PATCH_READOUTS
from patchslim.methods import PS, Attention, Radial, Random, Spread
from searches import assert_same, slim_by
from small import make_host, make_images, relative

PATCHES, STEP = 16, 3


def ps_with(**settings: Any) -> PS:
    """Settings for 16 patches and a handful of images."""
    return PS(**({"step": STEP, "tune_epochs": 0, "learning_rate": 1e-3} | settings))


def slimmed(model: Any, images: Tensor, method: Any, **asked: Any) -> Any:
    return slim_by(model, images, method, batch_size=4, **asked)


class SlowSearch:
    """Algorithm 1 without tuning, straight from the paper, on masks at full shape."""

    def __init__(self, model: Any, images: Tensor, scores: list[float], tolerance: float, carry: bool) -> None:
        self.model, self.prefix, self.carry = model, model.num_prefix_tokens, carry
        self.scores, self.tolerance, self.everything = scores, tolerance, set(range(PATCHES))
        self.z = [model.norm_pre(model._pos_embed(model.patch_embed(images)))]
        for block in model.blocks:
            self.z.append(block(self.z[-1]))

    def kept(self) -> list[list[int]]:
        """The patches of every block."""
        depth = len(self.model.blocks)
        found: dict[int, set[int]] = {depth: set()} if self.prefix else {}
        for layer in range(depth - len(found), 0, -1):
            above = found.get(layer + 1)
            ranked = sorted(self.everything - (above or set()), key=lambda i: (-self.scores[i], i))
            r = 0 if above is not None else 1  # a pool needs one
            while True:
                found[layer] = (above or set()) | set(ranked[:r])
                if self.error(layer, found[layer], above) <= self.tolerance or len(found[layer]) == PATCHES:
                    break
                r += STEP
        return [sorted(found[layer]) for layer in range(1, depth + 1)]

    def error(self, layer: int, kept: set[int], above: set[int] | None) -> float:
        """E_{l+1} over the rows of the next block; of what the head reads after the last one."""
        x = self.block(layer, self.z[layer - 1], kept, self.everything)
        if above is None:
            found = self.read(x[:, self.rows(self.everything if self.carry else kept)])
            wanted = self.read(self.z[layer])
        else:
            rows = self.rows(above)
            found = self.block(layer + 1, x, above, self.everything if self.carry else kept)[:, rows].flatten(1)
            wanted = self.z[layer + 1][:, rows].flatten(1)
        return float(((found - wanted).square().sum(1) / wanted.square().sum(1)).mean())

    def read(self, x: Tensor) -> Tensor:
        read: Tensor = self.model.forward_head(self.model.norm(x), pre_logits=True)
        return read

    def rows(self, patches: set[int]) -> list[int]:
        """The prefix and some patches, by token number."""
        return [*range(self.prefix), *(self.prefix + patch for patch in sorted(patches))]

    def block(self, layer: int, x: Tensor, kept: set[int], alive: set[int]) -> Tensor:
        """A block at full shape: keys outside `alive` are masked, rows outside `kept` stay as they were."""
        n = x.shape[1]
        key, row = (torch.isin(torch.arange(n), torch.tensor(self.rows(own))) for own in (alive, kept))
        out = self.model.blocks[layer - 1](x, attn_mask=key.expand(1, 1, n, n))
        return torch.where(row[:, None], out, x)


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("kind", ["class", "registers", "distilled", "mean"])
@torch.no_grad()
def test_equals_the_slow_algorithm(kind: str, carry: bool) -> None:
    model, images, found = make_host(kind), make_images(6), []
    for tolerance in (1e-3, 1e-2, 5e-2, 0.2):
        slim = slimmed(model, images, Radial(step=STEP, carry=carry), tolerance=tolerance)
        slow = SlowSearch(model, images, radial_scores((4, 4)).tolist(), tolerance, carry)
        assert slim.plan.kept == slow.kept()
        errors = slim.plan.provenance["errors"]
        for layer in range(1, 4):
            kept, above = (set(slim.plan.kept[block - 1]) for block in (layer, layer + 1))
            assert errors[str(layer)] == pytest.approx(slow.error(layer, kept, above), rel=1e-4, abs=1e-9)
        found.append(sum(slim.plan.counts))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


@pytest.mark.parametrize("carry", [False, True])
def test_every_readout_and_score_gives_a_plan_within_the_tolerance(kind: str, carry: bool) -> None:
    model, images = make_host(kind), make_images(4)
    for method in (ps_with(carry=carry), *(own(carry=carry) for own in (Attention, Random, Radial, Spread))):
        slim = slimmed(model, images, method, tolerance=0.05)
        plan = slim.plan
        assert {step.kind for step in plan.steps} <= ({"carry"} if carry else {"slice", "keep"})
        assert (plan.counts[-1] >= 1) == (plan.host.readout in PATCH_READOUTS)
        for layer, error in plan.provenance["errors"].items():
            assert error <= 0.05 or plan.counts[int(layer) - 1] == PATCHES
        assert relative(slim(images), ps.masked_logits(model, plan, images)) < 1e-4


def test_no_tolerance_keeps_everything_and_the_hosts_output(kind: str) -> None:
    model, images = make_host(kind), make_images(4)
    slim = slimmed(model, images, ps_with(step=16), tolerance=0.0)
    if slim.plan.host.readout not in PATCH_READOUTS:
        assert set(slim.plan.counts[:-1]) == {PATCHES}
    assert relative(slim(images), model(images)) <= 1e-5


def tuned_blocks(model: Any, slim: Any) -> set[int]:
    """Blocks (from 1) whose weights are not the host's."""
    state = slim.state_dict()
    return {
        int(name.split(".")[1]) + 1
        for name, tensor in model.state_dict().items()
        if not torch.equal(tensor, state[name])
    }


def test_tuning_lowers_the_error_at_the_same_counts() -> None:
    model, images = make_host(), make_images(8)
    plain, tuned = (slimmed(model, images, ps_with(tune_epochs=epochs), macs=0.5) for epochs in (0, 10))
    assert tuned.plan.counts == plain.plan.counts
    assert tuned_blocks(model, plain) == set()
    assert tuned_blocks(model, tuned) == {1, 2, 3}  # the last block is never tuned
    before, after = (own.plan.provenance["errors"] for own in (plain, tuned))
    assert all(after[layer] <= before[layer] for layer in before)
    assert sum(after.values()) < 0.9 * sum(before.values())


def test_a_tuned_search_keeps_no_more_patches() -> None:
    model, images = make_host(), make_images(8)
    plain, tuned = (slimmed(model, images, ps_with(tune_epochs=epochs), tolerance=0.02) for epochs in (0, 10))
    assert sum(tuned.plan.counts) <= sum(plain.plan.counts)
    for layer, error in tuned.plan.provenance["errors"].items():
        assert error <= 0.02 or tuned.plan.counts[int(layer) - 1] == PATCHES


def test_tuning_is_the_same_however_little_memory_there_is() -> None:
    model, images, method = make_host(), make_images(10), ps_with(tune_epochs=1)
    plenty, little, none = (
        slimmed(model, images, method, tolerance=0.02, memory_gib=gib)
        for gib in (2.0, 5 * 4 * 17 * 24 * 4 / 2**30, 0.0)
    )
    assert tuned_blocks(model, plenty)
    assert_same(plenty, little)
    assert_same(plenty, none)


def test_broken_weights_are_told() -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(ps.PatchslimError, match=r"The error of block \d is not a finite number"):
        slimmed(model, make_images(4), Radial(), tolerance=0.02)
