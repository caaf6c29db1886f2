"""Which methods are measured at which MAC ratios for the paper's tables: its own rows, and what users would take today
beside its own method."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import published
from published import BASELINE, DPS, PS, Model, Row

# The names of `patchslim compare` for what the paper's rows are: its own method as it describes it, and as patchslim
# does by default.
METHODS = {
    "SCOP": ("scop",),
    "PoWER": ("power",),
    "HVT": ("hvt",),
    "VTP": ("vtp",),
    "Uniform pruning": ("uniform",),
    PS: ("impact", "ps-static"),
    DPS: ("dps", "ps-predicted"),
}
BESIDE = ("ps-matched", "tome", "evit", "dynamicvit")  # not in the paper, at the ratios of its own two rows
NAMES = {
    "base": "base",
    "host": "base, as it comes",
    "scop": "SCOP",
    "power": "PoWER",
    "hvt": "HVT",
    "vtp": "VTP",
    "uniform": "uniform pruning",
    "impact": "PS, as the paper says",
    "ps-static": "PS, patchslim's",
    "dps": "DPS, as the paper says",
    "ps-predicted": "DPS, patchslim's",
    "ps-matched": "matched merge, patchslim's",
    "tome": "ToMe",
    "evit": "EViT",
    "dynamicvit": "DynamicViT",
}


@dataclass(frozen=True)
class Wanted:
    """A cell: a method at a MAC ratio, and the published row it stands beside, if there is one."""

    method: str
    ratio: float
    published: Row | Model | None = None


@dataclass(frozen=True)
class Block:
    """The rows of one model."""

    model: str
    cells: tuple[Wanted, ...]
    base: Row | Model | None = None  # published

    @property
    def pairs(self) -> set[tuple[str, float]]:
        """As `compare` takes them."""
        return {(cell.method, cell.ratio) for cell in self.cells}

    def published(self, method: str, ratio: float) -> dict[str, Any] | None:
        """The published row that a cell stands beside, for a raw file."""
        found = (own.published for own in self.cells if (own.method, own.ratio) == (method, ratio))
        return next((row.as_dict() for row in found if row is not None), None)

    @property
    def published_base(self) -> dict[str, Any] | None:
        """The model's own published row, for a raw file."""
        return None if self.base is None else self.base.as_dict()


def table1(models: Iterable[str] | None = None, also: Iterable[float] = ()) -> list[Block]:
    """A block for each model; `also` are ratios at which every method is measured, though the paper has no such row."""
    known = list(dict.fromkeys(row.model for row in published.TABLE1))
    return [_with_all(_block(published.TABLE1, model, BESIDE), also) for model in models or known]


def table2(models: Iterable[str] | None = None) -> list[Block]:
    """A block for each model of timm or ours; only LV-ViT's have cells beside the model as it is."""
    blocks = []
    for model in models or dict.fromkeys(row.model for row in published.TABLE2):
        own = [row for row in published.TABLE2 if row.model == model]
        cells = [cell for row in own if row.slim for cell in _cells(row, row.slim, BESIDE[:1])]
        blocks.append(Block(model, tuple(cells), next(row for row in own if not row.slim)))
    return blocks


def table3(models: Iterable[str]) -> list[Block]:
    """The published rows are DeiT-S's; another model is measured at their ratio and has none beside it."""
    blocks = []
    for model in models:
        own = _block(published.TABLE3, model, ())
        if not own.cells:
            cells = _block(published.TABLE3, published.S, ()).cells
            own = Block(model, tuple(Wanted(cell.method, cell.ratio) for cell in cells))
        blocks.append(own)
    return blocks


def _block(table: Iterable[Row], model: str, beside: Iterable[str]) -> Block:
    own = [row for row in table if row.model == model]
    cells = [cell for row in own if row.method != BASELINE for cell in _cells(row, row.method, beside)]
    return Block(model, tuple(cells), next((row for row in own if row.method == BASELINE), None))


def _cells(row: Row | Model, method: str, beside: Iterable[str]) -> list[Wanted]:
    found = [Wanted(name, row.ratio, row) for name in METHODS[method]]
    return [*found, *(Wanted(name, row.ratio) for name in beside if method in (PS, DPS))]


def _with_all(block: Block, ratios: Iterable[float]) -> Block:
    methods = [*(name for names in METHODS.values() for name in names if name != "uniform"), *BESIDE]
    more = [Wanted(name, ratio) for ratio in ratios for name in methods if (name, ratio) not in block.pairs]
    return Block(block.model, block.cells + tuple(more), block.base)


def without_twins(block: Block) -> Block:
    """For timing with weights that are random: `impact` and `ps-static` are the same network but for its counts."""
    return Block(block.model, tuple(own for own in block.cells if own.method != "impact"), block.base)
