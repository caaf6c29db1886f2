"""Images as people have them in Python: a tensor, batches of a DataLoader, a list, a dataset, arrays, what
`open_images` returns. Everything but the last is read once and kept, so that every pass gives the same images."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from patchslim.data.source import ImageSource, TensorImages, tensor_images
from patchslim.errors import DataError

if TYPE_CHECKING:
    from patchslim.hosts import HostInfo  # slow to import, and who opens images may not need it

AnyImages: TypeAlias = ImageSource | Tensor | NDArray[Any] | Dataset[Any] | Iterable[Any] | Callable[[], Iterable[Any]]
MOST_GIB = 4  # of images read into memory, as float32: 7,000 of 224 × 224 pixels
IMAGES, LABELS = ("pixel_values", "image", "images", "x"), ("labels", "label", "y")  # keys of a batch that is a dict
TRY = "give a tensor (K, C, H, W), any iterable of such batches, or what open_images returns"


def as_source(images: AnyImages, info: HostInfo | None = None) -> ImageSource:
    """Take images any way: what has `batches` is handed back, the rest is read into memory, at most 4 GiB.

    A batch is a tensor or an array (B, C, H, W), or a tuple or dict with one and perhaps labels (B,). So is a dataset's
    item (C, H, W). Functions are called for their batches. Given a model's `info`, the images have to be of its shape.
    """
    if callable(getattr(images, "batches", None)):
        source = cast(ImageSource, images)
    elif isinstance(images, Tensor):
        source = tensor_images(images)  # not copied
    else:
        source = _gathered(images)
    if info is not None:
        wanted, found = (info.channels, *info.image_size), (source.channels, *source.image_size)
        if found != wanted:
            raise DataError(
                f"The images in {source.name} have {_shape(found)}, the model takes {_shape(wanted)}; "
                "open them with the model, or resize and normalise them for it."
            )
    return source


def _shape(sides: tuple[int, ...]) -> str:
    channels, height, width = sides
    return f"{channels} channels of {width}x{height} pixels"


def _gathered(given: Any) -> TensorImages:
    name, pixels, labels, size = type(given).__name__, list[Tensor](), list[Tensor](), 0
    for part, own in (pair for element in _elements(given) for pair in _batches(element)):
        checked, marks = next(tensor_images(part, own).batches(len(part)))
        if pixels and checked.shape[1:] != pixels[0].shape[1:]:
            shapes = (_shape(tuple(tensor.shape[1:])) for tensor in (pixels[0], checked))
            raise DataError(f"The batches of the {name} differ: {' and '.join(shapes)}; give images of one size.")
        size += checked.nbytes
        if size > MOST_GIB * 2**30:
            raise DataError(
                f"The {name} holds more than {MOST_GIB} GiB of images, which is as much as is kept in memory; "
                "give fewer, or a folder or shards with open_images, which are read anew in every pass."
            )
        pixels.append(checked.clone())  # some loaders fill the same memory with every batch
        labels.append(marks.cpu())
    if not pixels:
        raise DataError(f"There are no images in the {name}; {TRY}. A generator can be gone through only once.")
    return TensorImages(torch.cat(pixels), torch.cat(labels), name)


def _elements(given: Any) -> Iterable[Any]:
    """The batches or items of anything, one after the other."""
    if isinstance(given, (str, bytes, nn.Module)) or hasattr(given, "__fspath__"):
        hint = "open it with open_images" if not isinstance(given, nn.Module) else TRY
        raise DataError(f"A {type(given).__name__} can't be used as images; {hint}.")
    if isinstance(given, (np.ndarray, Mapping)) or _is_pair(given):
        return [given]
    if hasattr(given, "__iter__"):
        return cast(Iterable[Any], given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return (given[index] for index in range(len(given)))  # a dataset need not say where it ends
    if callable(given):
        try:
            inspect.signature(given).bind()
        except TypeError:
            raise DataError(f"The function for images, {given!r}, needs arguments; give one without.") from None
        return _elements(given())
    raise DataError(f"A {type(given).__name__} can't be used as images; {TRY}.")


def _is_pair(given: Any) -> bool:
    """Whether this is one batch with its labels, and not two batches."""
    both = isinstance(given, (tuple, list)) and len(given) == 2 and all(map(_is_array, given))
    return both and given[0].ndim == 4 and given[1].ndim == 1


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _batches(element: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (B, C, H, W) and labels (B,), -1 where unknown, from one batch or item."""
    labels = None
    if isinstance(element, Mapping):
        found = [key for key in IMAGES if key in element]
        if not found:
            keys = ", ".join(map(str, element)) or "no keys"
            raise DataError(f"A batch has {keys}, and none of them names images; call them {' or '.join(IMAGES)}.")
        image, labels = element[found[0]], next((element[key] for key in LABELS if key in element), None)
    elif isinstance(element, (tuple, list)) and not _are_alike(element):
        image, labels = (*element, None, None)[:2]
    else:
        image = element
    for pixels in image if isinstance(image, (tuple, list)) and _are_alike(image) else [image]:
        part = _tensor(pixels)
        part = part[None] if part.dim() == 3 else part
        yield part, _labels(labels, len(part))


def _are_alike(values: Any) -> bool:
    """Whether these are several images or several batches: (image, label) and (image, mask) are not."""
    return bool(values) and all(_is_array(value) and value.shape == values[0].shape for value in values)


def _tensor(value: Any) -> Tensor:
    if not _is_array(value):
        raise DataError(
            f"The images come as {type(value).__name__}, not as tensors or arrays; "
            "give the dataset a transform that makes normalised tensors."
        )
    if value.ndim not in (3, 4):
        raise DataError(f"The images have the shape {tuple(value.shape)}; give (B, C, H, W), or (C, H, W) for one.")
    try:
        return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    except TypeError:  # of numbers that torch does not have
        raise DataError(f"The images are arrays of {value.dtype}; give floats, normalised for the model.") from None


def _labels(value: Any, count: int) -> Tensor:
    """Whole numbers are labels, one for each image; anything else says nothing."""
    try:
        labels = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        labels = torch.empty(0)
    if labels.dim() == 0:
        labels = labels[None]
    if labels.is_floating_point() or labels.dim() != 1:
        return torch.full((count,), -1)
    return labels.long().clamp(min=-1)
