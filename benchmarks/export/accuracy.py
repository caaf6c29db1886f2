"""Top-1 of exported files: host and slim models, fp32 and INT8 (plain, slim, quantised, both), in both runtimes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from benchmarks.export.common import (
    FILE,
    RUNTIMES,
    Data,
    Runtimes,
    Sample,
    about_slim,
    quantise,
    row_of,
    slimmed,
)
from benchmarks.inputs import (
    MODEL,
    Chosen,
    Macs,
    Methods,
    ModelName,
    Out,
    Weights,
    in_memory,
    network,
    read_methods,
    say,
    scored,
)
from benchmarks.rows import RESULTS, Row, keep
from benchmarks.table import COLUMNS, interval, method_of, pages, value
from patchslim.data import ImageSource, TensorImages
from patchslim.exports import FORMATS
from patchslim.exports.pt2_file import portable
from patchslim.hosts import answer_of

BATCH = 50  # images at a time
# How the ranges of inputs are found in INT8: patchslim's own choice first.
SETTINGS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "onnx": (
        {},
        {"options": {}},
        {"signed": True, "options": {"ActivationSymmetric": True}},
        {"ranges": "Percentile", "options": {"CalibTensorRangeSymmetric": False, "CalibPercentile": 99.99}},
        {"ranges": "Entropy", "options": {}},
    ),
    "openvino": ({}, *({"smooth": alpha} for alpha in (0.15, 0.5, 0.95)), {"correct_biases": True}),
}


def accuracy(
    data: Data,
    val: Annotated[str, typer.Option("--val", help="Labelled images to measure top-1 on.")],
    checkpoint: Weights,
    model: ModelName = MODEL,
    methods: Methods = "drop",
    target_macs: Macs = 0.57,
    images: Sample = 256,
    limit: Annotated[int | None, typer.Option("--limit", help="Measure on a sample of --val.")] = None,
    runtimes: Runtimes = RUNTIMES,
    settings: Annotated[bool, typer.Option("--settings", help="Every way to find INT8's ranges.")] = False,
    seed: int = 0,
    out: Out = RESULTS,
) -> None:
    """Measure host and slim models, in PyTorch and as files in fp32 and INT8."""
    host, info, _ = network(model, checkpoint, device="cpu")
    judges, source = in_memory(val, host, limit, split="test"), in_memory(data, host, images, seed)
    labels, base, rows = torch.cat([labels for _, labels in judges.batches(BATCH)]), None, list[Row]()
    models: Iterator[tuple[Chosen | None, Any]] = slimmed(host, read_methods(methods), data, target_macs, images, seed)
    for chosen, slim in itertools.chain([(None, host)], models):
        known = about_slim(slim, chosen, target_macs, info) | {"images": images, "seed": seed}
        if not isinstance(slim, nn.Module):
            keep([row_of("accuracy", model, known | {"reason": slim})], out)
            continue
        own = None
        for runtime, dtype, setting, logits in answers(slim, runtimes.split(","), source, judges, settings):
            own = logits if own is None else own
            right = logits.argmax(dim=1) == labels
            base = right if base is None else base
            found = {"dtype": dtype, "values": closeness(logits, own)} | scored(right, base)
            rows.append(row_of("accuracy", model, known | found, runtime=runtime, **setting))
            keep(rows[-1:], out)
            say(f"{chosen or 'host'}, {runtime}, {dtype} {setting or ''}: {rows[-1].top1:.2f} %")
    print(pages("export-accuracy", rows))


def answers(
    model: nn.Module, runtimes: list[str], source: TensorImages, judges: ImageSource, every: bool
) -> Iterator[tuple[str, str, dict[str, Any], Tensor]]:
    """Runtime, precision, setting of INT8, and the logits of all images (images, classes); PyTorch's first."""
    own = portable(model)
    yield "torch", "float32", {}, logits_of(lambda pixels: answer_of(own(pixels)), judges)
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            kind, plain = FORMATS[runtime], Path(folder) / f"fp32{FORMATS[runtime].suffix}"
            kind.write(own, plain, "{}")
            yield runtime, "float32", {}, logits_of(kind.runner(plain), judges)
            for setting in SETTINGS[runtime] if every else SETTINGS[runtime][:1]:
                coarse = plain.with_stem("int8")
                quantise(runtime, plain, coarse, source, setting)
                yield runtime, "int8", setting, logits_of(kind.runner(coarse), judges)


@torch.inference_mode()
def logits_of(run: Callable[[Tensor], Tensor], images: ImageSource) -> Tensor:
    """Logits of all images: (images, classes)."""
    return torch.cat([run(pixels) for pixels, _ in images.batches(BATCH)])


def closeness(logits: Tensor, own: Tensor) -> dict[str, float]:
    """KL divergence from PyTorch in nats, and how often the answer is the same: twice (images, classes)."""
    kl = F.kl_div(logits.log_softmax(dim=1), own.log_softmax(dim=1), reduction="batchmean", log_target=True)
    return {"kl": float(kl), "same_answers": float((logits.argmax(1) == own.argmax(1)).double().mean() * 100)}


COLUMNS["export-accuracy"] = {
    "method": method_of,
    **FILE,
    "INT8": lambda row: ", ".join(f"{key}={own}" for key, own in (row.point or {}).items() if key != "runtime"),
    "top-1": interval("top1"),
    "lost": interval("lost"),
    "KL from PyTorch": value("kl", ".4f"),
    "same answers, %": value("same_answers", ".1f"),
}
