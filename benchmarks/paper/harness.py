"""The one harness of the paper's tables: the rows of a model, with all that is there of weights and images.

With weights and images `patchslim.measure.compare` makes every cell. Without them MACs and throughput are measured of
drawn plans and random weights, as speed does not depend on either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from timm.layers import set_fused_attn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.drawn import drawn_model
from benchmarks.inputs import OWN_FAULT, Chosen, in_memory, say, scored, training_images, wilson
from benchmarks.paper.published import Cell, printed
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.speed import about_model, contenders, timed
from patchslim.cli.opening import open_model, workers_for
from patchslim.data import ImageSource, open_images
from patchslim.errors import UnsupportedModel
from patchslim.events import Event
from patchslim.hosts import HostInfo, inspect
from patchslim.measure import CompareConfig, SpeedConfig, compare
from patchslim.measure.accuracy import check_labelled, ranks_of
from patchslim.measure.comparison import label
from patchslim.recover import RecoverConfig
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import in_dtype, modes_for

HELD = 5_000  # validation images kept in memory, at most; more are decoded anew for every row


@dataclass
class Harness:
    """A command's options, and the rows of one model after another."""

    question: str
    place: torch.device
    speed: SpeedConfig
    weights: dict[str, Path] = field(default_factory=dict)
    data: str | None = None  # to choose by
    val: str | None = None
    train: str | None = None  # to recover with; None: `data`
    images: int = 256
    limit: int | None = None  # of `val`
    recover: int = 0  # epochs
    batch_size: int = 32
    seed: int = 0
    resume: bool = False
    out: Path = RESULTS

    def missing(self, model: str, cells: Sequence[Cell]) -> list[str]:
        """What is not there to measure top-1."""
        lacks = {
            f"weights (--weights {model}=FILE)": model not in self.weights,
            "labelled images (--val)": not self.val,
        }
        lacks["images to choose by (--data)"] = bool(cells) and not self.data
        return [what for what, lacking in lacks.items() if lacking]

    def measure(self, model: str, cells: Sequence[Cell], warm: bool = False) -> list[Row]:
        """The rows of a model, kept as soon as they are there."""
        lacks = self.missing(model, cells)
        if (note := self._note(model, lacks)) is not None:
            say(f"{model}: {note}.")
        network = self._network(model)
        if lacks or not cells:
            val = self._val(network) if self.val and model in self.weights else None  # the host's top-1 is still told
            rows = self._timed(model, network, cells, val, self._note(model, lacks))
        else:
            rows = self._compared(model, network, cells)
        if not warm:
            keep(rows, self.out)
        return rows

    def _note(self, model: str, lacks: Sequence[str]) -> str | None:
        """What a reader has to know of a model's rows: of the model that stands in for the paper's, and what lacks."""
        words = list(dict.fromkeys(row.note for row in printed("table2") if row.model == model and row.note))
        if lacks and self.question != "paper-throughput":
            words.append(f"no top-1, for want of {', '.join(lacks)}; random weights, drawn plans")
        return "; ".join(words) or None

    def _network(self, name: str) -> nn.Module:
        torch.manual_seed(self.seed)
        return open_model(name, self.weights.get(name)).to(self.place)

    def _val(self, network: nn.Module) -> ImageSource:
        assert self.val is not None
        source = open_images(self.val, model=network, limit=self.limit, split="test", workers=workers_for(self.place))
        check_labelled(source)
        return in_memory(self.val, network, self.limit, split="test") if len(source) <= HELD else source

    def _head(self, model: str) -> dict[str, Any]:
        speed = {"batch_size": self.speed.batch_size, "dtype": self.speed.dtype}
        return about(self.place) | {"question": self.question, "model": model, "seed": self.seed} | speed

    def _timed(
        self, model: str, network: nn.Module, cells: Sequence[Cell], val: ImageSource | None, note: str | None
    ) -> list[Row]:
        """A host and its cells in turns, with drawn plans; of the host top-1 too, where there are images."""
        head, rows = self._head(model) | {"note": note}, list[Row]()
        info = info_of(network)
        if info is None and not cells:
            models, known = {"host": network}, {"host": unknown_host(model, network)}
        else:
            models, known = contenders(network, inspect(network))
        for cell in cells:
            assert info is not None
            try:
                name = f"{cell.chosen} at {cell.ratio:g}"
                models[name] = drawn_model(network, cell.chosen, cell.ratio)
                known[name] = about_model(models[name], cell.chosen, cell.ratio, info)
            except OWN_FAULT as error:
                rows.append(Row(**head, **own_keys(cell.chosen, cell.ratio), reason=str(error)))
        if val is not None:
            (found,) = ranks_of([network], [val], max(self.batch_size, 64))
            known["host"] |= scored(found.hits)
        contest = Contest(
            modes_for(self.speed.modes, self.place, packed=False), self.speed.dtype, False, self.speed.seconds
        )
        ready = {name: in_dtype(own, self.speed.dtype) for name, own in models.items()}
        size = resolve_model_data_config(network)["input_size"]
        batch = torch.randn(self.speed.batch_size, *size, device=self.place).to(DTYPES[self.speed.dtype])
        found_rows = [Row(**head, **known[name], **own) for name, own in timed(contest, ready, batch) if name in known]
        return [*found_rows, *rows]

    def _compared(self, model: str, network: nn.Module, cells: Sequence[Cell]) -> list[Row]:
        """Every cell slimmed, measured, recovered and timed."""
        assert self.data is not None
        chosen = {label(cell.chosen.method): cell.chosen for cell in cells}
        workers = workers_for(self.place)
        table = compare(
            network,
            open_images(self.data, model=network, limit=self.images, seed=self.seed, workers=workers),
            self._val(network),
            [own.method for own in chosen.values()],
            sorted({cell.ratio for cell in cells}),
            self._config(),
            only={(label(cell.chosen.method), cell.ratio) for cell in cells},
            train=training_images(self.train or self.data, network, seed=self.seed),
            folder=Path("comparisons") / f"{self.question}-{model}",
            resume=self.resume,
            listen=tell_of(model),
        )
        head = self._head(model) | {"images": table["images"]["count"], "image_size": inspect(network).image_size[0]}
        head |= {"note": self._note(model, ())}
        base = {"method": "host", "note": "timed with the patch embedding of slim models"}
        rows = rows_of(head, base, table["base"], table)
        known = {(row["method"], row["target_macs"]): row for row in table["rows"]}
        for cell in cells:
            row = known[label(cell.chosen.method), cell.ratio]
            rows += rows_of(head, own_keys(cell.chosen, cell.ratio), row, table)
        return rows

    def _config(self) -> CompareConfig:
        recover = RecoverConfig(epochs=self.recover, block_epochs=0, seed=self.seed) if self.recover else None
        size = self.batch_size
        return CompareConfig(recover, self.speed, size, eval_batch_size=max(size, 64), seed=self.seed)


def own_keys(chosen: Chosen, ratio: float) -> dict[str, Any]:
    """What tells a cell's row from others."""
    return {"method": chosen.name, "settings": chosen.settings, "target_macs": ratio}


def info_of(network: nn.Module) -> HostInfo | None:
    """A host's description; None for a network that can be timed, not slimmed."""
    try:
        return inspect(network)
    except UnsupportedModel:
        return None


def unknown_host(name: str, network: nn.Module) -> dict[str, Any]:
    """What is known of such a network."""
    parameters = sum(weight.numel() for weight in network.parameters())
    return {"method": "host", "macs": counted_macs(name), "macs_ratio": 1.0, "parameters": parameters}


def counted_macs(name: str) -> int:
    """MACs per image of any model of timm, by torch's counter, attention not fused; nothing is computed."""
    set_fused_attn(False)
    try:
        with torch.device("meta"):
            model = open_model(name)
    finally:
        set_fused_attn(True)
    size = resolve_model_data_config(model)["input_size"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *size, device="meta"))
    return int(counter.get_total_flops()) // 2


def rows_of(head: dict[str, Any], keys: dict[str, Any], found: dict[str, Any], table: dict[str, Any]) -> list[Row]:
    """A cell of a comparison as rows: untuned with its speed, and recovered."""
    if found.get("reason"):
        return [Row(**head, **keys, reason=found["reason"])]
    keys = head | keys | {name: found.get(name) for name in ("macs", "macs_ratio", "parameters")}
    keys["patches_per_block"] = found.get("detail", {}).get("patches_per_block")
    speed = {
        "images_per_second": round(found["throughput"], 1),
        "mode": found["mode"],
        "speedup_same_embedding": round(found["speedup"], 4),
        "search_seconds": found.get("seconds"),
    }
    rows = [Row(**keys, **speed, **score_of(found["untuned"]))]
    if "recovered" in found:
        recovery = found["recovered"]["recovery"]
        more = {"recovery_epochs": table["settings"]["recover"]["epochs"], "recovery_seconds": recovery["seconds"]}
        more |= {"recovery_images": table["train"]["count"]}
        rows.append(Row(**keys, **more, **score_of(found["recovered"])))
    return rows


def score_of(score: dict[str, Any]) -> dict[str, Any]:
    """A comparison's score in a row's words: points lost are the base's less the row's."""
    low, high = wilson(round(score["top1"] * score["images"] / 100), score["images"])
    found = {"val_images": score["images"], "top1": score["top1"], "top5": score["top5"]}
    found |= {"top1_low": low, "top1_high": high}
    if "against_base" in score:
        apart = score["against_base"]
        lost = {"lost": -apart["difference"], "lost_low": -apart["high"], "lost_high": -apart["low"]}
        found |= {name: points + 0.0 for name, points in lost.items()}  # no -0
    return found


def tell_of(model: str) -> Callable[[Event], None]:
    """Tells whoever waits which cell is at work."""

    def listen(event: Event) -> None:
        if event["event"] == "cell":
            say(f"{model}: {event['cell']}, {event['done'] + 1} of {event['total']}")

    return listen
