"""MACs and throughput of a model and of what methods make of it, with random weights: speed does not depend on them.

The base is made ready once and timed in turns with every other row, each in its fastest mode. A row is kept as soon as
it is measured, and one that fails leaves its reason.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from torch import Tensor

from drawn import quick_method
from paper_cells import Block
from patchslim.cli.common import open_model
from patchslim.data import tensor_images
from patchslim.errors import PatchslimError, UnsupportedModel, first_words
from patchslim.hosts import Host, open_host
from patchslim.macs import host_macs
from patchslim.measure import device_name
from patchslim.peers import Job, Method, PeerConfig, SpeedConfig, Unreachable
from patchslim.peers.compare import BASE
from patchslim.peers.speed import batch_for
from patchslim.peers.store import Row, Store, cell_name
from patchslim.timing import DTYPES
from watch import Watch, counted_macs

HOST = "host"  # the model as it comes, with its own patch embedding
NOISE = 16  # images for methods that learn something; what they learn does not matter here
QUICK = PeerConfig(epochs=1, batch_size=8)
Listen = Callable[[Row], None]


class SpeedBlock:
    """A model of timm, by name, and the rows that a block wants of it."""

    def __init__(self, block: Block, device: torch.device, config: SpeedConfig, warm: bool = False) -> None:
        torch.manual_seed(0)
        self.block, self.device, self.config, self.warm = block, device, config, warm
        self.model = open_model(block.model).to(device)
        self.host = self._host()
        self.watch = Watch(self._batch(), config, warm)

    def _host(self) -> Host | None:
        try:
            return open_host(self.model)
        except UnsupportedModel:
            if self.block.cells:
                raise
            return None  # it can be timed, not slimmed

    def _batch(self) -> Tensor:
        if self.host is not None:
            return batch_for(self.host.info, self.device, self.config)
        size = resolve_model_data_config(self.model)["input_size"]
        return torch.randn(self.config.batch_size, *size, device=self.device).to(DTYPES[self.config.dtype])

    def about(self) -> dict[str, Any]:
        """What all rows have in common."""
        config = self.config
        speed = {"batch_size": config.batch_size, "dtype": config.dtype, "seconds": config.seconds}
        return {
            "model": self.block.model,
            "weights": "random",
            "device": device_name(self.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "settings": {"speed": speed | {"modes": list(config.modes)}, "recover": None},
        }

    def run(
        self, folder: Path | None = None, resume: bool = False, listen: Listen = lambda row: None
    ) -> dict[str, Any]:
        """The model as it comes, and, if anything is to be made of it, with the others' patch embedding; the cells."""
        store = Store(folder, self.about())
        found: dict[str, Row] = {}
        makers = self._makers()
        with store.opened(resume):
            for name, make in makers.items():
                row = store.get(name)
                if row is None:
                    row = self._row(name, make)
                    if not self.warm:
                        store.put(name, row)
                elif name == BASE and row["reason"] is None and not all(store.get(own) for own in makers):
                    self.watch.prepare_base(make()["module"], row["mode"])
                found[name] = row
                listen({"model": self.block.model} | row)
        rows = [row for name, row in found.items() if name not in (HOST, BASE)]
        return {**self.about(), "host": found[HOST], "base": found.get(BASE), "rows": rows}

    def _makers(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What makes each row's model, its MACs and what is known of it."""
        makers: dict[str, Callable[[], dict[str, Any]]] = {}
        if self.block.cells:
            makers[BASE] = self._base
        makers[HOST] = self._as_it_comes
        methods = {name: quick_method(name) for name in dict.fromkeys(cell.method for cell in self.block.cells)}
        for cell in self.block.cells:
            makers[cell_name(cell.method, cell.ratio)] = partial(self._cell, methods[cell.method], cell.ratio)
        return makers

    def _as_it_comes(self) -> dict[str, Any]:
        macs = counted_macs(self.block.model) if self.host is None else host_macs(self.host.info)
        return {"method": HOST, "macs": macs, "macs_ratio": 1.0, "module": self.model}

    def _base(self) -> dict[str, Any]:
        assert self.host is not None
        same = open_host(copy.deepcopy(self.model))
        module = same.slimmed_(same.blocks)  # the patch embedding of all other rows
        return {"method": BASE, "macs": host_macs(self.host.info), "macs_ratio": 1.0, "module": module}

    def _cell(self, method: Method, ratio: float) -> dict[str, Any]:
        assert self.host is not None
        info, row = self.host.info, {"method": method.name, "target_macs": ratio}
        noise = torch.randn(NOISE, info.channels, *info.image_size, generator=torch.Generator().manual_seed(0))
        cell = method.build(Job(self.host, tensor_images(noise), QUICK), ratio)
        if isinstance(cell, Unreachable):
            return row | {"reason": cell.reason}
        ratio_found = cell.macs / host_macs(info)
        return row | {"macs": cell.macs, "macs_ratio": ratio_found, "detail": dict(cell.detail), "module": cell.module}

    def _row(self, name: str, make: Callable[[], dict[str, Any]]) -> Row:
        start = time.monotonic()
        made: dict[str, Any] = {}
        try:
            made = make()
            module = made.pop("module", None)
            row: Row = {"reason": None} | made
            if module is not None:
                row |= {"parameters": sum(own.numel() for own in module.parameters())}
                row |= self.watch.time(module, as_base=name == BASE)
        except Exception as error:  # whatever a row dies of, the others are still wanted
            known = "" if isinstance(error, PatchslimError) else f"{type(error).__name__}: "
            method, _, ratio = name.partition("@")
            row = {"method": method} | ({"target_macs": float(ratio)} if ratio else {}) | made
            row |= {"reason": known + first_words(error)}
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was never used
        seconds = time.monotonic() - start
        print(f"{self.block.model} {name}: {seconds:.1f} s {row['reason'] or ''}", file=sys.stderr, flush=True)
        return row
