"""Calibration images as quantisers ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from patchslim.data import ImageSource


@dataclass(frozen=True)
class Arrays:
    """The images of a source as numpy arrays (B, C, H, W), any number of times."""

    images: ImageSource
    batch_size: int

    def __iter__(self) -> Iterator[Any]:
        return (pixels.numpy() for pixels, _ in self.images.batches(self.batch_size))


class Reader:
    """Arrays once, in the way ONNX Runtime's calibrators read them."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        self.name, self._left = name, iter(arrays)

    def get_next(self) -> dict[str, Any] | None:
        """The next batch under the input's name; None after the last."""
        pixels = next(self._left, None)
        return None if pixels is None else {self.name: pixels}
