"""What tests of peers share: a job on a small host, a cell that has to be there, a host whose weights never change."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

import patchslim.hosts.digits_vit  # noqa: F401  (registers itself with timm)
from patchslim.data import open_images, tensor_images
from patchslim.hosts import open_host
from patchslim.peers import Cell, Job, Method, PeerConfig
from small import make_host, make_images


def job_of(model: nn.Module, images: Tensor | None = None, **settings: Any) -> Job:
    """A job with little to learn from."""
    config = PeerConfig(**({"epochs": 2, "batch_size": 8} | settings))
    return Job(open_host(model), tensor_images(make_images(16) if images is None else images), config)


def built(method: Method, job: Job, ratio: float) -> Cell:
    """A cell that has to be there."""
    cell = method.build(job, ratio)
    assert isinstance(cell, Cell), cell
    return cell


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
