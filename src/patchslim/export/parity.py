"""Does the file say what the model says? Both run on the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource, tensor_images
from patchslim.errors import ExportError
from patchslim.export.packages import first_words
from patchslim.hosts import HostInfo

TOLERANCE = 1e-3  # largest difference of a logit
AGREEMENT = 99.9  # percent of images with the same answer
BATCH = 16
NOISE = 32  # random images, where no real ones are given


@dataclass(frozen=True)
class Parity:
    """How a file's logits differ from the model's on the same images."""

    images: int
    max_difference: float  # of any logit
    agreement: float  # images with the same top-1, in percent


def noise(info: HostInfo, seed: int = 0) -> ImageSource:
    """Seeded random images of a host's size."""
    generator = torch.Generator().manual_seed(seed)
    return tensor_images(torch.randn(NOISE, info.channels, *info.image_size, generator=generator))


@torch.no_grad()
def compare(model: nn.Module, run: Callable[[Tensor], Tensor], images: ImageSource) -> Parity:
    """Measure; ExportError when the file does not run or gives numbers that are none."""
    differences, agree = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for pixels in _sizes(images):
        wanted = model(pixels)
        found = _run(run, pixels)
        if found.shape != wanted.shape or not bool(found.isfinite().all()):
            raise ExportError("The file's logits are not finite numbers of the model's shape; it was not kept.")
        differences.append((found - wanted).abs().amax(dim=1))
        agree.append(found.argmax(dim=1) == wanted.argmax(dim=1))
    apart, same = torch.cat(differences), torch.cat(agree)
    return Parity(len(apart), float(apart.max()), float(same.double().mean() * 100))


def _run(run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    try:
        return run(pixels)
    except Exception as error:  # each runtime has errors of its own
        raise ExportError(f"The file was written but does not run: {first_words(error)}; it was not kept.") from None


def _sizes(images: ImageSource) -> Iterator[Tensor]:
    """Batches of several sizes, the first image alone: the batch size has to be free."""
    first = True
    for pixels, _ in images.batches(BATCH):
        parts = (pixels[:1], pixels[1:]) if first else (pixels,)
        first = False
        yield from (part for part in parts if len(part))


def check(found: Parity) -> None:
    """Raise ExportError unless an fp32 file says what the model says."""
    if found.max_difference > TOLERANCE or found.agreement < AGREEMENT:
        raise ExportError(
            f"The file does not say what the model says: over {found.images} images logits differ by up to "
            f"{found.max_difference:.2g} ({TOLERANCE:g} is allowed) and {found.agreement:.2f} % of the answers agree "
            f"({AGREEMENT:g} % is asked for); it was not kept."
        )
