"""Gradient checkpointing, as timm and transformers switch it on: blocks run twice, and gradients stay what they are."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from hf_small import FEW, make_hf
from patchslim.hosts import answer_of, open_slim
from small import make_host, make_images, plan_for, relative

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def one_step(slim: Any) -> tuple[int, dict[str, Tensor]]:
    """How many times MLPs were called in a forward and a backward pass, and the gradients."""
    calls: list[None] = []
    for block in open_slim(slim).blocks:
        block.mlp.register_forward_pre_hook(lambda *_: calls.append(None))  # type: ignore[union-attr]
    torch.manual_seed(0)  # the stem of T2T-ViT has dropout
    answer_of(slim(make_images(2))).square().mean().backward()
    return len(calls), {name: own.grad for name, own in slim.named_parameters() if own.grad is not None}


def check_same(slim: Any, checkpointed: Any) -> None:
    """Twice the calls, the same gradients."""
    (calls, wanted), (twice, found) = one_step(slim), one_step(checkpointed)
    assert twice == 2 * calls
    assert found.keys() == wanted.keys()
    scale = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) <= 1e-5 * scale


@pytest.mark.parametrize("way", ["drop", "merge", "threshold"])
@pytest.mark.parametrize("kind", FEW)
def test_transformers_models(kind: str, way: str) -> None:
    host = make_hf(kind)
    slim: Any = ps.apply(host, *plan_for(host, way)).train()
    for reentrant in (False, True):
        checkpointed = copy.deepcopy(slim)
        checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert checkpointed.is_gradient_checkpointing
        check_same(copy.deepcopy(slim), checkpointed)


@pytest.mark.parametrize("way", ["drop", "merge"])
@pytest.mark.parametrize("kind", ["class", "attention pool", "lv", "t2t"])
def test_timm_models(kind: str, way: str) -> None:
    host = make_host(kind)
    slim: Any = ps.apply(host, *plan_for(host, way)).train()
    checkpointed = copy.deepcopy(slim)
    checkpointed.set_grad_checkpointing()
    check_same(slim, checkpointed)


def test_it_may_be_switched_on_before_and_off_again() -> None:
    host = make_hf().train()
    host.gradient_checkpointing_enable()
    slim: Any = ps.apply(host, plan_for(host, "drop")[0])
    assert one_step(copy.deepcopy(slim))[0] == 2 * 4
    assert one_step(copy.deepcopy(slim).eval())[0] == 4
    slim.gradient_checkpointing_disable()
    assert not slim.is_gradient_checkpointing
    assert one_step(slim)[0] == 4


def test_it_does_not_keep_a_model_from_being_saved(tmp_path: Path) -> None:
    for host, switch in ((make_hf(), "gradient_checkpointing_enable"), (make_host(), "set_grad_checkpointing")):
        slim: Any = ps.apply(host, *plan_for(host, "merge"))
        getattr(slim, switch)()
        ps.save(slim, tmp_path / type(host).__name__)
        again: Any = ps.load(tmp_path / type(host).__name__)
        assert torch.equal(answer_of(again(make_images(2))), answer_of(slim(make_images(2))))


@torch.no_grad()
def test_without_gradients_it_changes_nothing() -> None:
    host, images = make_hf(), make_images(2)
    slim: Any = ps.apply(host, *plan_for(host, "merge")).train()
    wanted = slim(images).logits
    slim.gradient_checkpointing_enable()
    assert relative(slim(images).logits, wanted) <= 1e-6
