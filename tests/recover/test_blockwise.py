"""Block-wise reconstruction: errors on held-out images fall, block after block, and never rise."""

from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.hosts import open_host
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.blockwise import Blockwise, Streams
from patchslim.recover.images import split
from patchslim.recover.networks import open_student
from small import PYRAMID, make_host, make_images, merging, plan_for, plan_of
from step_plans import STEPS, alone

BLOCKS: dict[str, Any] = {"epochs": 0, "block_epochs": 2, "block_batch_size": 8, "held_out": 0.25, "vector_factor": 3.0}


def errors(**settings: Any) -> tuple[list[dict[str, Any]], ps.SlimPlan, Any, Any]:
    model = make_host()
    slim: Any = ps.apply(model, plan_of(model, PYRAMID))
    found = recover(slim, model, make_images(32), RecoverConfig(**BLOCKS | settings))
    return found.report["stages"][0]["blocks"], slim.plan, slim, found.model


@pytest.mark.parametrize("way", ["drop", "carry", "cover", "merge", "predict merging"])
def test_every_block_gets_no_worse_and_most_get_better(way: str) -> None:
    model = make_host()
    plan, weights = plan_for(model, way)
    found = recover(ps.apply(model, plan, weights), model, make_images(32), RecoverConfig(**BLOCKS))
    blocks = found.report["stages"][0]["blocks"]
    assert [block["block"] for block in blocks] == [1, 2, 3, 4]
    assert all(block["after"] <= block["before"] for block in blocks)
    assert sum(block["after"] < block["before"] for block in blocks) >= 2
    before, after = (found.report[when]["loss"] for when in ("before", "after"))
    assert after < before or (after == before and way == "predict merging")  # what its blocks win may miss the head


@torch.no_grad()
def test_the_reported_error_is_that_of_the_rows_it_computes() -> None:
    """Static drop, by hand: the first block's kept rows against the host's Z_1."""
    blocks, plan, slim, _ = errors(block_learning_rate=1e-9)
    model = make_host()
    parts = split(tensor_images(make_images(32)), 0.25, 0, 8)
    images = torch.cat([batch for batch, _ in parts.held_out_batches()])
    host, prefix = open_host(model), 1
    assert plan.order is not None
    z = host.blocks[0](host.embed(images))
    target = z[:, [0, *(prefix + patch for patch in plan.order[: len(plan.kept[0])])]]
    embedded = open_student(slim).embed(images)
    error = ((slim.blocks[0](embedded) - target) ** 2).sum(dim=(1, 2)) / (target**2).sum(dim=(1, 2))
    assert blocks[0]["before"] == pytest.approx(float(error.double().mean()), rel=1e-4, abs=1e-9)


def test_a_learning_rate_far_too_high_changes_nothing() -> None:
    blocks, _, slim, recovered = errors(block_learning_rate=1e6)
    assert not any(block["kept"] for block in blocks)
    for before, after in zip(slim.state_dict().values(), recovered.state_dict().values(), strict=True):
        assert torch.equal(before, after)


def test_streams_past_the_bound_are_computed_again() -> None:
    model, images = make_host(), tensor_images(make_images(12))
    plan, weights = merging(model)
    student, teacher = open_student(ps.apply(model, plan, weights)), open_host(model)
    found: list[list[tuple[Any, Tensor]]] = []
    for bound in (4.0, 2e-5, 0.0):
        streams = Streams(student, teacher, lambda: images.batches(4), RecoverConfig(cache_gib=bound))
        assert len(streams.stored) == {4.0: 3, 2e-5: 1, 0.0: 0}[bound]
        streams.advance()
        streams.advance()
        found.append(list(streams))
    for other in found[1:]:
        for (x, z), (y, w) in zip(found[0], other, strict=True):
            assert torch.equal(x.x, y.x)
            assert torch.equal(x.owner, y.owner)
            assert torch.equal(z, w)


def test_only_the_blocks_own_parameters_learn() -> None:
    model = make_host()
    slim: Any = ps.apply(model, plan_of(model, PYRAMID))
    student, config = open_student(slim), RecoverConfig(**BLOCKS)
    parts = split(tensor_images(make_images(16)), 0.25, 0, 8)
    Blockwise(student, open_host(model.requires_grad_(False)), slim.plan, config).run_(
        parts, lambda event: None, [], lambda found: None
    )
    changed = {
        name.split(".")[0]
        for name, tensor in student.model.state_dict().items()
        if not torch.equal(tensor, slim.state_dict()[name])
    }
    assert changed == {"blocks"}
    assert all(parameter.grad is None for parameter in student.model.parameters())


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize(
    ("step", "reason"),
    [("threshold", "images keep different numbers of patches"), ("pool", "no plan says what its tokens stand for")],
)
def test_where_blocks_cannot_be_compared_this_stage_is_left_out(step: str, reason: str) -> None:
    model, events = make_host(), list[Any]()
    config = RecoverConfig(**BLOCKS | {"epochs": 1})
    slim = ps.apply(model, *alone(model, STEPS[step](8)))
    recover(slim, model, make_images(16), config, listen=events.append)
    (skipped,) = (event for event in events if event["event"] == "skipped")
    assert (skipped["stage"], skipped["reason"]) == ("blocks", reason)


def test_few_of_many_images_serve_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    step = Blockwise._step_

    def counted(self: Blockwise, layer: int, pair: Any, *others: Any) -> None:
        seen.append(len(pair[1]))
        step(self, layer, pair, *others)

    monkeypatch.setattr(Blockwise, "_step_", counted)
    errors(block_images=11, block_epochs=1)
    assert seen == [8, 3] * 4
