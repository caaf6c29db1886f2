"""What the tables of accuracy share: their options, images decoded once, and the head of their raw files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.data import ImageSource, tensor_images
from patchslim.data.tensors import TensorImages
from patchslim.data.transform import Transform
from patchslim.data.views import Order
from patchslim.measure import device_name
from patchslim.search.network import relative_error

RESULTS = Path(__file__).parent.parent / "results"


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options every table has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--device")
    return parser


def rows(pattern: str) -> list[dict[str, Any]]:
    """All rows of the raw files that match."""
    return [row for path in sorted(RESULTS.glob(pattern)) for row in json.loads(path.read_text())["rows"]]


def in_memory(source: ImageSource) -> TensorImages:
    """All images decoded once."""
    batches = list(source.batches(100))
    return tensor_images(torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]))


def head(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Where and on what the rows are measured."""
    return {
        "model": args.model,
        "device": device_name(device),
        "torch": torch.__version__,
        "dtype": "float32",
        "calibration_images": args.images,
    }


def closeness(head: nn.Module, found: Tensor, wanted: Tensor) -> dict[str, float]:
    """How close a slim model's features (images, d) are to the host's: their error, KL of the outputs in nats, and in
    percent how often the answer is the same."""
    got, expected = head(found).log_softmax(dim=1), head(wanted).log_softmax(dim=1)
    kl = F.kl_div(got, expected, reduction="batchmean", log_target=True)
    agree = (got.argmax(dim=1) == expected.argmax(dim=1)).double().mean() * 100
    return {"error": float(relative_error(found, wanted).mean()), "kl": float(kl), "agree": float(agree)}


VIEWS: dict[Any, Any] = {}  # of all training images, for as long as the process lives


class Remembered:
    """Training images whose views are read once and kept, as bytes on the device, for all rows that want the same."""

    name: str
    labelled: bool
    labels: list[int]
    classes: int | None
    fingerprint: str
    skipped: int
    image_size: tuple[int, int]
    mirrors: bool

    def __init__(self, source: Any, device: torch.device) -> None:
        self.source, self.device, self.memory = source, device, VIEWS
        for name in ("name", "labelled", "labels", "classes", "fingerprint", "skipped", "image_size", "mirrors"):
            setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return len(self.source)

    def subset(self, indices: Sequence[int]) -> Remembered:
        """Some of the images."""
        return Remembered(self.source.subset(indices), self.device)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, as the model sees them."""
        key = self.source.fingerprint, batch_size
        if key not in self.memory:
            self.memory[key] = list(self.source.batches(batch_size))
        return iter(self.memory[key])

    def views(self, transform: Transform, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The same batches as the source's: a view depends on seed, epoch and image only, so it can be kept."""
        mean, std = (
            torch.tensor(values, device=self.device).view(-1, 1, 1) for values in (transform.mean, transform.std)
        )
        for epoch in range(order.first, order.epochs):
            if self._key(order, epoch) not in self.memory:
                self._read(transform, replace(order, first=epoch), mean, std)
            for pixels, labels in self.memory[self._key(order, epoch)]:
                yield (pixels.float() / 255 - mean) / std, labels

    def _key(self, order: Order, epoch: int) -> tuple[Any, ...]:
        return self.source.fingerprint, order.batch_size, order.seed, epoch

    def _read(self, transform: Transform, order: Order, mean: Tensor, std: Tensor) -> None:
        """All epochs of an order, by the same reading processes."""
        batches = self.source.views(transform, order)
        for epoch in range(order.first, order.epochs):
            found = [next(batches) for _ in range(order.steps)]
            self.memory[self._key(order, epoch)] = [
                (((images.to(self.device) * std + mean) * 255).round().byte(), labels) for images, labels in found
            ]
