"""What the rest of patchslim asks of images, wherever they come from; and images that are in memory already."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from patchslim.data.transform import Transform
from patchslim.data.views import Order
from patchslim.errors import DataError


class ImageSource(Protocol):
    """Images that can be gone through any number of times, in the same order."""

    name: str  # what to call the images in reports and messages
    labelled: bool  # whether any image has a label
    classes: int | None  # the number of class folders, None if there are none
    skipped: int  # the number of bad images left out in the latest pass
    image_size: tuple[int, int]  # (H, W) of every image
    channels: int  # of every image

    @property
    def fingerprint(self) -> str:
        """A hex sha256 that stands for these images and no others."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all images once: (B, C, H, W) float32 images and (B,) int64 labels, -1 where unknown."""


@runtime_checkable
class TrainingSource(ImageSource, Protocol):
    """Images that a network can be trained on."""

    labels: list[int]  # of every image, -1 where unknown
    mirrors: bool  # whether an image's mirror image shows the same thing

    def subset(self, indices: Sequence[int]) -> Self:
        """Some of the images, as a source of their own."""

    def views(self, transform: Transform, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """Training views like those of `batches`: one batch for each of the order's, smaller where images are bad."""


class TensorImages:
    """Images (K, C, H, W) in memory, normalised for the model by whoever made them; see `tensor_images`."""

    def __init__(self, images: Tensor, labels: Tensor, name: str = "tensor") -> None:
        self.name = name
        self.classes: int | None = None
        self.skipped = 0
        self.mirrors = False  # nobody knows what they show
        self.labels: list[int] = labels.tolist()
        self.labelled = bool((labels >= 0).any())
        self.image_size: tuple[int, int] = (images.shape[2], images.shape[3])
        self.channels: int = images.shape[1]
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    @cached_property
    def fingerprint(self) -> str:
        """Hash shape, pixels and labels, as hex sha256."""
        digest = hashlib.sha256(str(tuple(self._images.shape)).encode("ascii"))
        for tensor in (self._images, self._labels):
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Sequence[int]) -> Self:
        """Some of the images, as a source of their own."""
        return type(self)(self._images[list(indices)], self._labels[list(indices)], self.name)

    def views(self, transform: Transform, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The images as they are in a seeded order; the transform is for pictures and has no part in this."""
        for places in order:
            chosen = [image for _, image in places]
            yield self._images[chosen], self._labels[chosen]

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all images once: (B, C, H, W) float32 images and (B,) int64 labels, -1 where unknown."""
        if batch_size < 1:
            raise DataError(f"The batch size is {batch_size}; give 1 or more.")
        return zip(self._images.split(batch_size), self._labels.split(batch_size), strict=True)


def tensor_images(images: Tensor, labels: Tensor | None = None) -> TensorImages:
    """Wrap images (K, C, H, W), and labels (K,) where known, that are normalised for the model already."""
    if images.dim() != 4 or 0 in images.shape:
        raise DataError(f"The images have the shape {tuple(images.shape)}; give a tensor (K, C, H, W) with K > 0.")
    if not images.is_floating_point():
        raise DataError(
            f"The images are {images.dtype}; give floats, normalised the way the model wants them "
            "(timm.data.create_transform does that)."
        )
    images = images.detach().float()
    if not bool(images.isfinite().all()):
        raise DataError("The images hold values that are not finite; remove the infinities and NaNs.")
    if labels is None:
        labels = torch.full((len(images),), -1)
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        raise DataError(
            f"The labels are {labels.dtype} of the shape {tuple(labels.shape)}; "
            f"give one whole number for each of the {len(images)} images."
        )
    return TensorImages(images, labels.detach().long())
