"""How fast exported files are on this CPU: host and slim models, both runtimes, fp32 and INT8, in turns."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import patchslim as ps
from benchmarks.drawn import drawn_model
from benchmarks.export.common import CPU, FILE, RUNTIMES, Runtimes, quantise, row_of
from benchmarks.inputs import Macs, Methods, ModelName, Out, network, noise, read_methods
from benchmarks.rows import RESULTS, Row, keep
from benchmarks.speed import about_model
from benchmarks.table import COLUMNS, method_of, number, pages
from patchslim.data import tensor_images
from patchslim.exports import FORMATS, onnx_file, openvino_file
from patchslim.exports.pt2_file import portable
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs
from patchslim.timing import in_turns

NOISE = 16  # images that INT8 is calibrated on: nothing here tells of accuracy


def speed(
    model: ModelName = "deit_small_patch16_224",
    methods: Methods = "drop,cover,merge",
    target_macs: Macs = 0.57,
    runtimes: Runtimes = RUNTIMES,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", metavar="B[,B…]")] = "1,16",
    int8: Annotated[bool, typer.Option("--int8/--fp32", help="Files in INT8 too.")] = True,
    seconds: Annotated[float, typer.Option("--seconds", help="For each file.")] = 10.0,
    threads: Annotated[int | None, typer.Option("--threads", help="Of the runtimes [torch's own number].")] = None,
    out: Out = RESULTS,
) -> None:
    """Time files with random weights; a host counts as it comes, and with the slim models' patch embedding."""
    torch.set_num_threads(threads or torch.get_num_threads())
    host, info, _ = network(model, None, device="cpu")
    models: dict[str, nn.Module] = {"host": host, "same": ps.apply(host, ps.full_plan(host))}
    known: dict[str, dict[str, Any]] = {"host": {"method": "host", "macs": host_macs(info), "macs_ratio": 1.0}}
    for chosen in read_methods(methods):
        models[str(chosen)] = drawn_model(host, chosen, target_macs)
        known[str(chosen)] = about_model(models[str(chosen)], chosen, target_macs, info)
    rows: list[Row] = []
    for runtime, dtype in itertools.product(runtimes.split(","), ("float32", "int8") if int8 else ("float32",)):
        with files_of(models, runtime, dtype, info) as files:
            for size in map(int, batch_sizes.split(",")):
                calls = [prepared(runtime, path, size, info) for path in files.values()]
                found = dict(zip(files, in_turns(calls, CPU, seconds), strict=True))
                for name, own in known.items():
                    more: dict[str, Any] = {"batch_size": size, "dtype": dtype}
                    more["images_per_second"] = round(found[name].throughput(size), 2)
                    more["speedup"] = round(found["host"].median / found[name].median, 4)
                    more["speedup_same_embedding"] = round(found["same"].median / found[name].median, 4)
                    rows.append(row_of("speed", model, own | more, runtime=runtime))
                keep(rows[-len(known) :], out)
    print(pages("export-speed", rows))


@contextmanager
def files_of(models: Mapping[str, nn.Module], runtime: str, dtype: str, info: HostInfo) -> Iterator[dict[str, Path]]:
    """All models as files. Unchecked: the answers of random weights to noise hang on nothing."""
    kind, made = FORMATS[runtime], dict[str, Path]()
    with tempfile.TemporaryDirectory() as folder:
        for place, (name, model) in enumerate(models.items()):
            made[name] = Path(folder) / f"{place}{kind.suffix}"
            kind.write(portable(model), made[name], "{}")
            if dtype == "int8":
                coarse = made[name].with_stem(f"{place}-int8")
                quantise(runtime, made[name], coarse, tensor_images(noise(info, NOISE, CPU)), {})
                made[name] = coarse
        yield made


def prepared(runtime: str, path: Path, size: int, info: HostInfo) -> Callable[[], Any]:
    """A call that runs a file once on one batch of noise. Threads of one session rest in another's turn."""
    images = noise(info, size, CPU).numpy()
    if runtime == "onnx":
        return partial(onnx_file.session(path).run, None, {onnx_file.INPUT: images})
    return partial(openvino_file.compiled(path).create_infer_request().infer, [images])


COLUMNS["export-speed"] = {
    "method": method_of,
    **FILE,
    "batch": number("batch_size", "d"),
    "images/s": number("images_per_second", ".1f"),
    "× host": number("speedup", ".2f"),
    "× host, same embedding": number("speedup_same_embedding", ".2f"),
}
