"""How far apart patches are, and what they weigh: what it does to the head's readout when one takes another's place.

The gradient of the readout in a patch's token, g, says to first order what moving the token by δ does: (gᵀδ)². Its mean
over the other patches of the image, δ = x_j − x_i, is how much patch i matters, u. A block's distance takes two things
apart. Directions: δᵀ M δ with M = E[g gᵀ / u], in the few directions in which tokens differ most by it: the features of
`c` channels whose squared distance comes nearest to it. And how much: log √u as a linear function of the token, by
least squares within images. It is the root because what the token says of u is little: the square believes it too much.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from patchslim.cache import Cache
from patchslim.errors import PatchslimError
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.taylor import TINY, gradients, images_at_once, probes, read_blocks
from patchslim.hosts import Host
from patchslim.steps.merge import distance_channels, make_distance

PROBES = 4  # random directions of the readout per image; images and patches average the noise
RIDGE = 0.01  # of the average variance, so that few images do not make weights of noise


@dataclass
class Moments:
    """Sums over the patches that enter one block."""

    form: Tensor  # (d, d): Σ g gᵀ / u
    spread: Tensor  # (d, d): Σ (x - x̄)(x - x̄)ᵀ, x̄ of the patch's own image
    lean: Tensor  # (d,): Σ (x - x̄) log √u
    total: Tensor  # (d,): Σ x
    patches: int = 0

    @classmethod
    def empty(cls, width: int, device: torch.device) -> Self:
        """Of nothing yet."""
        return cls(*torch.zeros(2, width, width, device=device), *torch.zeros(2, width, device=device))

    def add_(self, x: Tensor, grads: Tensor) -> None:
        """Some images' patches x (B, N, d), gradients (K, B, N, d)."""
        rows = x - x.mean(dim=1, keepdim=True)
        matter = replacement(x, grads).clamp_min(TINY)  # (B, N)
        scaled = (grads * matter.rsqrt()[..., None]).flatten(0, 2)
        self.form += scaled.T @ scaled
        self.spread += rows.flatten(0, 1).T @ rows.flatten(0, 1)
        self.lean += torch.einsum("bnd,bn->d", rows, matter.log() / 2)
        self.total += x.sum(dim=(0, 1))
        self.patches += x.shape[0] * x.shape[1]


def replacement(x: Tensor, grads: Tensor) -> Tensor:
    """u: what it does, to first order, when another of the image's patches takes a patch's place, the mean over all of
    them: Σ_k mean_j (gᵀ(x_j − x_i))², x (B, N, d), grads (K, B, N, d) → (B, N)."""
    found = torch.zeros_like(x[..., 0])
    for grad in grads:
        moved = grad @ x.transpose(1, 2)  # (B, N, N): gᵀ x_j
        found += (moved - moved.diagonal(dim1=1, dim2=2)[..., None]).square().mean(dim=2)
    return found


def find_distances(host: Host, features: Features, cache: Cache, seed: int, listen: Listener) -> dict[int, nn.Module]:
    """A distance for every block that may choose, by number."""
    shapes, channels = host.info.blocks[: read_blocks(host.info)], distance_channels(host.info)
    with torch.random.fork_rng(devices=[]):  # what they begin with is overwritten
        found = {layer: make_distance(shape.width, channels) for layer, shape in enumerate(shapes, start=1)}
    if any(cache.get(("log root", layer)) is None for layer in found):
        listen({"event": "distances"})
        for (layer, distance), moments in zip(found.items(), gather(host, features, seed), strict=True):
            set_distance_(distance, moments)
            cache.put(("log root", layer), {}, distance)
    return {layer: cache.module(("log root", layer), like).to(features.device) for layer, like in found.items()}


def gather(host: Host, features: Features, seed: int) -> list[Moments]:
    """The moments of every block that may choose, over all images."""
    info, prefix = host.info, host.info.prefix_tokens
    found = [Moments.empty(shape.width, features.device) for shape in info.blocks[: read_blocks(info)]]
    generator = torch.Generator().manual_seed(seed)
    features.focus((0,))
    for (batch,) in features.batches(0):
        for x in batch.split(images_at_once(info)):
            with torch.enable_grad():
                tokens, read = _forward(host, x, len(found))
                grads = gradients(read, probes(read.detach().float(), PROBES, generator), tokens)
            for layer, moments in enumerate(found):
                patches = tokens[layer].detach()[:, prefix:].float()
                slopes = torch.stack([of_probe[layer][:, prefix:].float() for of_probe in grads])
                moments.add_(patches, slopes)
    return found


def _forward(host: Host, x: Tensor, blocks: int) -> tuple[list[Tensor], Tensor]:
    """What enters each of the first blocks, (B, p + N, d) each, and the readout (B, F)."""
    info, math, tokens = host.info, host.math, list[Tensor]()
    x = x.detach().requires_grad_()
    for layer, block in enumerate(host.blocks, start=1):
        if layer <= blocks:
            tokens.append(x)
        stays = info.tokens if layer < info.depth or info.reads_patches else info.prefix_tokens
        x = math.run(block, x, stays)
    return tokens, host.features(x).flatten(1)


def set_distance_(distance: nn.Linear, moments: Moments) -> None:
    """Features, at such a scale that patches of an image differ from its mean by 1 on average, and the logarithm of the
    weight; both 0 for the average patch, which keeps numbers small: half precision has few digits."""
    if not bool(moments.form.isfinite().all() & moments.spread.isfinite().all() & moments.lean.isfinite().all()):
        raise PatchslimError("A gradient is not a finite number; the model's weights or the images are broken.")
    count = max(1, moments.patches)
    form, spread, lean = (own.double().cpu() / count for own in (moments.form, moments.spread, moments.lean))
    values, vectors = torch.linalg.eigh(form / form.trace().clamp_min(TINY))
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # symmetric
    _, axes = torch.linalg.eigh(root @ spread @ root)  # smallest first
    features = root @ axes[:, 1 - distance.out_features :]  # (d, c)
    features = features / (features * (spread @ features)).sum().clamp_min(TINY).sqrt()
    ridge = (RIDGE * spread.diagonal().mean()).clamp_min(TINY) * torch.eye(len(spread), dtype=spread.dtype)
    slope = torch.linalg.solve(spread + ridge, lean)
    linear = torch.cat([features, slope[:, None]], dim=1)  # (d, c + 1)
    mean = moments.total.double().cpu() / count
    with torch.no_grad():
        distance.weight.copy_(linear.T)
        distance.bias.copy_(-(mean @ linear))
