"""Do fp32 files say what PyTorch says? Every format, every kind of method, on real images."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

import patchslim as ps
from benchmarks.export.common import FILE, Data, Sample, about_slim, row_of, slimmed
from benchmarks.inputs import MODEL, Macs, Methods, ModelName, Out, Weights, in_memory, network, read_methods
from benchmarks.rows import RESULTS, Row, keep
from benchmarks.table import COLUMNS, method_of, number, pages, value
from patchslim.data import ImageSource
from patchslim.errors import ExportError
from patchslim.exports import FORMATS


def parity(
    data: Data,
    val: Annotated[str, typer.Option("--val", help="Images to compare on.")],
    checkpoint: Weights,
    model: ModelName = MODEL,
    methods: Methods = "merge,cover,drop,ps:carry=true,predict",
    target_macs: Macs = 0.57,
    images: Sample = 256,
    limit: Annotated[int, typer.Option("--limit", help="Compare on so many of --val.")] = 500,
    seed: int = 0,
    out: Out = RESULTS,
) -> None:
    """Compare fp32 files of every format with PyTorch, as `patchslim export` does."""
    host, info, _ = network(model, checkpoint, device="cpu")
    judges, rows = in_memory(val, host, limit, seed, split="test"), list[Row]()
    for chosen, slim in slimmed(host, read_methods(methods), data, target_macs, images, seed):
        known = about_slim(slim, chosen, target_macs, info) | {"images": images, "seed": seed}
        for format in FORMATS:
            found = compared(slim, format, judges) if isinstance(slim, nn.Module) else {"reason": slim}
            rows.append(row_of("parity", model, known | found, runtime=format))
            keep(rows[-1:], out)
    print(pages("export-parity", rows))


def compared(slim: nn.Module, format: str, judges: ImageSource) -> dict[str, Any]:
    """The comparison that `export` makes, or why it kept no file."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = ps.export(slim, Path(folder) / f"model{FORMATS[format].suffix}", format, images=judges)
        except ExportError as error:
            return {"reason": str(error)}
        values = dataclasses.asdict(done.fp32)
        return {"val_images": values.pop("images"), "values": values}


COLUMNS["export-parity"] = {
    "method": method_of,
    **{name: FILE[name] for name in ("runtime", "MACs")},
    "largest difference of a logit": value("max_difference", ".1e"),
    "agreement, %": value("agreement", ".1f"),
    "ties": value("ties", ".0f"),
    "other answers": value("other_answers", ".0f"),
    "images": number("val_images", "d"),
}
