"""What a row of a comparison is: a method that makes a model of some MACs out of a host, or says why it can't."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import PatchslimError
from patchslim.hosts import Host, open_host
from patchslim.macs import host_macs
from patchslim.search.topdown import Listener


@dataclass(frozen=True)
class PeerConfig:
    """What all methods of a comparison share. Those that have something to learn before they can prune do so on the
    calibration images, without labels, from the host's own answers."""

    epochs: int = 20  # over the calibration images, for methods that learn
    batch_size: int = 32
    seed: int = 0
    readout_only: bool = False  # whether the last block of every peer computes only the tokens that the head reads

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise PatchslimError(f"{name} has to be at least {least}, not {getattr(self, name)}.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self)


@dataclass
class Job:
    """A host, its calibration images (labels are never read) and settings; `memory` is a folder that an interrupted
    search goes on from."""

    host: Host
    images: ImageSource
    config: PeerConfig = field(default_factory=PeerConfig)
    memory: Path | None = None
    listen: Listener = lambda event: None

    @property
    def device(self) -> torch.device:
        """Where the host is."""
        return next(self.host.model.parameters()).device

    def budget(self, ratio: float) -> int:
        """The most MACs that a model may take."""
        return int(ratio * host_macs(self.host.info))

    def fresh_host(self) -> Host:
        """A copy of the host, to build from."""
        return open_host(copy.deepcopy(self.host.model).eval())


@dataclass(frozen=True)
class Cell:
    """A model that a method made: its MACs per image, and what the method chose (its knob, tokens per block …)."""

    module: nn.Module
    macs: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreachable:
    """Why there is no such model."""

    reason: str


class Method(Protocol):
    """One row. An object serves one host and one set of images; it may remember what one ratio taught for the next."""

    name: str

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """A model of at most `ratio` of the host's MACs, as close to it as the method's own knob goes."""
