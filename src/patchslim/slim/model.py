"""What a slim model can do beyond its host: say what it is made by, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.macs import macs_under, plan_macs
from patchslim.plan import SlimPlan
from patchslim.slim.packed import Packed
from patchslim.slim.tokens import Tokens

Watch = Callable[[Tokens | Packed], None]


class SlimModel(nn.Module):
    """Joined to the host's own class by `slim_class`, so a slim model is still what its host is."""

    plan: SlimPlan
    host_info: HostInfo
    host_spec: Mapping[str, Any] | None

    def sources(self, images: Tensor) -> list[Tensor]:
        """For each block the input patches that every computed patch token stands for.

        images (B, C, H, W) → per block a boolean (B, n, N): row j marks the patches of token j, prefix tokens left
        out. Where images keep different numbers, n is the largest and the rows an image lacks are all False.
        """
        if not self.plan.varies:
            return [rows.expand(len(images), -1, -1).to(images.device) for rows in static_sources(self.plan)]
        found: list[Tensor] = []
        with watching(self, lambda tokens: found.append(_rows(tokens, self.host_info))):
            self._run(images)
        return found

    def image_macs(self, images: Tensor) -> Tensor:
        """MACs that each image takes: images (B, C, H, W) → (B,) of integers."""
        if self.plan.mode == "top-k":
            return torch.full((len(images),), plan_macs(self.host_info, self.plan))
        with counting(self) as counts:
            self._run(images)
        return counts.macs()

    @torch.inference_mode()
    def _run(self, images: Tensor) -> None:
        was_training = self.training
        self.eval()
        try:
            self(images)
        finally:
            self.train(was_training)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self).__mro__[2],), self.__dict__


def info_of(model: nn.Module) -> HostInfo | None:
    """The host that a model was made from, slim or in a peer's way; None for any other model."""
    info: HostInfo | None = getattr(model, "host_info", None)
    return info


def plan_of(model: nn.Module) -> SlimPlan | None:
    """A slim model's plan; models made in other ways have none."""
    plan: SlimPlan | None = getattr(model, "plan", None)
    return plan


def keeps_alike(model: nn.Module) -> bool:
    """Whether all images keep equally many tokens, so that a batch stays rectangular."""
    plan = plan_of(model)
    return plan is None or plan.mode != "threshold"


_classes: dict[type, type[SlimModel]] = {}


def slim_class(base: type[nn.Module]) -> type[SlimModel]:
    """The host's class with a slim model's methods; always the same one."""
    if base not in _classes:
        _classes[base] = type(f"Slim{base.__name__}", (SlimModel, base), {"__module__": __name__})
    return _classes[base]


def _blank(base: type[nn.Module]) -> SlimModel:
    """An empty slim model for copy and pickle to fill."""
    cls = slim_class(base)
    return cls.__new__(cls)


@contextmanager
def watching(model: nn.Module, watch: Watch) -> Iterator[None]:
    """Have every block of a model whose plan varies tell what it computes."""
    blocks: list[Any] = [module for module in model.modules() if hasattr(module, "watch")]
    try:
        for block in blocks:
            block.watch = watch
        yield
    finally:
        for block in blocks:
            block.watch = None


class Counts:
    """Patches per block and image of the batches that ran."""

    def __init__(self, model: SlimModel) -> None:
        self.model = model
        self.rows: list[list[int]] = []  # one per block and batch

    def patches(self) -> Tensor:
        """(images, blocks)."""
        depth = self.model.host_info.depth
        batches = [self.rows[begin : begin + depth] for begin in range(0, len(self.rows), depth)]
        return torch.cat([torch.tensor(batch).T for batch in batches])

    def macs(self) -> Tensor:
        """(images,)."""
        info, plan = self.model.host_info, self.model.plan
        return torch.tensor([macs_under(info, plan, row) for row in self.patches().tolist()])


@contextmanager
def counting(model: SlimModel) -> Iterator[Counts]:
    """Count what a threshold model keeps while it runs."""
    counts = Counts(model)
    prefix = model.host_info.prefix_tokens
    with watching(model, lambda tokens: counts.rows.append([length - prefix for length in _lengths(tokens)])):
        yield counts


def _lengths(tokens: Tokens | Packed) -> list[int]:
    if isinstance(tokens, Packed):
        return tokens.lengths
    return [tokens.x.shape[1]] * tokens.x.shape[0]


def _rows(tokens: Tokens | Packed, info: HostInfo) -> Tensor:
    """(B, n, N) boolean."""
    if isinstance(tokens, Tokens):
        assert tokens.source is not None
        return tokens.source
    most = max(tokens.lengths) - info.prefix_tokens
    rows = torch.zeros(len(tokens.lengths), most, info.patches, dtype=torch.bool, device=tokens.x.device)
    for image, places in enumerate(tokens.place.split(tokens.lengths)):
        own = places[info.prefix_tokens :]
        rows[image, torch.arange(len(own)), own] = True
    return rows


def static_sources(plan: SlimPlan) -> list[Tensor]:
    """The same for every image, so it can be read off the plan: per block (n, N) boolean."""
    rows = torch.eye(plan.host.patches, dtype=torch.bool)
    alive, found = set(range(plan.host.patches)), []
    for kept in plan.kept:
        for patch in sorted(alive - set(kept)):
            if plan.into is not None and plan.into[patch] >= 0:
                rows[plan.into[patch]] |= rows[patch]
        alive = set(kept)
        found.append(rows[[patch for patch in plan.order if patch in alive]].clone())
    return found
