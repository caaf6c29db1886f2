"""What the tables of accuracy share: their options, images decoded once, and the head of their raw files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.data import Images, ImageSource, tensor_images
from patchslim.data.canvas import Canvases
from patchslim.data.tensors import TensorImages
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


CANVASES: dict[tuple[str, str], Canvases] = {}  # of all training images, for as long as the process lives


class Remembered(Images):
    """Training images that are read once for all rows that want the same; `Remembered.of` makes them."""

    @classmethod
    def of(cls, images: Images) -> Self:
        """The same images."""
        images.__class__ = cls
        assert isinstance(images, cls)
        return images

    def canvases(self, device: torch.device) -> Canvases:
        """Read once."""
        key = self.fingerprint, str(device)
        if key not in CANVASES:
            CANVASES[key] = super().canvases(device)
        return CANVASES[key]
