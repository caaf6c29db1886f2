"""What the tables of accuracy share: their options, images decoded once, and the head of their raw files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from patchslim.data import ImageSource, tensor_images
from patchslim.measure import device_name


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


def in_memory(source: ImageSource) -> ImageSource:
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
