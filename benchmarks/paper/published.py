"""What the paper prints (published.json), and the cells that are measured for it: its own methods by our names, and
what users would take today beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.inputs import Chosen, read_methods
from benchmarks.rows import Row
from patchslim.errors import DataError
from patchslim.files import read_json

FILE = Path(__file__).with_name("published.json")
BASELINE, PS, DPS = "Baseline", "PS", "DPS"
# What the paper's rows are here; its own two methods as it describes them, and as patchslim does it.
METHODS = {
    "SCOP": ("scop",),
    "PoWER": ("power",),
    "HVT": ("hvt",),
    "VTP": ("vtp",),
    "Uniform pruning": ("uniform",),
    PS: ("ps:tune_epochs=0", "drop"),
    DPS: ("dps", "predict"),
}
# Not in the paper, at the ratios of its own two rows.
BESIDE = {"table1": ("merge", "tome", "evit", "dynamicvit"), "table2": ("merge",), "table3": ()}
TABLES = tuple(BESIDE)


@dataclass(frozen=True)
class Published:
    """A row of the paper: G of multiply-adds, percent, images/s. A slim one has its share of the host's MACs."""

    model: str  # by timm's name
    top1: float
    gmacs: float
    method: str = BASELINE
    top5: float | None = None
    reduction: float = 0.0
    host_gmacs: float | None = None  # where no reduction is printed
    throughput: int | None = None
    gain: float | None = None
    name: str = ""
    note: str = ""

    @property
    def ratio(self) -> float:
        """Share of the host's multiply-adds that is left."""
        return round(1 - self.reduction / 100 if self.host_gmacs is None else self.gmacs / self.host_gmacs, 3)


@dataclass(frozen=True)
class Cell:
    """A method at a MAC ratio."""

    chosen: Chosen
    ratio: float


@cache
def printed(table: str) -> tuple[Published, ...]:
    """The rows of a table."""
    return tuple(Published(**row) for row in read_json(FILE, DataError, "file of published numbers")[table])


def models_of(table: str) -> list[str]:
    """The models of a table, each once."""
    return list(dict.fromkeys(row.model for row in printed(table)))


def cells_of(table: str, model: str, also: Iterable[float] = ()) -> list[Cell]:
    """The paper's rows of a model first, then what stands beside its own methods; then every method `also` at ratios.

    Table 3 has one model; another is measured at the same ratio.
    """
    rows = [row for row in printed(table) if row.method != BASELINE]
    own = [row for row in rows if row.model == model] or (rows if table == "table3" else [])
    pairs = [(word, row.ratio) for row in own for word in METHODS[row.method]]
    pairs += [(word, row.ratio) for row in own for word in BESIDE[table] if row.method in (PS, DPS)]
    every = [word for words in METHODS.values() for word in words if word != "uniform"]
    pairs += [(word, ratio) for ratio in also for word in (*every, *BESIDE[table])]
    return [Cell(chosen_by(word), ratio) for word, ratio in dict.fromkeys(pairs)]


def beside(tables: Sequence[str], row: Row) -> Published | None:
    """The published row that a measured one stands beside, in the first table that has it."""
    for published in (row for table in tables for row in printed(table)):
        if published.model == row.model and _same(published, row):
            return published
    return None


def _same(published: Published, row: Row) -> bool:
    if row.method == "host" or published.method == BASELINE:
        return row.method == "host" and published.method == BASELINE
    words = [word for word in METHODS[published.method] if published.ratio == row.target_macs]
    return any((own.name, own.settings) == (row.method, row.settings) for own in map(chosen_by, words))


@cache
def chosen_by(word: str) -> Chosen:
    """A method with its settings."""
    return read_methods(word)[0]


def published_models() -> list[dict[str, Any]]:
    """Parameters and MACs of T2T-ViT and LV-ViT."""
    found: list[dict[str, Any]] = read_json(FILE, DataError, "file of published numbers")["models"]
    return found
