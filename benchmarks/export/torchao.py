"""Plain, slim, quantised, both: top-1 and speed with linear layers in INT8 or float8 by torchao, in PyTorch."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import patchslim as ps
from benchmarks.drawn import drawn_model
from benchmarks.inputs import (
    MODEL,
    Macs,
    Methods,
    ModelName,
    Out,
    Weights,
    Where,
    in_memory,
    network,
    noise,
    read_methods,
    scored,
)
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.speed import about_model, contenders, timed
from benchmarks.table import COLUMNS, interval, method_of, number, pages, place
from patchslim.data import ImageSource
from patchslim.hosts import answer_of
from patchslim.quantise import check_way, quantised
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import in_dtype, modes_for

ANSWERING = 100  # images at a time
PLAIN = "none"


def torchao(
    checkpoint: Weights = None,
    data: Annotated[str | None, typer.Option("--data", help="To choose by; without them plans are drawn.")] = None,
    val: Annotated[str | None, typer.Option("--val", help="Labelled images; without them only speed is told.")] = None,
    model: ModelName = MODEL,
    methods: Methods = "drop",
    target_macs: Macs = 0.57,
    images: Annotated[int, typer.Option("--images")] = 256,
    limit: Annotated[int | None, typer.Option("--limit", help="Measure on a sample of --val.")] = None,
    ways: Annotated[str, typer.Option("--ways", metavar="A,B", help="int8, float8.")] = "int8",
    dtype: str = "bfloat16",
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", metavar="B[,B…]")] = "256",
    mode: Annotated[str, typer.Option("--mode")] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", help="For each model in each mode.")] = 1.0,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Measure host and slim models, each as it is and quantised, all timed in turns."""
    host, info, place = network(model, checkpoint, device=device)
    for way in ways.split(","):
        check_way(way, place, DTYPES[dtype])
    plain, known = contenders(host, info)
    for chosen in read_methods(methods):
        name = str(chosen)
        if data is None:
            plain[name] = drawn_model(host, chosen, target_macs)
        else:
            plain[name] = ps.slim(host, in_memory(data, host, images), chosen.method, macs=target_macs)
        known[name] = about_model(plain[name], chosen, target_macs, info)
    judges = None if val is None else in_memory(val, host, limit, split="test")
    contest = Contest(modes_for([mode], place, packed=False), dtype, seconds=seconds)
    rows: list[Row] = []
    for size in map(int, batch_sizes.split(",")):
        batch = noise(info, size, place, DTYPES[dtype])
        models = {(name, PLAIN): in_dtype(own, dtype) for name, own in plain.items()}
        models |= {(name, way): quantised(models[name, PLAIN], way, batch) for name in known for way in ways.split(",")}
        found = timed(contest, {" ".join(key): own for key, own in models.items()}, batch, "host none")
        scores = {} if judges is None else scores_of(models, judges, DTYPES[dtype])
        head = about(place) | {"question": "export-torchao", "model": model, "batch_size": size, "dtype": dtype}
        for (name, way), (_, own) in zip(models, found, strict=True):
            if name in known:
                rows.append(Row(**head | known[name] | own | scores.get((name, way), {}), point={"quantised_to": way}))
    keep(rows, out)
    print(pages("export-torchao", rows))


@torch.inference_mode()
def scores_of(
    models: dict[tuple[str, str], nn.Module], images: ImageSource, dtype: torch.dtype
) -> dict[tuple[str, str], dict[str, Any]]:
    """Top-1 of each, and what it loses against the first one, the host as it is."""

    def hits(model: nn.Module) -> Tensor:
        like = next(model.parameters())
        batches = images.batches(ANSWERING)
        return torch.cat(
            [answer_of(model(x.to(like.device, dtype))).argmax(1).cpu() == labels for x, labels in batches]
        )

    found = {key: hits(model) for key, model in models.items()}
    base = next(iter(found.values()))
    return {key: scored(own, base) for key, own in found.items()}


COLUMNS["export-torchao"] = {
    "method": method_of,
    "quantised to": place("quantised_to"),
    "batch": number("batch_size", "d"),
    "dtype": number("dtype", ""),
    "MACs": number("macs_ratio", ".3f"),
    "top-1": interval("top1"),
    "lost": interval("lost"),
    "images/s": number("images_per_second", ",.0f"),
    "mode": number("mode", ""),
    "× host": number("speedup", ".2f"),
    "× host, same embedding": number("speedup_same_embedding", ".2f"),
}
