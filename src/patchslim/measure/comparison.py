"""Methods by MAC ratios on one model and one set of images: every row is built, measured and recovered alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchslim.cache import Cache
from patchslim.data import ImageSource
from patchslim.data.views import seeded
from patchslim.errors import BudgetError, MethodError, PlanError, RecoverError, UnsupportedModel
from patchslim.events import Listener, silent
from patchslim.files import write_json
from patchslim.hosts import open_host
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import count_macs, host_macs
from patchslim.measure.hits import to_hex
from patchslim.measure.intervals import with_intervals
from patchslim.measure.ranks import Ranks, ranks_of
from patchslim.measure.row_speed import SpeedConfig, images_for, noise_for, timed_beside
from patchslim.measure.store import RESULT, Row, Store, file_name
from patchslim.methods import Fitted, Task, fit, make, model_of
from patchslim.recover import RecoverConfig, recover
from patchslim.search import Target
from patchslim.slim import rectangular
from patchslim.timing import device_name
from patchslim.timing.memory import out_of_memory

BASE = "base"
# What a method may fail with on one model or ratio; the rest of the table goes on.
OWN_FAULT = (BudgetError, MethodError, PlanError, RecoverError, UnsupportedModel)


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

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self) | {"speed": asdict(self.speed) | {"modes": list(self.speed.modes)}}


def compare(
    model: nn.Module,
    images: ImageSource,
    val: ImageSource,
    methods: Sequence[Any],
    ratios: Sequence[float],
    config: CompareConfig | None = None,
    *,
    only: Collection[tuple[str, float]] | None = None,
    train: ImageSource | None = None,
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
    comparison = _Comparison(model, images, val, train or images, config or CompareConfig(), folder, listen)
    chosen = [make(method) if isinstance(method, str) else method for method in methods]
    named = {label(method): method for method in chosen}
    wanted = [(name, ratio) for name in named for ratio in sorted(set(ratios), reverse=True)]
    return comparison.run(named, [cell for cell in wanted if only is None or cell in only], resume)


def label(method: Any) -> str:
    """A row's name: the method's, with the settings that are not its usual ones: `merge,blocks=None`."""
    own = {} if not hasattr(method, "__dataclass_fields__") else {item.name: item.default for item in fields(method)}
    words = [f"{name}={getattr(method, name)}" for name, usual in own.items() if getattr(method, name) != usual]
    return ",".join([getattr(method, "name", type(method).__name__), *words])


class _Comparison:
    def __init__(
        self,
        model: nn.Module,
        images: ImageSource,
        val: ImageSource,
        train: ImageSource,
        config: CompareConfig,
        folder: Path | None,
        listen: Listener,
    ) -> None:
        self.task = Task.of(model, images, seed=config.seed, batch_size=config.batch_size, progress=listen)
        self.info, self.network, self.device = self.task.info, self.task.host.model, self.task.device
        self.images, self.val, self.train, self.config, self.listen = images, val, train, config, listen
        self.folder, self.store = folder, Store(folder, self._about())
        same = open_host(copy.deepcopy(self.network))
        self.base = same.slimmed_(same.blocks)  # the patch embedding of all other rows

    def _about(self) -> dict[str, Any]:
        """What all rows have in common."""
        sources = {"images": self.images, "val": self.val, "train": self.train}
        return {
            "model": self.info.name,
            "weights": weights_fingerprint(self.network),
            "device": device_name(self.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "settings": self.config.as_dict(),
        } | {name: {"count": len(own), "fingerprint": own.fingerprint} for name, own in sources.items()}

    def run(self, methods: Mapping[str, Any], wanted: Sequence[tuple[str, float]], resume: bool) -> dict[str, Any]:
        """All cells, method by method, so that what one learns for a ratio serves the next."""
        rows: dict[str, Row] = {}
        with self.store.opened(resume):
            base = self._base_row()
            for name, ratio in wanted:
                cell = file_name(f"{name}@{ratio:g}")
                row = self.store.get(cell)
                about = {"cell": cell, "fresh": row is None, "total": len(wanted)}
                if row is None:
                    self.listen({"event": "cell", **about, "done": len(rows)})
                    row = self._row(name, methods[name], ratio, cell)
                    self.store.put(cell, row)
                rows[cell] = row
                self.listen({"event": "row", **about, "done": len(rows)})
            ordered = sorted(rows.values(), key=lambda row: -row["target_macs"])
            table = {**self._about(), "base": base, "rows": with_intervals(base, ordered)}
            if self.folder is not None:
                write_json(self.folder / RESULT, table)
        return table

    def _base_row(self) -> Row:
        found = self.store.get(BASE)
        if found is None:
            found = {"method": BASE, "macs": host_macs(self.info), "macs_ratio": 1.0}
            found |= {"untuned": scored(self._ranks(self.base))}
            found |= self._speed(self.base) | {"speedup": 1.0}
            self.store.put(BASE, found)
        return found

    def _row(self, name: str, method: Any, ratio: float, cell: str) -> Row:
        """One cell, whatever was measured before it."""
        row: Row = {"method": name, "target_macs": ratio, "reason": None}
        start, task = time.monotonic(), self.task.at(Target(macs=ratio))
        task.cache = self.task.once(("cache", name), lambda: Cache(self.store.working(f"searches/{file_name(name)}")))
        with seeded(self.config.seed, device=self.device):
            try:
                found = fit(method, task)
                seconds = round(time.monotonic() - start, 1)
                return row | {"seconds": seconds, "detail": detail_of(found)} | self._measured(found, cell)
            except OWN_FAULT as error:
                return row | {"reason": str(error).rstrip(".")}
            except Exception as error:
                if not out_of_memory(error):
                    raise
        return row | {"reason": f"it does not fit in the memory of {device_name(self.device)}"}

    def _measured(self, fitted: Fitted, cell: str) -> Row:
        model = model_of(fitted, self.network)
        ranks = self._ranks(model)
        macs = count_macs(model) if ranks.macs is None else round(float(ranks.macs.double().mean()))
        found: Row = {"macs": macs, "macs_ratio": macs / host_macs(self.info)}
        found |= {"parameters": sum(weight.numel() for weight in model.parameters())}
        found |= {"untuned": scored(ranks)} | self._speed(model)
        if self.config.recover is None:
            return found
        working = self.store.working(cell)
        result = recover(model, self.network, self.train, self.config.recover, checkpoint=working, listen=self.listen)
        report = {key: result.report[key] for key in ("seconds", "stopped", "before", "after")}
        return found | {"recovered": scored(self._ranks(result.model)) | {"recovery": report}}

    def _ranks(self, model: nn.Module) -> Ranks:
        (found,) = ranks_of([model], [self.val], self.config.eval_batch_size)
        return found

    def _speed(self, model: nn.Module) -> dict[str, Any]:
        speed = self.config.speed
        alike = rectangular(model)
        batch = noise_for(self.info, self.device, speed) if alike else images_for(self.val, self.device, speed)
        return timed_beside(model, self.base, batch, speed)


def scored(found: Ranks) -> dict[str, Any]:
    """Accuracy in percent, and which images are right."""
    return {
        "top1": float(found.hits.double().mean() * 100),
        "top5": float((found.ranks < 5).double().mean() * 100),
        "images": len(found.ranks),
        "right": to_hex(found.hits),
    }


def detail_of(found: Fitted) -> dict[str, Any]:
    """What a method chose: its own knob, and where there is a plan the patches per block."""
    counts = {} if found.plan is None else {"patches_per_block": list(found.plan.counts)}
    return counts | dict(found.detail)
