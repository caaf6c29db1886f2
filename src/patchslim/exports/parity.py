"""Does the file say what the model says? Both run on the same images.

Where images choose their own patches, two patches may be equally good to the last bit, and another runtime's rounding
then takes the other one: logits move by tenths, in the model too, when a pixel changes in the sixth digit. Such an
image counts as a tie if the file's logits are those of the model for the same image with that little noise; the file's
answer is then one that the model gives too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource, tensor_images
from patchslim.errors import ExportError, first_words
from patchslim.hosts import HostInfo, answer_of
from patchslim.slimmed import plan_of

TOLERANCE = 1e-3  # largest difference of a logit
AGREEMENT = 99.9  # percent of images with the same answer
BATCH = 16
NOISE = 32  # random images, where no real ones are given
JITTER, COPIES = 1e-5, 32  # noise on normalised pixels, and how often it is drawn, to tell a tie


@dataclass(frozen=True)
class Parity:
    """How a file's logits differ from the model's on the same images."""

    images: int
    max_difference: float  # of any logit, over all images but ties
    agreement: float  # images with the same top-1, ties with that of the noisy image, in percent
    ties: int  # images whose patches the last bit decides
    other_answers: int = 0  # images whose top-1 is another than the model's, ties among them


def noise(info: HostInfo) -> ImageSource:
    """Seeded random images of a host's size."""
    generator = torch.Generator().manual_seed(0)
    return tensor_images(torch.randn(NOISE, info.channels, *info.image_size, generator=generator))


@torch.no_grad()
def compare(
    model: nn.Module, run: Callable[[Tensor], Tensor], images: ImageSource, *, find_ties: bool = True
) -> Parity:
    """Measure; ExportError when the file does not run or gives numbers that are none."""
    plan = plan_of(model)
    differences, agree, ties, others = [torch.zeros(1)], [torch.zeros(0, dtype=torch.bool)], 0, 0
    for pixels in _sizes(images):
        wanted = answer_of(model(pixels))
        found = _run(run, pixels)
        if found.shape != wanted.shape or not bool(found.isfinite().all()):
            raise ExportError("The file's logits are not finite numbers of the model's shape; it was not kept.")
        apart, same = _apart(found, wanted), found.argmax(dim=1) == wanted.argmax(dim=1)
        others += int((~same).sum())
        if find_ties and plan is not None and plan.per_image:
            tied = _tied(model, pixels, found, apart > TOLERANCE)
            apart, same, ties = apart[~tied], same | tied, ties + int(tied.sum())
        differences.append(apart)
        agree.append(same)
    every = torch.cat(agree)
    return Parity(len(every), float(torch.cat(differences).max()), float(every.double().mean() * 100), ties, others)


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """The largest difference of each image's logits: twice (B, classes) → (B,)."""
    return (a - b).abs().amax(dim=1)


def _tied(model: nn.Module, pixels: Tensor, found: Tensor, suspect: Tensor) -> Tensor:
    """Which of the suspect images (B,) differ only because the last bit decides which patches they keep."""
    tied = torch.zeros_like(suspect)
    generator = torch.Generator().manual_seed(0)
    for image in suspect.nonzero()[:, 0].tolist():
        noisy = pixels[image] + JITTER * torch.randn(COPIES, *pixels.shape[1:], generator=generator)
        logits = answer_of(model(noisy))
        alike = (_apart(logits, found[image]) <= TOLERANCE) & (logits.argmax(dim=1) == found[image].argmax())
        tied[image] = bool(alike.any())
    return tied


def _run(run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    try:
        return run(pixels)
    except Exception as error:  # each runtime has errors of its own
        raise ExportError(f"The file was written but does not run: {first_words(error)}; it was not kept.") from None


def _sizes(images: ImageSource) -> Iterator[Tensor]:
    """Batches of several sizes, the first image alone: the batch size has to be free."""
    for number, (pixels, _) in enumerate(images.batches(BATCH)):
        parts = (pixels,) if number else (pixels[:1], pixels[1:])
        yield from (part for part in parts if len(part))


def check(found: Parity) -> None:
    """Raise ExportError unless an fp32 file says what the model says."""
    if found.max_difference > TOLERANCE or found.agreement < AGREEMENT:
        raise ExportError(
            f"The file does not say what the model says: over {found.images} images logits differ by up to "
            f"{found.max_difference:.2g} ({TOLERANCE:g} is allowed) and {found.agreement:.2f} % of the answers agree "
            f"({AGREEMENT:g} % is asked for); it was not kept."
        )
