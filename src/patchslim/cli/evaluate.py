"""`patchslim eval`: accuracy and MACs of a model or a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import Progress
from torch import nn

from patchslim.cli.common import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    ImgSize,
    Pretrained,
    console,
    is_run,
    note_random,
    note_skipped,
    open_device,
    open_model,
    refuse_with_run,
    report,
    workers_for,
)
from patchslim.data import open_images
from patchslim.hosts import HostInfo, inspect
from patchslim.macs import count_macs, host_macs
from patchslim.measure import evaluate
from patchslim.slim import load


def evaluate_model(
    model: Annotated[str, typer.Argument(metavar="MODEL|RUN", help="A timm model name or a run folder.")],
    data: Data,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    img_size: ImgSize = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Measure on a sample of this many.")] = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure top-1 and top-5 accuracy on labelled images, and the MACs per image."""
    place = open_device(device)
    if is_run(model):
        refuse_with_run(model, checkpoint=checkpoint, pretrained=pretrained, img_size=img_size)
        network: nn.Module = load(model)
    else:
        network = open_model(model, checkpoint, pretrained, img_size)
        note_random(checkpoint, pretrained)
    info: HostInfo = getattr(network, "host_info", None) or inspect(network)
    images = open_images(data, model=network, limit=limit, split="test", workers=workers_for(place))
    if images.classes is not None and images.classes != info.classes:
        console.print(f"{data} has {images.classes} class folders, the model {info.classes} outputs; check the labels.")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("images", total=len(images))
        found = evaluate(network.to(place), images, batch_size, lambda done: progress.advance(task, done))
    note_skipped(found.skipped, len(images))
    macs = count_macs(network) if found.image_macs is None else round(found.image_macs["mean"])
    result = {"model": model, "data": data} | asdict(found) | {"macs": macs, "macs_ratio": macs / host_macs(info)}
    text = (
        f"top-1 {found.top1:.2f} %, top-5 {found.top5:.2f} % on {found.images} images; "
        f"{macs / 1e9:.4g} GMACs per image, {result['macs_ratio']:.3f} of the host's"
    )
    if found.image_macs is not None:
        low, high = found.image_macs["p5"], found.image_macs["p95"]
        text += f"; images take {low / 1e9:.4g} (5th percentile) to {high / 1e9:.4g} G (95th)"
    report(result, as_json, text)
