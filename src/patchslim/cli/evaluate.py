"""`patchslim eval`: accuracy and MACs of a model or a run, or of two on the same images."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from patchslim.cli import options
from patchslim.cli.terminal import console, note_skipped, report, shown
from patchslim.errors import PatchslimError

if TYPE_CHECKING:
    from patchslim.hosts import HostInfo


def evaluate_model(
    model: Annotated[str, Argument(metavar="MODEL|RUN", help=f"{options.MODEL_HELP}, or a run folder.")],
    data: options.Data,
    against: Annotated[
        str | None, Argument(metavar="MODEL|RUN", help="Another, on the same images, and how far apart the two are.")
    ] = None,
    classes: options.Classes = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = False,
    img_size: options.ImgSize = None,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 64,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure top-1 and top-5 accuracy on labelled images, and the MACs per image."""
    from patchslim.cli.opening import is_run, note_random, open_device, open_model, refuse_with_run, workers_for
    from patchslim.data import open_images
    from patchslim.data.transform import data_config
    from patchslim.hosts import inspect
    from patchslim.hosts.hf_open import is_hf_name
    from patchslim.macs import count_macs, host_macs
    from patchslim.measure import paired
    from patchslim.measure.accuracy import ranks_of
    from patchslim.runs.store import load

    place = open_device(device)
    names = [model] if against is None else [model, against]
    others = [name for name in names if not is_run(name)]  # options that make a model go to every one of these
    if not others:
        refuse_with_run(model, checkpoint=checkpoint, pretrained=pretrained, img_size=img_size)
    bare = [name for name in others if not is_hf_name(name)] or others  # the rest bring weights of their own
    given = {name: (checkpoint, pretrained) if name in bare else (None, False) for name in others}
    networks = [open_model(name, *given[name], img_size) if name in others else load(name) for name in names]
    if others:
        note_random(others, checkpoint, pretrained)
    infos = [inspect(network) for network in networks]
    check_alike(names, infos)
    workers = workers_for(place)
    images = open_images(data, model=networks[0], limit=limit, split="test", workers=workers, classes=classes)
    if images.classes is not None and images.classes != infos[0].classes:
        console.print(
            f"{data} has {images.classes} classes, the model {infos[0].classes} outputs; check the labels (--classes)."
        )
    usual = data_config(networks[0])
    sources = [images if data_config(network) == usual else images.prepared_for(network) for network in networks]
    with shown("images", len(images)) as move:
        networks = [network.to(place) for network in networks]
        found = ranks_of(networks, sources, batch_size, lambda more: move(advance=more))
    note_skipped(images.skipped, len(images))
    results: list[dict[str, Any]] = []
    for name, network, info, ranks in zip(names, networks, infos, found, strict=True):
        own = ranks.accuracy
        macs = count_macs(network) if own.image_macs is None else round(own.image_macs["mean"])
        about = {"model": name, "data": data}
        results.append(about | asdict(own) | {"macs": macs, "macs_ratio": macs / host_macs(info)})
    if against is None:
        report(results[0], as_json, sentence(results[0]))
        return
    apart = paired(found[0].hits, found[1].hits)
    lines = [f"{result['model']}: {sentence(result)}" for result in results]
    lines.append(
        f"first minus second: {apart.difference:+.2f} points of top-1, 95 % interval {apart.low:+.2f} to "
        f"{apart.high:+.2f}; images that only the first gets right: {apart.only_first}, only the second: "
        f"{apart.only_second}; p = {apart.p_value:.2g} (exact McNemar test)"
    )
    report(results[0] | {"against": results[1], "paired": asdict(apart)}, as_json, "\n".join(lines))


def check_alike(names: list[str], infos: "list[HostInfo]") -> None:
    """Refuse two models that don't answer the same question about the same pixels."""
    sizes = [f"images of {info.image_size[1]}×{info.image_size[0]} pixels" for info in infos]
    classes = [f"{info.classes} classes" for info in infos]
    for verb, said in (("takes", sizes), ("has", classes)):
        if said[0] != said[-1]:
            raise PatchslimError(
                f"{names[0]} {verb} {said[0]}, {names[1]} {said[1]}, so they can't be compared image by image; "
                "give two that agree, or measure each on its own."
            )


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
