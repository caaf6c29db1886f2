"""Pictures read once and kept, from which the device that trains cuts its views: decoding and cropping every picture
anew in every epoch takes a CPU longer than a small network takes to learn from it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from patchslim.data.reading import Batch, Tally
from patchslim.data.transform import Style, Transform
from patchslim.data.views import Order, mix

MARGIN = 8 / 7  # sides of a canvas against those of the images: 256 for 224
RATIOS = (3 / 4, 4 / 3)  # of a crop's width to its height, as in timm
TRIES = 10


def canvas_size(image_size: tuple[int, int]) -> tuple[int, int]:
    """Sides of the canvases for images of some size, both (H, W)."""
    height, width = (math.ceil(side * MARGIN) for side in image_size)
    return height, width


def onto_canvas(transform: Transform, size: tuple[int, int]) -> Transform:
    """Draws a picture on a canvas (S_h, S_w), whatever its own shape: (C, S_h, S_w) of bytes."""
    return replace(transform, function=partial(_stretched, size=size), image_size=size)


def _stretched(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    drawn = np.array(picture.resize(size[::-1], Image.Resampling.BICUBIC))
    return torch.from_numpy(drawn).reshape(*size, -1).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class Canvases:
    """Pictures on canvases, on one device: pixels (K, C, S_h, S_w) of bytes, their width over height, labels (K,).

    `known` (K,) says which could be read; the others are left out of every batch.
    """

    pixels: Tensor
    ratios: Tensor
    labels: Tensor
    known: Tensor

    @classmethod
    def of(cls, batches: Iterable[Batch], labels: Sequence[int], pixels: Tensor, tally: Tally) -> Self:
        """Put what was drawn of every picture, in order, into `pixels` (K, C, S_h, S_w); the tally counts it."""
        known, ratios = torch.zeros(len(pixels), dtype=torch.bool), torch.ones(len(pixels))
        first = 0
        for batch in batches:
            own = slice(first, first + len(batch.known))
            known[own], ratios[own] = torch.tensor(batch.known), torch.tensor(batch.ratios)
            if batch.images is not None:
                pixels[own][known[own].to(pixels.device)] = batch.images.to(pixels.device)
            tally.add(len(batch.labels), batch.bad)
            first = own.stop
        if tally.good == 0:
            raise tally.nothing_read()
        return cls(pixels, ratios, torch.tensor(labels), known)

    def views(self, transform: Transform, style: Style, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """Training views (B, C, H, W), normalised, and labels: they depend on seed, epoch and image only."""
        epoch, boxes = -1, torch.empty(0)
        for places in order:
            if places[0][0] != epoch:
                epoch = places[0][0]
                generator = torch.Generator().manual_seed(mix(order.seed, epoch, 1))
                boxes = crops(self.ratios, style, generator).to(self.pixels.device)
            chosen = torch.tensor([image for _, image in places])
            chosen = chosen[self.known[chosen]]
            yield self.cut(chosen, boxes, transform), self.labels[chosen]

    def cut(self, chosen: Tensor, boxes: Tensor, transform: Transform) -> Tensor:
        """Some pictures (B,), each cut to its box of boxes (K, 4): (B, C, H, W)."""
        assert transform.image_size is not None
        device = self.pixels.device
        index = chosen.to(device)
        x, y, width, height = boxes[index].unbind(1)
        none = torch.zeros_like(x)
        rows = torch.stack([width, none, 2 * x + width.abs() - 1, none, height, 2 * y + height - 1], dim=1)
        grid = F.affine_grid(rows.view(-1, 2, 3), [len(chosen), 1, *transform.image_size], align_corners=False)
        pixels = self.pixels[index].float()
        found = F.grid_sample(pixels, grid, mode="bicubic", padding_mode="border", align_corners=False)
        mean, std = (torch.tensor(own, device=device).view(-1, 1, 1) for own in (transform.mean, transform.std))
        return (found.clamp(0, 255) / 255 - mean) / std


def crops(ratios: Tensor, style: Style, generator: torch.Generator) -> Tensor:
    """A random crop of every picture, in shares of its sides: width over height (K,) → x, y, width, height (K, 4).

    As timm's: a share of the area and a ratio of the sides at random, the first of ten that fits, else all of the
    picture that has a ratio in between. A negative width is a mirror image.
    """
    low, high = (math.log(ratio) for ratio in RATIOS)
    drawn = torch.rand(len(ratios), TRIES, 2, generator=generator)
    area = style.crop_scale + (1 - style.crop_scale) * drawn[..., 0]
    shape = (low + (high - low) * drawn[..., 1]).exp() / ratios[:, None]  # relative to the picture's own
    width, height = (area * shape).sqrt(), (area / shape).sqrt()
    fits = (width <= 1) & (height <= 1)
    first = fits.int().argmax(dim=1, keepdim=True)
    whole = ratios.clamp(*RATIOS) / ratios
    width = torch.where(fits.any(dim=1), width.gather(1, first)[:, 0], whole.clamp(max=1))
    height = torch.where(fits.any(dim=1), height.gather(1, first)[:, 0], (1 / whole).clamp(max=1))
    place = torch.rand(len(ratios), 2, generator=generator)
    mirrored = (torch.rand(len(ratios), generator=generator) < 0.5) & style.flip
    signed = torch.where(mirrored, -width, width)
    return torch.stack([place[:, 0] * (1 - width), place[:, 1] * (1 - height), signed, height], dim=1)
