"""What all tests of this room ask: does another library find in a slim model what it finds in the host?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from hf_small import make_hf
from patchslim.hosts import answer_of
from small import make_host, make_images, plan_for, relative

LIBRARIES = ("timm", "transformers")


def host_of(library: str) -> nn.Module:
    """A small host of a library."""
    return make_host() if library == "timm" else make_hf()


def slimmed(host: nn.Module, way: str = "") -> nn.Module:
    """The host with everything kept, or slim in some way."""
    return ps.apply(host, *plan_for(host, way)) if way else ps.apply(host, ps.full_plan(host))


def step(model: Any, seed: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer to some images, and gradients by name after a backward pass."""
    model.zero_grad()
    answer = answer_of(model(make_images(seed=seed)))
    answer.square().mean().backward()
    return answer.detach(), {name: own.grad for name, own in model.named_parameters() if own.grad is not None}


def check_alike(found: Any, wanted: Any, close: float = 1e-5) -> None:
    """Two models give the same answer and the same gradients, under the same names."""
    (answer, own), (right, theirs) = step(found), step(wanted)
    assert relative(answer, right) <= close
    assert own.keys() == theirs.keys()
    assert own
    size = max(float(gradient.norm()) for gradient in theirs.values())
    for name, gradient in theirs.items():  # those of biases that cancel are rounding alone
        assert float((own[name] - gradient).norm()) <= 10 * close * max(float(gradient.norm()), 0.01 * size), name


def answered(model: Any) -> Tensor:
    """The answer, without gradients."""
    with torch.no_grad():
        return answer_of(model(make_images()))
