"""The images of a source, read in the same order every time."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from patchslim.data.canvas import Canvases, canvas_size, onto_canvas
from patchslim.data.items import Item
from patchslim.data.reading import Batch, ItemDataset, Reading, Tally, collate, read_item
from patchslim.data.transform import Transform, transform_for
from patchslim.data.views import Order, ViewDataset
from patchslim.errors import DataError


class Images:
    """Images of a folder, of shards or of the digits, made ready for a model; `open_images` makes them.

    `name` is the source as given, `labels` has the label of every image, -1 where unknown, `labelled` says whether any
    is known, `classes` is the number of class folders (None if there are none). `fingerprint` hashes names, sizes,
    labels and the chosen sample, but not where the folder lies. `image_size` is (H, W) of every image in a batch.
    `skipped` is the number of bad images in the latest pass. `mirrors` says whether an image's mirror image shows the
    same thing.
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
        mirrors: bool = True,
    ) -> None:
        self.name, self.fingerprint, self.classes, self.mirrors = name, fingerprint, classes, mirrors
        self.labels = [item.label for item in items]
        self.labelled = any(label >= 0 for label in self.labels)
        self.skipped = 0
        self._items, self._transform, self._workers = tuple(items), transform, workers
        self.image_size = transform.image_size or self._own_size()
        self.channels = len(transform.mean)

    def __len__(self) -> int:
        """Count the images that a pass tries to read, bad ones included."""
        return len(self._items)

    def subset(self, indices: Sequence[int]) -> Self:
        """Some of the images, as a source of their own."""
        chosen = hashlib.sha256(f"{self.fingerprint} {list(indices)}".encode("ascii"))
        return self._alike([self._items[index] for index in indices], self._transform, chosen.hexdigest())

    def prepared_for(self, model: nn.Module) -> Self:
        """Give the same images as another model wants them."""
        return self._alike(self._items, transform_for(model), self.fingerprint)

    def _alike(self, items: Sequence[Item], transform: Transform, fingerprint: str) -> Self:
        more: dict[str, Any] = {"classes": self.classes, "workers": self._workers, "mirrors": self.mirrors}
        return type(self)(self.name, items, transform, fingerprint=fingerprint, **more)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all images once: (B, C, H, W) float32 images and (B,) int64 labels, -1 where unknown.

        Bad images are left out and counted in `skipped`, so a batch may be smaller than asked for.
        """
        if batch_size < 1:
            raise DataError(f"The batch size is {batch_size}; give 1 or more.")
        return self._pass(batch_size)

    def _pass(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        self.skipped = 0
        tally = Tally(self.name, len(self))
        dataset = ItemDataset(self._items, self._transform)
        for batch in self._loader(dataset, self.image_size, batch_size=batch_size):
            self.skipped += len(batch.bad)
            tally.add(len(batch.labels), batch.bad)
            if batch.mismatch:
                height, width = self.image_size
                raise DataError(
                    f"The images in {self.name} differ in size: {batch.mismatch} pixels, the first one "
                    f"{width}x{height}; pass the model, so that they are resized for it."
                )
            if batch.images is not None:
                yield batch.images, batch.labels
        if tally.good == 0:
            raise tally.nothing_read()

    def views(self, transform: Transform, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """Training views in a seeded order: one batch for each of the order's, smaller where images are bad."""
        tally = Tally(self.name, order.batch_size * len(order))
        dataset = ViewDataset(self._items, transform, order.seed)
        pinned = torch.cuda.is_available()  # a GPU would wait for other memory
        for batch in self._loader(dataset, self.image_size, batch_sampler=order, pin_memory=pinned):
            tally.add(len(batch.labels), batch.bad)
            self.skipped = len(set(tally.bad))
            yield torch.empty(0) if batch.images is None else batch.images, batch.labels

    @property
    def canvas_bytes(self) -> int:
        """What `canvases` takes."""
        return len(self) * len(self._transform.mean) * math.prod(canvas_size(self.image_size))

    def canvases(self, device: torch.device) -> Canvases:
        """Every picture read once, to cut views from on a device."""
        tally, size = Tally(self.name, len(self)), canvas_size(self.image_size)
        pixels = torch.zeros(len(self), len(self._transform.mean), *size, dtype=torch.uint8, device=device)
        dataset = ItemDataset(self._items, onto_canvas(self._transform, size))
        found = Canvases.of(self._loader(dataset, size, batch_size=64), self.labels, pixels, tally)
        self.skipped = len(tally.bad)
        return found

    def _loader(self, dataset: Dataset[Reading], image_size: tuple[int, int], **settings: Any) -> Iterable[Batch]:
        loader: Iterable[Batch] = DataLoader(
            dataset,
            num_workers=self._workers,
            collate_fn=partial(collate, image_size=image_size),
            # Its own generator: a loader draws from the global one at every pass, which would change the
            # random numbers of whoever reads images.
            generator=torch.Generator(),
            **settings,
        )
        return loader

    def picture(self, index: int) -> Tensor:
        """Give the image at `index` as the model sees it, resized and cropped: (3, H, W) uint8."""
        if not 0 <= index < len(self):
            raise DataError(f"There is no image {index} in {self.name}; give an index from 0 to {len(self) - 1}.")
        reading = read_item(self._items[index], self._transform)
        if reading.image is None:
            raise DataError(f"Image {index} in {self.name}, {reading.name}, is bad ({reading.reason}); take another.")
        return self._transform.undo(reading.image)

    def _own_size(self) -> tuple[int, int]:
        """Find the size (H, W) of the first image that can be read, for images that keep their own."""
        tally = Tally(self.name, len(self))
        for item in self._items:
            reading = read_item(item, self._transform)
            if reading.image is not None:
                height, width = reading.image.shape[-2:]
                return height, width
            tally.add(0, [(reading.name, reading.reason)])
        raise tally.nothing_read()
