"""Which images a model got right, as text in a file: four to a digit."""

from __future__ import annotations

import torch
from torch import Tensor


def to_hex(right: Tensor) -> str:
    """Booleans (images,) as hexadecimal digits, the first image in the highest bit."""
    bits = "".join("1" if hit else "0" for hit in right.tolist())
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def from_hex(text: str, images: int) -> Tensor:
    """And back: booleans (images,)."""
    bits = f"{int(text, 16):0{images}b}"
    return torch.tensor([bit == "1" for bit in bits])
