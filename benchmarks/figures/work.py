"""What all figures work on: a model seen as a host, images to choose patches by, labelled images to measure with."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from harness import in_memory
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.data import ImageSource, open_images
from patchslim.hosts import Host, open_host
from patchslim.hosts.hf_open import is_hf_name
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import host_macs
from patchslim.measure.ranks import ranks_of

PIXEL_BYTES = 4  # of a float


@dataclass
class Work:
    """Images are None where they are not given, or where random weights would make nothing of them."""

    model: nn.Module
    images: ImageSource | None = None  # to choose patches by; labels are never read
    val: ImageSource | None = None
    batch_size: int = 250
    seed: int = 0
    missing: list[str] = field(default_factory=list)  # what the command was not given
    started: dict[str, str | int] = field(default_factory=dict)  # what a figure that goes on has to agree with

    @cached_property
    def host(self) -> Host:
        """The model as a host."""
        return open_host(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def scored(self) -> bool:
        """Whether accuracy can be measured."""
        return self.val is not None and self.val.labelled

    @cached_property
    def base(self) -> Tensor | None:
        """Which labelled images the host gets right: (images,) booleans."""
        return self.hits(self.model) if self.scored else None

    @cached_property
    def macs(self) -> int:
        """The host's, per image."""
        return host_macs(self.host.info)

    def hits(self, network: nn.Module) -> Tensor:
        """Which labelled images a network gets right: (images,) booleans on the CPU."""
        assert self.val is not None
        (found,) = ranks_of([network], [self.val], self.batch_size)
        return found.hits

    def labelled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of labelled images, pixels on the model's device, in the order of `hits`: (B, C, H, W) and (B,)."""
        assert self.val is not None
        for pixels, labels in self.val.batches(self.batch_size):
            known = labels >= 0
            if bool(known.any()):
                yield pixels[known].to(self.device), labels[known]


def open_work(args: argparse.Namespace) -> Work:
    """From the options of the command."""
    device = open_device(args.device)
    model = open_model(args.model, args.checkpoint, args.pretrained).to(device).requires_grad_(False)
    trained = args.checkpoint is not None or args.pretrained or is_hf_name(args.model)
    missing = [] if trained else ["weights (--checkpoint or --pretrained)"]
    work = Work(model, batch_size=args.batch_size, seed=args.seed, missing=missing)
    work.started = {"model": args.model, "seed": args.seed, "weights": _weights(args, trained)}
    if trained:
        work.started["fingerprint"] = weights_fingerprint(model)
    for name, source, limit in (("data", args.data, args.images), ("val", args.val, args.limit)):
        if source is None:
            missing.append(f"images (--{name})")
        elif trained:
            images = open_images(source, model=model, limit=limit, seed=args.seed, workers=workers_for(device))
            work.started[name] = images.fingerprint
            held = _held(images, args.memory_gib)
            work.images, work.val = (held, work.val) if name == "data" else (work.images, held)
    if work.val is not None and not work.val.labelled:
        missing.append("labels of the --val images")
    return work


def _weights(args: argparse.Namespace, trained: bool) -> str:
    """What they are called in a raw file."""
    if not trained:
        return "random"
    return "pretrained" if args.checkpoint is None else Path(args.checkpoint).name


def _held(images: ImageSource, gib: float) -> ImageSource:
    """The images decoded once, where they fit the memory; else they are read anew in every pass."""
    size = len(images) * 3 * images.image_size[0] * images.image_size[1] * PIXEL_BYTES
    return in_memory(images) if size <= gib * 2**30 else images
