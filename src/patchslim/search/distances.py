"""How far apart two patches are: what it does to the head's readout, on average, when one takes the other's place.

The gradient of the readout in a patch's token, g, says to first order what moving the token by δ does: (gᵀδ)². Its mean
over patches, images and directions of the readout is a quadratic form, δᵀ M δ with M = E[g gᵀ / w], w being what
matching weighs the patch by already. A block's distance is that form in the few directions in which tokens differ most
by it: the features R of `c` channels whose squared distance comes nearest to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PatchslimError
from patchslim.hosts import Host
from patchslim.hosts.attention import plain
from patchslim.scores.effect import probes
from patchslim.search.effects import images_at_once, read_blocks
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.search.topdown import Listener
from patchslim.slim.chooser import distance_channels, make_distance
from patchslim.slim.merge import FLOOR

PROBES = 4  # random directions of the readout per image; images and patches average the noise
TINY = 1e-30


@dataclass
class Moments:
    """Sums over the patches that enter one block."""

    form: Tensor  # (d, d): Σ g gᵀ / w
    spread: Tensor  # (d, d): Σ (x - x̄)(x - x̄)ᵀ, x̄ of the patch's own image
    total: Tensor  # (d,): Σ x
    patches: int = 0

    @classmethod
    def empty(cls, width: int, device: torch.device) -> Moments:
        """Of nothing yet."""
        form, spread = (torch.zeros(width, width, device=device) for _ in range(2))
        return cls(form, spread, torch.zeros(width, device=device))


def find_distances(host: Host, features: Features, ledger: Ledger, seed: int, listen: Listener) -> dict[int, nn.Module]:
    """A distance for every block that may choose, by number."""
    layers = range(1, read_blocks(host.info) + 1)
    fresh = {layer: _fresh(host, layer) for layer in layers}
    if all(ledger.get(("distance", layer)) is not None for layer in layers):
        return {layer: ledger.block(("distance", layer), fresh[layer]).to(features.device) for layer in layers}
    listen({"event": "distances"})
    for layer, moments in zip(layers, gather(host, features, seed), strict=True):
        set_distance_(fresh[layer], moments)
        ledger.put(("distance", layer), {}, fresh[layer])
    return {layer: distance.to(features.device) for layer, distance in fresh.items()}


def _fresh(host: Host, layer: int) -> nn.Linear:
    width, channels = host.info.blocks[layer - 1].width, distance_channels(host.info)
    with torch.random.fork_rng(devices=[]):  # what it begins with is overwritten
        return make_distance(width, channels).requires_grad_(False).eval()


def gather(host: Host, features: Features, seed: int) -> list[Moments]:
    """The moments of every block that may choose, over all images."""
    info = host.info
    found = [Moments.empty(shape.width, features.device) for shape in info.blocks[: read_blocks(info)]]
    generator = torch.Generator().manual_seed(seed)
    features.focus((0,))
    for (batch,) in features.batches(0):
        for x in batch.split(images_at_once(info)):
            _add_(host, x, found, generator)
    return found


def _add_(host: Host, x: Tensor, found: list[Moments], generator: torch.Generator) -> None:
    """Add some images' patches: x = Z_0 (B, p + N, d)."""
    prefix = host.info.prefix_tokens
    with torch.enable_grad():
        tokens, weights, read = _forward(host, x, len(found))
        directions = probes(read.detach().float(), PROBES, generator)
        along = torch.einsum("bf,bfk->bk", read.float(), directions)
        for probe in range(PROBES):
            grads = torch.autograd.grad(along[:, probe].sum(), tokens, retain_graph=probe + 1 < PROBES)
            for moments, grad, weight in zip(found, grads, weights, strict=True):
                rows = (grad[:, prefix:].float() / weight.sqrt()[..., None]).flatten(0, 1)
                moments.form += rows.T @ rows
    for moments, inputs in zip(found, tokens, strict=True):
        patches = inputs.detach()[:, prefix:].float()
        rows = (patches - patches.mean(dim=1, keepdim=True)).flatten(0, 1)
        moments.spread += rows.T @ rows
        moments.total += patches.sum(dim=(0, 1))
        moments.patches += len(rows)


def _forward(host: Host, x: Tensor, blocks: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What enters each of the first blocks (B, p + N, d), what its patches weigh (B, N), and the readout (B, F)."""
    info, math = host.info, host.math
    tokens, weights = [], []
    x = x.detach().requires_grad_()
    for layer, block in enumerate(host.blocks, start=1):
        incoming = math.read(block, x)
        if layer <= blocks:
            tokens.append(x)
            weights.append(_weight(host, block, incoming))
        stays = info.tokens if layer < info.depth or info.reads_patches else info.prefix_tokens
        x = math.compute(block, x[:, :stays], incoming, plain)
    return tokens, weights, host.features(x).flatten(1)


@torch.no_grad()
def _weight(host: Host, block: nn.Module, incoming: Any) -> Tensor:
    """What matching weighs patches by (B, N): the class token's attention, mean 1, and the floor; else all alike."""
    info = host.info
    if not info.reads_class:
        return torch.ones(len(incoming.y), info.patches, device=incoming.y.device)
    attention: Tensor = host.math.class_attention(block, incoming, None)[:, info.prefix_tokens :]
    return attention.float() * info.patches + FLOOR


def set_distance_(distance: nn.Linear, moments: Moments) -> None:
    """R and what centres it, at such a scale that patches of an image differ from its mean by 1 on average."""
    if not bool(moments.form.isfinite().all() & moments.spread.isfinite().all()):
        raise PatchslimError("A gradient is not a finite number; the model's weights or the images are broken.")
    count = max(1, moments.patches)
    form, spread = moments.form.double().cpu(), moments.spread.double().cpu() / count
    root = _root(form / form.trace().clamp_min(TINY))
    _, axes = torch.linalg.eigh(root @ spread @ root)  # smallest first
    features = root @ axes[:, -distance.out_features :]  # (d, c)
    features = features / (features * (spread @ features)).sum().clamp_min(TINY).sqrt()
    mean = moments.total.double().cpu() / count
    with torch.no_grad():
        distance.weight.copy_(features.T)
        distance.bias.copy_(-(mean @ features))  # keeps numbers small: half precision has few digits


def _root(form: Tensor) -> Tensor:
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(form)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return root
