"""What tests of methods share: a task on a small host, the model of it, a host whose weights never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn

import patchslim as ps
import patchslim.hosts.digits_vit
from patchslim.data import open_images
from patchslim.methods import Fitted, Task, fit, model_of
from patchslim.plan import make_plan
from patchslim.search import Target
from patchslim.steps import Step
from small import make_host, make_images


def task_of(model: nn.Module, images: Tensor | None = None, ratio: float = 0.7, **settings: Any) -> Task:
    """A task with little to learn from."""
    own = {"batch_size": 8} | settings
    return Task.of(model, make_images(16) if images is None else images, Target(macs=ratio), **own)


def made(method: Any, task: Task) -> tuple[Fitted, nn.Module]:
    """What a method makes of a task, and the model of it."""
    found = fit(method, task)
    return found, model_of(found, task.host.model)


def by_steps(model: nn.Module, steps: Sequence[Step]) -> nn.Module:
    """The slim model of a plan of these steps."""
    return ps.apply(model, make_plan(ps.inspect(model), steps))


def budget(task: Task, ratio: float) -> int:
    """MACs that a share of the host's comes to."""
    return int(ratio * ps.count_macs(task.host.model))


def golden_host(kind: str = "class") -> nn.Module:
    """A small host with weights that depend on torch's generator alone, not on how timm begins a model."""
    model, generator = make_host(kind), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator) + float(parameter.ndim == 1) / 2)
    return model.eval()


def digits(count: int) -> tuple[nn.Module, Tensor]:
    """The trained ViT for digits, and some digits."""
    model: nn.Module = timm.create_model("digits_vit", pretrained=True).eval()
    source = open_images("digits:train", model=model, limit=count, seed=0)
    return model, torch.cat([images for images, _ in source.batches(count)])


@torch.no_grad()
def says(model: nn.Module, images: Tensor) -> Tensor:
    """A model's logits."""
    found: Tensor = model(images)
    return found
