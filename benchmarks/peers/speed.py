"""How fast the authors' code is beside ours and the host, all in turns, each in its fastest mode."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.drawn import drawn_model
from benchmarks.inputs import MODEL, Macs, Methods, ModelName, Out, Where, network, noise, read_methods, say
from benchmarks.peers.code import EViTCode, ToMeCode, their_evit, their_tome
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.speed import about_model, contenders, sort_by_library, timed
from benchmarks.table import COLUMNS, pages
from patchslim.errors import PatchslimError
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import in_dtype, modes_for

OWN = "{} as published"  # a row's method


def speed(
    tome: ToMeCode = None,
    evit: EViTCode = None,
    model: ModelName = MODEL,
    methods: Methods = "merge,tome,evit",
    target_macs: Macs = 0.57,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", metavar="B[,B…]")] = "256",
    dtype: str = "bfloat16",
    mode: Annotated[str, typer.Option("--mode")] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", help="For each model in each mode.")] = 1.0,
    own_sort: Annotated[bool, typer.Option("--compiled-sort", help="Let the compiler make its own sort.")] = False,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Time hosts, our methods and the authors' code at its setting with the most MACs within the ratio."""
    host, info, place = network(model, None, device=device)
    if not own_sort:
        sort_by_library()
    models, known = contenders(host, info)
    for chosen in read_methods(methods):
        models[str(chosen)] = drawn_model(host, chosen, target_macs)
        known[str(chosen)] = about_model(models[str(chosen)], chosen, target_macs, info)
    budget = target_macs * host_macs(info)
    for name, theirs in published(host, info, tome, evit, budget):
        macs = counted(theirs, info)
        models[name] = theirs
        known[name] = {"method": name, "target_macs": target_macs, "macs": macs, "macs_ratio": macs / host_macs(info)}
    contest = Contest(modes_for([mode], place, packed=False), dtype, seconds=seconds, tell=say)
    ready = {name: in_dtype(own, dtype) for name, own in models.items()}
    rows: list[Row] = []
    for size in map(int, batch_sizes.split(",")):
        head = about(place) | {"question": "peers-speed", "model": model, "batch_size": size, "dtype": dtype}
        found = timed(contest, ready, noise(info, size, place, DTYPES[dtype]))
        rows += [Row(**head, **known[name], **own) for name, own in found if name in known]
    keep(rows, out)
    print(pages("peers-speed", rows))


def published(
    host: nn.Module, info: HostInfo, tome: Path | None, evit: Path | None, budget: float
) -> Iterator[tuple[str, nn.Module]]:
    """The authors' models within a budget of MACs."""
    if evit is not None:
        yield (
            OWN.format("EViT"),
            most_within(lambda own: their_evit(evit, host, own / 100), range(99, 0, -1), info, budget),
        )
    if tome is not None:
        yield OWN.format("ToMe"), most_within(lambda r: their_tome(tome, host, r), range(1, info.patches), info, budget)


def most_within(make: Callable[[int], nn.Module], settings: Sequence[int], info: HostInfo, budget: float) -> nn.Module:
    """The model with the most MACs within the budget, of settings in order of falling MACs."""
    first = bisect_left(settings, True, key=lambda own: counted(make(own), info) <= budget)
    if first == len(settings):
        raise PatchslimError("The authors' code can't come down to these MACs; give a larger --target-macs.")
    return make(settings[first])


def counted(model: nn.Module, info: HostInfo) -> int:
    """MACs per image of a model whose attention is not fused; nothing is computed."""
    shapes = copy.deepcopy(model).to("meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes(torch.zeros(1, info.channels, *info.image_size, device="meta"))
    return int(counter.get_total_flops()) // 2


COLUMNS["peers-speed"] = COLUMNS["speed"]
