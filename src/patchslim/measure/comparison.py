"""Methods by MAC ratios on one model: every row is built, measured and recovered alike, and kept in a folder."""

import copy
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from patchslim.cache import Cache
from patchslim.data import AnyImages, ImageSource, as_source
from patchslim.data.views import seeded
from patchslim.errors import BudgetError, MethodError, PlanError, RecoverError, RunError, UnsupportedModel
from patchslim.events import Listener, silent
from patchslim.files import read_sealed, write_json, write_sealed
from patchslim.folder import ITSELF, LOG, STARTED, blank, check_folder, working
from patchslim.hosts import open_host
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import count_macs, host_macs
from patchslim.measure.accuracy import Ranks, ranks_of
from patchslim.measure.bench import batch_of, check_timing
from patchslim.measure.paired import to_hex, with_intervals
from patchslim.methods import Task, fit, make, model_of
from patchslim.recover import RecoverConfig, recover
from patchslim.search import Target
from patchslim.slimmed import rectangular
from patchslim.timing import DTYPES, Contest, device_name
from patchslim.timing.memory import out_of_memory
from patchslim.timing.modes import in_dtype, modes_for

BASE = "base"
CELLS, WORKING, RESULT = "cells", "working", "comparison.json"
FILES = (LOG, CELLS, WORKING)  # what there may be before the first row is there
Row = dict[str, Any]
# What a method may fail with on one model or ratio; the rest of the table goes on.
OWN_FAULT = (BudgetError, MethodError, PlanError, RecoverError, UnsupportedModel)


@dataclass(frozen=True)
class SpeedConfig:
    """How rows are timed: batches of one size and precision; `seconds` for each model and mode."""

    batch_size: int = 32
    dtype: str = "float32"
    modes: tuple[str, ...] = ("auto",)
    seconds: float = 2.0

    def __post_init__(self) -> None:
        check_timing([self.dtype], self.seconds)


@dataclass(frozen=True)
class CompareConfig:
    """How every row is made and measured. Without `recover` rows are measured untuned only.

    A recovery is the same for all, so it should be distillation alone: block-wise reconstruction asks what each token
    stands for, and not every method can tell.
    """

    recover: RecoverConfig | None = None
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    batch_size: int = 32  # images at a time, of searches
    eval_batch_size: int = 64
    seed: int = 0


def compare(
    model: nn.Module,
    images: AnyImages,
    val: AnyImages,
    methods: Sequence[Any],
    ratios: Sequence[float],
    config: CompareConfig | None = None,
    *,
    only: Collection[tuple[str, float]] | None = None,
    train: AnyImages | None = None,
    folder: Path | None = None,
    resume: bool = False,
    listen: Listener = silent,
) -> dict[str, Any]:
    """A table of methods by MAC ratios: top-1 before and after recovery, MACs and throughput, as JSON-able values.

    `images` calibrate, without labels; `val` has labels and measures; `train` are images to recover with, else those
    that calibrate. A method is a name or an object such as `ps.methods.Merge(blocks=2)`. `only` names the cells to
    measure, by label and ratio, where not all are wanted. In a `folder` every finished cell is kept at once, and with
    `resume` those that are there are not measured again.
    """
    config = config or CompareConfig()
    task = Task.of(model, images, seed=config.seed, batch_size=config.batch_size, progress=listen)
    judge = as_source(val, task.info)
    learn = task.images if train is None else as_source(train, task.info)
    about = {
        "model": task.info.name,
        "weights": weights_fingerprint(task.host.model),
        "device": device_name(task.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "settings": asdict(config) | {"speed": asdict(config.speed) | {"modes": list(config.speed.modes)}},
    }
    for name, source in {"images": task.images, "val": judge, "train": learn}.items():
        about[name] = {"count": len(source), "fingerprint": source.fingerprint}
    chosen = [make(method) if isinstance(method, str) else method for method in methods]
    named = {label(method): method for method in chosen}
    for ratio in ratios:
        Target(macs=ratio)  # refuses what is no share, before any work
    wanted = [(name, ratio) for name in named for ratio in sorted(set(ratios), reverse=True)]
    wanted = [cell for cell in wanted if only is None or cell in only]
    store, rows = Store(folder, about), dict[str, Row]()
    comparison = _Comparison(task, judge, learn, config, store)
    with store.opened(resume):
        base = comparison.base_row()
        # Method by method, so that what one learns for a ratio serves the next.
        for name, ratio in wanted:
            cell = file_name(f"{name}@{ratio:g}")
            row = store.get(cell)
            event = {"cell": cell, "fresh": row is None, "total": len(wanted)}
            if row is None:
                listen({"event": "cell", **event, "done": len(rows)})
                row = comparison.row(name, named[name], ratio, cell)
                store.put(cell, row)
            rows[cell] = row
            listen({"event": "row", **event, "done": len(rows)})
        ordered = sorted(rows.values(), key=lambda row: -row["target_macs"])
        table = {**about, "base": base, "rows": with_intervals(base, ordered)}
        if folder is not None:
            write_json(folder / RESULT, table)
    return table


def label(method: Any) -> str:
    """A row's name: the method's, with the settings that are not its usual ones: `merge,blocks=None`."""
    own = {} if not hasattr(method, "__dataclass_fields__") else {item.name: item.default for item in fields(method)}
    words = [f"{name}={getattr(method, name)}" for name, usual in own.items() if getattr(method, name) != usual]
    return ",".join([getattr(method, "name", type(method).__name__), *words])


def file_name(label: str) -> str:
    """A row's label as the name of a file: the same, less what file systems take for something else."""
    return quote(label, safe="@=,")


def check_place(folder: Path, resume: bool) -> None:
    """Raise RunError unless a comparison may be written, or gone on with, in this folder."""
    if not blank(folder, ITSELF, lambda: _has_cells(folder), FILES):
        check_folder(folder, resume, lambda found: (found / STARTED).exists(), "comparison")


def _has_cells(folder: Path) -> bool:
    return any((folder / CELLS).glob("*.json"))


class Store:
    """A comparison's folder; without one nothing is kept."""

    def __init__(self, folder: Path | None, started: Mapping[str, Any]) -> None:
        self.folder, self.started = folder, started

    @contextmanager
    def opened(self, resume: bool) -> Iterator[None]:
        """Work in the folder, alone, on what was started there and nothing else."""
        folder = self.folder
        if folder is None:
            yield
            return
        check_place(folder, resume)
        with working(folder, ITSELF, self.started, lambda: _has_cells(folder), files=FILES):
            yield
            shutil.rmtree(folder / WORKING, ignore_errors=True)

    def at(self, *names: str) -> Path | None:
        """A place in the folder."""
        return None if self.folder is None else self.folder.joinpath(*names)

    def get(self, name: str) -> Row | None:
        """A cell that is done."""
        path = self.at(CELLS, f"{name}.json")
        if path is None or not path.exists():
            return None
        return read_sealed(path, RunError, "comparison's cell", self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        """What a cell's seal is for: this comparison, and this cell of it."""
        return {"cell": name, "started": dict(self.started)}

    def put(self, name: str, row: Row) -> None:
        """Keep a cell, on disk before this returns."""
        if self.folder is not None:
            (self.folder / CELLS).mkdir(exist_ok=True)
            write_sealed(self.folder / CELLS / f"{name}.json", row, self._about(name))
            shutil.rmtree(self.folder / WORKING / name, ignore_errors=True)


class _Comparison:
    def __init__(self, task: Task, val: ImageSource, train: ImageSource, config: CompareConfig, store: Store) -> None:
        self.task, self.val, self.train, self.config, self.store = task, val, train, config, store
        self.info, self.network = task.info, task.host.model
        same = open_host(copy.deepcopy(self.network))
        self.base = same.slimmed_(same.blocks)  # the patch embedding of all other rows

    def base_row(self) -> Row:
        """The base, measured untuned."""
        found = self.store.get(BASE)
        if found is None:
            found = {"method": BASE, "macs": host_macs(self.info), "macs_ratio": 1.0}
            found |= {"untuned": scored(self._ranks(self.base))} | self._speed(self.base) | {"speedup": 1.0}
            self.store.put(BASE, found)
        return found

    def row(self, name: str, method: Any, ratio: float, cell: str) -> Row:
        """One cell, whatever was measured before it."""
        row: Row = {"method": name, "target_macs": ratio, "reason": None}
        start, task = time.monotonic(), self.task.at(Target(macs=ratio))
        about, place = {"method": name, **self.store.started}, self.store.at(WORKING, "searches", file_name(name))
        task.cache = task.once(("cache", name), lambda: Cache(place, about))
        with seeded(self.config.seed, device=task.device):
            try:
                found = fit(method, task)
                seconds = round(time.monotonic() - start, 1)
                counts = {} if found.plan is None else {"patches_per_block": list(found.plan.counts)}
                made = {"seconds": seconds, "detail": counts | dict(found.detail)}
                return row | made | self._measured(model_of(found, self.network), cell)
            except OWN_FAULT as error:
                return row | {"reason": str(error).rstrip(".")}
            except Exception as error:
                if not out_of_memory(error):
                    raise
        return row | {"reason": f"it does not fit in the memory of {device_name(self.task.device)}"}

    def _measured(self, model: nn.Module, cell: str) -> Row:
        ranks = self._ranks(model)
        macs = count_macs(model) if ranks.macs is None else round(float(ranks.macs.double().mean()))
        found: Row = {"macs": macs, "macs_ratio": macs / host_macs(self.info)}
        found |= {"parameters": sum(weight.numel() for weight in model.parameters())}
        found |= {"untuned": scored(ranks)} | self._speed(model)
        if self.config.recover is None:
            return found
        made, listen = self.store.at(WORKING, cell), self.task.progress
        result = recover(model, self.network, self.train, self.config.recover, checkpoint=made, listen=listen)
        report = {key: result.report[key] for key in ("seconds", "stopped", "before", "after")}
        return found | {"recovered": scored(self._ranks(result.model)) | {"recovery": report}}

    def _ranks(self, model: nn.Module) -> Ranks:
        (found,) = ranks_of([model], [self.val], self.config.eval_batch_size)
        return found

    def _speed(self, model: nn.Module) -> dict[str, Any]:
        speed = self.config.speed
        images = None if rectangular(model) else next(iter(self.val.batches(speed.batch_size)))[0]
        batch = batch_of(speed.batch_size, self.info, self.task.device, images)
        return timed_beside(model, self.base, batch.to(DTYPES[speed.dtype]), speed)


def scored(found: Ranks) -> dict[str, Any]:
    """Accuracy in percent, and which images are right."""
    return {"top1": found.top(1), "top5": found.top(5), "images": len(found.ranks), "right": to_hex(found.hits)}


def timed_beside(model: nn.Module, base: nn.Module, batch: Tensor, config: SpeedConfig) -> dict[str, Any]:
    """Images per second of both, each in its fastest mode, and the speed-up. They are timed in turns, so that a slow
    moment of the machine falls on both alike."""
    contest = Contest(modes_for(config.modes, batch.device, packed=False), config.dtype, seconds=config.seconds)
    models = {"row": in_dtype(model, config.dtype), "base": in_dtype(base, config.dtype)}
    own, other = contest.time(models, batch).values()
    return {
        "throughput": len(batch) / own.seconds,
        "mode": own.best,
        "base_throughput": len(batch) / other.seconds,
        "base_mode": other.best,
        "speedup": other.seconds / own.seconds,
    }
