"""What all figures work on: a model seen as a host, images to choose patches by, labelled images to measure with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.inputs import say, scored
from benchmarks.rows import RESULTS, Row, about, keep, read_rows
from patchslim.data import ImageSource
from patchslim.evidence.features import Features
from patchslim.hosts import Host, open_host
from patchslim.macs import host_macs
from patchslim.measure.accuracy import ranks_of

SEARCH_BATCH, SEARCH_BYTES = 32, 2 * 2**30  # as `patchslim slim` has them


@dataclass
class Work:
    """Images are None where they are not given, or where random weights would make nothing of them."""

    name: str
    model: nn.Module
    images: ImageSource | None = None  # to choose patches by; labels are never read
    val: ImageSource | None = None
    batch_size: int = 250
    seed: int = 0
    missing: list[str] = field(default_factory=list)  # what the command was not given
    out: Path = RESULTS
    resume: bool = False  # leave alone what is there

    @cached_property
    def host(self) -> Host:
        """The model as a host."""
        return open_host(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def scored(self) -> bool:
        """Whether accuracy can be measured."""
        return self.val is not None and self.val.labelled

    @cached_property
    def base(self) -> Tensor:
        """Which labelled images the host gets right: (images,) booleans."""
        return self.hits(self.model)

    @cached_property
    def macs(self) -> int:
        """The host's, per image."""
        return host_macs(self.host.info)

    @cached_property
    def features(self) -> Features:
        """The host's features on the images to choose by."""
        assert self.images is not None
        return Features(self.host, self.images, SEARCH_BATCH, SEARCH_BYTES)

    def hits(self, network: nn.Module) -> Tensor:
        """Which labelled images a network gets right: (images,) booleans on the CPU."""
        assert self.val is not None
        (found,) = ranks_of([network], [self.val], self.batch_size)
        return found.hits

    def labelled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of labelled images, pixels on the model's device, in the order of `hits`: (B, C, H, W) and (B,)."""
        assert self.val is not None
        for pixels, labels in self.val.batches(self.batch_size):
            known = labels >= 0
            if bool(known.any()):
                yield pixels[known].to(self.device), labels[known]

    def row(self, figure: str, right: Tensor | None = None, **fields: Any) -> Row:
        """A row of a figure; `right` says which labelled images were."""
        images = None if self.images is None else len(self.images)
        head = about(self.device) | {"question": f"figure-{figure}", "model": self.name, "images": images}
        score = {} if right is None else scored(right, self.base)
        return Row(**head | {"method": "host", "dtype": "float32", "seed": self.seed} | fields | score)

    def host_row(self, figure: str) -> Row:
        """The host, which a figure shows as a line."""
        base = scored(self.base) if self.scored else {}
        return self.row(figure, macs=self.macs, macs_ratio=1.0, **base)

    def keep(self, rows: Sequence[Row]) -> None:
        """On disk before this returns."""
        keep(rows, self.out)
        say(f"{rows[-1].question}: {len(rows)} rows, the last {rows[-1].point or rows[-1].method}")

    @cached_property
    def before(self) -> set[tuple[str, ...]]:
        """The keys of rows that are there and stay."""
        return {row.key for row in read_rows(self.out)} if self.resume else set()

    def done(self, row: Row) -> bool:
        """Whether a row with the same key is there."""
        return row.key in self.before
