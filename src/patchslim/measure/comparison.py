"""Methods by MAC ratios on one model and one set of images: every row is built, measured and recovered alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchslim.data import ImageSource
from patchslim.data.views import seeded
from patchslim.errors import BudgetError, PlanError, RecoverError, UnsupportedModel
from patchslim.files import write_json
from patchslim.hosts import open_host
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import host_macs
from patchslim.measure import device_name
from patchslim.measure.ranks import ranks_of
from patchslim.peers.hits import to_hex
from patchslim.peers.method import Cell, Job, Method, PeerConfig, Unreachable
from patchslim.peers.names import make_methods
from patchslim.peers.speed import SpeedConfig, batch_for, timed_beside
from patchslim.peers.store import RESULT, Row, Store, cell_name
from patchslim.peers.table import with_intervals
from patchslim.recover import RecoverConfig, recover
from patchslim.search.topdown import Listener
from patchslim.timing.memory import out_of_memory

BASE = "base"
# What a method may fail with on one model or ratio; the rest of the table goes on.
OWN_FAULT = (BudgetError, PlanError, RecoverError, UnsupportedModel)


@dataclass(frozen=True)
class CompareConfig:
    """How every row is made and measured. Without `recover` rows are measured untuned only.

    A recovery is the same for all, so it should be distillation alone: block-wise reconstruction asks what each token
    stands for, and only patchslim's own models can tell.
    """

    peers: PeerConfig = field(default_factory=PeerConfig)
    recover: RecoverConfig | None = None
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    eval_batch_size: int = 64

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self) | {"speed": asdict(self.speed) | {"modes": list(self.speed.modes)}}


def compare(
    model: nn.Module,
    images: ImageSource,
    val: ImageSource,
    methods: Sequence[str | Method],
    ratios: Sequence[float],
    config: CompareConfig | None = None,
    *,
    only: Collection[tuple[str, float]] | None = None,
    train: ImageSource | None = None,
    folder: Path | None = None,
    resume: bool = False,
    listen: Listener = lambda event: None,
) -> dict[str, Any]:
    """A table of methods by MAC ratios: top-1 before and after recovery, MACs and throughput, as JSON-able values.

    `images` calibrate, without labels; `val` has labels and measures; `train` are images to recover with, else those
    that calibrate. A method is a name or an object of its own. `only` names the cells to measure, by method and ratio,
    where not all are wanted. In a `folder` every finished cell is kept at once, and with `resume` those that are there
    are not measured again.
    """
    config = config or CompareConfig()
    comparison = _Comparison(model, images, val, train or images, config, folder, listen)
    chosen = [method for word in methods for method in (make_methods([word]) if isinstance(word, str) else [word])]
    named = {method.name: method for method in chosen}
    wanted = [(named[name], ratio) for name in named for ratio in sorted(set(ratios), reverse=True)]
    if only is not None:
        wanted = [(method, ratio) for method, ratio in wanted if (method.name, ratio) in only]
    return comparison.run(wanted, resume)


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
        self.host = open_host(copy.deepcopy(model).eval())
        self.images, self.val, self.train, self.config, self.listen = images, val, train, config, listen
        self.device = next(model.parameters()).device
        self.folder = folder
        self.store = Store(folder, self._about())
        same = open_host(copy.deepcopy(model).eval())
        self.base = same.slimmed_(same.blocks)  # the patch embedding of all other rows

    def _about(self) -> dict[str, Any]:
        """What all rows have in common."""
        sources = {"images": self.images, "val": self.val, "train": self.train}
        return {
            "model": self.host.info.name,
            "weights": weights_fingerprint(self.host.model),
            "device": device_name(self.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "settings": self.config.as_dict(),
        } | {name: {"count": len(own), "fingerprint": own.fingerprint} for name, own in sources.items()}

    def run(self, wanted: Sequence[tuple[Method, float]], resume: bool) -> dict[str, Any]:
        """All cells, method by method, so that what one learns for a ratio serves the next."""
        rows: dict[str, Row] = {}
        with self.store.opened(resume):
            base = self._base_row()
            for method, ratio in wanted:
                name = cell_name(method.name, ratio)
                row = self.store.get(name)
                about = {"cell": name, "fresh": row is None, "total": len(wanted)}
                if row is None:
                    self.listen({"event": "cell", **about, "done": len(rows)})
                    row = self._row(method, ratio)
                    self.store.put(name, row)
                rows[name] = row
                self.listen({"event": "row", **about, "done": len(rows)})
            table = {
                **self._about(),
                "base": base,
                "rows": with_intervals(base, sorted(rows.values(), key=lambda row: -row["target_macs"])),
            }
            if self.folder is not None:
                write_json(self.folder / RESULT, table)
        return table

    def _base_row(self) -> Row:
        found = self.store.get(BASE)
        if found is None:
            macs = host_macs(self.host.info)
            found = {"method": BASE, "macs": macs, "macs_ratio": 1.0, "untuned": self._score(self.base)}
            found |= self._speed(self.base) | {"speedup": 1.0}
            self.store.put(BASE, found)
        return found

    def _row(self, method: Method, ratio: float) -> Row:
        """One cell, whatever was measured before it."""
        row: Row = {"method": method.name, "target_macs": ratio, "reason": None}
        name, start = cell_name(method.name, ratio), time.monotonic()
        job = Job(self.host, self.images, self.config.peers, self.store.working("searches"), self.listen)
        with seeded(self.config.peers.seed, device=self.device):
            try:
                cell = method.build(job, ratio)
                if isinstance(cell, Unreachable):
                    return row | {"reason": cell.reason}
                row |= {"seconds": round(time.monotonic() - start, 1), "detail": dict(cell.detail)}
                return row | self._measured(cell, name)
            except OWN_FAULT as error:
                return row | {"reason": str(error).rstrip(".")}
            except Exception as error:
                if not out_of_memory(error):
                    raise
        return row | {"reason": f"it does not fit in the memory of {device_name(self.device)}"}

    def _measured(self, cell: Cell, name: str) -> Row:
        found: Row = {"macs": cell.macs, "macs_ratio": cell.macs / host_macs(self.host.info)}
        found |= {"parameters": sum(weight.numel() for weight in cell.module.parameters())}
        found |= {"untuned": self._score(cell.module)} | self._speed(cell.module)
        if self.config.recover is None:
            return found
        working = self.store.working(name)
        result = recover(
            cell.module, self.host.model, self.train, self.config.recover, checkpoint=working, listen=self.listen
        )
        report = {key: result.report[key] for key in ("seconds", "stopped", "before", "after")}
        return found | {"recovered": self._score(result.model) | {"recovery": report}}

    def _score(self, model: nn.Module) -> dict[str, Any]:
        (found,) = ranks_of([model], [self.val], self.config.eval_batch_size)
        return {
            "top1": float(found.hits.double().mean() * 100),
            "top5": float((found.ranks < 5).double().mean() * 100),
            "images": len(found.ranks),
            "right": to_hex(found.hits),
        }

    def _speed(self, model: nn.Module) -> dict[str, Any]:
        batch = batch_for(self.host.info, self.device, self.config.speed)
        return timed_beside(model, self.base, batch, self.config.speed)
