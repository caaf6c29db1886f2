"""The images of a source, read in the same order every time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from patchslim.data.dataset import Batch, ItemDataset, read_item
from patchslim.data.items import Item
from patchslim.data.transform import Transform, transform_for
from patchslim.errors import DataError


@dataclass
class _Tally:
    """Counts the good and bad images of one pass and ends it when too many are bad."""

    name: str
    total: int
    good: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)

    def add(self, good: int, bad: Sequence[tuple[str, str]]) -> None:
        self.good += good
        self.bad += bad
        if len(self.bad) > max(5, self.total / 10):
            raise DataError(
                f"{len(self.bad)} of the first {self.good + len(self.bad)} images (of {self.total}) "
                f"in {self.name} can't be read, {self._first()}; remove or repair the bad ones."
            )

    def nothing_read(self) -> DataError:
        return DataError(
            f"None of the {self.total} images in {self.name} can be read, {self._first()}; give other images."
        )

    def _first(self) -> str:
        name, reason = self.bad[0]
        return f"the first being {name} ({reason})"


class Images:
    """Images of a folder, of shards or of the digits, made ready for a model; `open_images` makes them.

    `name` is the source as given, `labelled` says whether any image has a label, `classes` is the number of
    class folders (None if there are none). `fingerprint` hashes names, sizes, labels and the chosen sample,
    but not where the folder lies. `image_size` is (H, W) of every image in a batch. `skipped` is the number
    of bad images in the latest pass.
    """

    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        transform: Transform,
        *,
        fingerprint: str,
        classes: int | None = None,
        workers: int = 0,
    ) -> None:
        self.name = name
        self.classes = classes
        self.fingerprint = fingerprint
        self.labelled = any(item.label >= 0 for item in items)
        self.skipped = 0
        self._items = tuple(items)
        self._transform = transform
        self._workers = workers
        self.image_size = transform.image_size or self._own_size()

    def __len__(self) -> int:
        """Count the images that a pass tries to read, bad ones included."""
        return len(self._items)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all images once: (B, C, H, W) float32 images and (B,) int64 labels, -1 where unknown.

        Bad images are left out and counted in `skipped`, so a batch may be smaller than asked for.
        """
        if batch_size < 1:
            raise DataError(f"The batch size is {batch_size}; give 1 or more.")
        return self._pass(batch_size)

    def picture(self, index: int) -> Tensor:
        """Give the image at `index` as the model sees it, resized and cropped: (3, H, W) uint8."""
        if not 0 <= index < len(self):
            raise DataError(f"There is no image {index} in {self.name}; give an index from 0 to {len(self) - 1}.")
        reading = read_item(self._items[index], self._transform)
        if reading.image is None:
            raise DataError(f"Image {index} in {self.name}, {reading.name}, is bad ({reading.reason}); take another.")
        return self._transform.undo(reading.image)

    def prepared_for(self, model: nn.Module) -> "Images":
        """Give the same images as another model wants them."""
        return Images(
            self.name,
            self._items,
            transform_for(model),
            fingerprint=self.fingerprint,
            classes=self.classes,
            workers=self._workers,
        )

    def _pass(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        self.skipped = 0
        tally = _Tally(self.name, len(self))
        for batch in self._loader(batch_size):
            self.skipped += len(batch.bad)
            tally.add(len(batch.labels), batch.bad)
            if batch.mismatch:
                raise DataError(self._mismatch(batch.mismatch))
            if batch.images is not None:
                yield batch.images, batch.labels
        if tally.good == 0:
            raise tally.nothing_read()

    def _loader(self, batch_size: int) -> Iterable[Batch]:
        dataset = ItemDataset(self._items, self._transform, self.image_size)
        loader: Iterable[Batch] = DataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=self._workers,
            collate_fn=dataset.collate,
            # Its own generator: a loader draws from the global one at every pass, which would change the
            # random numbers of whoever reads images.
            generator=torch.Generator(),
        )
        return loader

    def _own_size(self) -> tuple[int, int]:
        """Find the size (H, W) of the first image that can be read, for images that keep their own."""
        tally = _Tally(self.name, len(self))
        for item in self._items:
            reading = read_item(item, self._transform)
            if reading.image is not None:
                height, width = reading.image.shape[-2:]
                return height, width
            tally.add(0, [(reading.name, reading.reason)])
        raise tally.nothing_read()

    def _mismatch(self, what: str) -> str:
        height, width = self.image_size
        return (
            f"The images in {self.name} differ in size: {what} pixels, the first one {width}x{height}; "
            "pass the model, so that they are resized for it."
        )
