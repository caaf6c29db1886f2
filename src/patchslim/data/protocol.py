"""What the rest of patchslim asks of images, wherever they come from."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


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
