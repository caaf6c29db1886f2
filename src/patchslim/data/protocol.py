"""What the rest of patchslim asks of images, wherever they come from."""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self, runtime_checkable

from torch import Tensor

from patchslim.data.transform import Transform
from patchslim.data.views import Order


class ImageSource(Protocol):
    """Images that can be gone through any number of times, in the same order."""

    def __len__(self) -> int: ...

    @property
    def name(self) -> str:
        """What to call the images in reports and messages."""

    @property
    def labelled(self) -> bool:
        """Whether any image has a label."""

    @property
    def classes(self) -> int | None:
        """The number of class folders, None if there are none."""

    @property
    def fingerprint(self) -> str:
        """A hex sha256 that stands for these images and no others."""

    @property
    def skipped(self) -> int:
        """The number of bad images left out in the latest pass."""

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of every image."""

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all images once: (B, C, H, W) float32 images and (B,) int64 labels, -1 where unknown."""


@runtime_checkable
class TrainingSource(ImageSource, Protocol):
    """Images that a network can be trained on."""

    @property
    def labels(self) -> list[int]:
        """The label of every image, -1 where unknown."""

    @property
    def mirrors(self) -> bool:
        """Whether an image's mirror image shows the same thing."""

    def subset(self, indices: Sequence[int]) -> Self:
        """Some of the images, as a source of their own."""

    def views(self, transform: Transform, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """Training views like those of `batches`: one batch for each of the order's, smaller where images are bad."""
