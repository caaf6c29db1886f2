"""`patchslim eval`: accuracy and MACs of a model or a run, or of two on the same images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from patchslim.cli.common import (
    MODEL_HELP,
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    ImgSize,
    Limit,
    Pretrained,
    console,
    is_run,
    note_random,
    note_skipped,
    open_device,
    open_model,
    refuse_with_run,
    report,
    shown,
    workers_for,
)
from patchslim.data import Images, open_images
from patchslim.data.transform import data_config
from patchslim.errors import PatchslimError
from patchslim.hosts import HostInfo, inspect
from patchslim.macs import count_macs, host_macs
from patchslim.measure import Accuracy, Paired, evaluate, evaluate_pair
from patchslim.runs.store import load


def evaluate_model(
    model: Annotated[str, typer.Argument(metavar="MODEL|RUN", help=f"{MODEL_HELP}, or a run folder.")],
    data: Data,
    against: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|RUN",
            help="Another, measured on the same images: also prints how far apart the two are. "
            "Options that make a model then go to each timm name.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    img_size: ImgSize = None,
    limit: Limit = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure top-1 and top-5 accuracy on labelled images, and the MACs per image."""
    place = open_device(device)
    names = [model] if against is None else [model, against]
    networks = open_networks(names, checkpoint, pretrained, img_size)
    infos = [inspect(network) for network in networks]
    check_alike(names, infos)
    images = open_images(data, model=networks[0], limit=limit, split="test", workers=workers_for(place))
    if images.classes is not None and images.classes != infos[0].classes:
        console.print(
            f"{data} has {images.classes} class folders, the model {infos[0].classes} outputs; check the labels."
        )
    found, difference = measure([network.to(place) for network in networks], images, batch_size)
    note_skipped(found[0].skipped, len(images))
    results = [
        {"model": name, "data": data} | asdict(own) | macs_of(network, info, own)
        for name, network, info, own in zip(names, networks, infos, found, strict=True)
    ]
    if difference is None:
        report(results[0], as_json, sentence(results[0]))
        return
    lines = [f"{result['model']}: {sentence(result)}" for result in results]
    whole = results[0] | {"against": results[1], "paired": asdict(difference)}
    report(whole, as_json, "\n".join([*lines, paired_sentence(difference)]))


def open_networks(names: list[str], checkpoint: Path | None, pretrained: bool, img_size: int | None) -> list[nn.Module]:
    """The models and runs asked for. Options that make a model go to every timm name, and are refused without one."""
    runs = [name for name in names if is_run(name)]
    if len(runs) == len(names):
        refuse_with_run(names[0], checkpoint=checkpoint, pretrained=pretrained, img_size=img_size)
    networks = [load(name) if name in runs else open_model(name, checkpoint, pretrained, img_size) for name in names]
    if len(runs) < len(names):
        note_random([name for name in names if name not in runs], checkpoint, pretrained)
    return networks


def check_alike(names: list[str], infos: list[HostInfo]) -> None:
    """Refuse two models that don't answer the same question about the same pixels."""
    sizes = [f"images of {info.image_size[1]}×{info.image_size[0]} pixels" for info in infos]
    classes = [f"{info.classes} classes" for info in infos]
    for verb, said in (("takes", sizes), ("has", classes)):
        if said[0] != said[-1]:
            raise PatchslimError(
                f"{names[0]} {verb} {said[0]}, {names[1]} {said[1]}, so they can't be compared image by image; "
                "give two that agree, or measure each on its own."
            )


def measure(networks: list[nn.Module], images: Images, batch_size: int) -> tuple[list[Accuracy], Paired | None]:
    """Accuracy of each, and how two differ; every model sees the images through its own transform."""
    done = 0
    with shown("images", len(images)) as move:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            move(completed=done)

        if len(networks) == 1:
            return [evaluate(networks[0], images, batch_size, advance)], None
        first, second = networks
        alike = data_config(first) == data_config(second)
        others = images if alike else images.prepared_for(second)
        one, two, difference = evaluate_pair(first, second, images, others, batch_size, advance)
        return [one, two], difference


def macs_of(network: nn.Module, info: HostInfo, found: Accuracy) -> dict[str, Any]:
    """MACs per image, on average where images differ, and their ratio to the host's."""
    macs = count_macs(network) if found.image_macs is None else round(found.image_macs["mean"])
    return {"macs": macs, "macs_ratio": macs / host_macs(info)}


def sentence(result: dict[str, Any]) -> str:
    """One model's result for reading."""
    text = (
        f"top-1 {result['top1']:.2f} %, top-5 {result['top5']:.2f} % on {result['images']} images; "
        f"{result['macs'] / 1e9:.4g} GMACs per image, {result['macs_ratio']:.3f} of the host's"
    )
    if result["image_macs"] is not None:
        low, high = result["image_macs"]["p5"], result["image_macs"]["p95"]
        text += f"; images take {low / 1e9:.4g} (5th percentile) to {high / 1e9:.4g} G (95th)"
    return text


def paired_sentence(found: Paired) -> str:
    """How two models differ, for reading."""
    return (
        f"first minus second: {found.difference:+.2f} points of top-1, 95 % interval {found.low:+.2f} to "
        f"{found.high:+.2f}; images that only the first gets right: {found.only_first}, only the second: "
        f"{found.only_second}; p = {found.p_value:.2g} (exact McNemar test)"
    )
