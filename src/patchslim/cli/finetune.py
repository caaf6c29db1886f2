"""`patchslim finetune`: a run's model gets its accuracy back, from the network it was made from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from torch import nn

from patchslim.cli.common import AsJson, Data, Device, RunFolder, Seed, note_skipped, open_device, report, workers_for
from patchslim.cli.progress import show_recovery
from patchslim.data import open_images
from patchslim.measure import evaluate
from patchslim.recover import RecoverConfig
from patchslim.recover.config import Amp
from patchslim.runs.recover import Request, check_request, recover_run
from patchslim.runs.store import load

USUAL = RecoverConfig()


def finetune(
    run: RunFolder,
    data: Data,
    val: Annotated[
        str | None, typer.Option("--val", metavar="SRC", help="Labelled images to measure top-1 on, before and after.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=0, help="Of distillation, without labels [as make 5,000 steps, at most 100]."),
    ] = USUAL.epochs,
    block_epochs: Annotated[
        int, typer.Option("--block-epochs", min=0, help="Of block-wise reconstruction, without labels.")
    ] = USUAL.block_epochs,
    supervised_epochs: Annotated[
        int, typer.Option("--supervised-epochs", min=0, help="Of the DeiT recipe, with labels.")
    ] = USUAL.supervised_epochs,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="At its peak; gains and biases learn faster without labels.")
    ] = USUAL.learning_rate,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of the probabilities that are distilled; above 1 all classes count.")
    ] = USUAL.temperature,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, max=2**16, help="Images at a time.")
    ] = USUAL.batch_size,
    amp: Annotated[
        str, typer.Option("--amp", help="auto: bf16 on a GPU; bf16: also on a CPU that has instructions for it; off.")
    ] = USUAL.amp,
    images: Annotated[int | None, typer.Option("--images", min=2, help="Take a sample of this many.")] = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the images that decides when to stop, at most 512 images.")
    ] = USUAL.held_out,
    patience: Annotated[
        int, typer.Option("--patience", min=1, help="Epochs without a better loss on held-out images.")
    ] = USUAL.patience,
    teacher: Annotated[
        Path | None, typer.Option("--teacher", metavar="F", help="The original weights, where the run has them not.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN2", help="Leave RUN as it is and recover a copy.")
    ] = None,
    device: Device = None,
    workers: Annotated[int | None, typer.Option("--workers", min=0, help="Processes that read images.")] = None,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted recovery.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Start over from the weights that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a slim model its accuracy back: it learns from the network it was made from. No labels are needed."""
    config = RecoverConfig(
        epochs=epochs,
        block_epochs=block_epochs,
        supervised_epochs=supervised_epochs,
        learning_rate=learning_rate,
        temperature=temperature,
        batch_size=batch_size,
        held_out=held_out,
        patience=patience,
        amp=cast(Amp, amp),
        seed=seed,
    )
    request = Request(run, out, teacher, resume, again)
    check_request(request)
    place = open_device(device)
    reading = workers_for(place) if workers is None else workers
    model = load(run)
    source = open_images(data, model=model, limit=images, seed=seed, workers=reading)
    judged = None if val is None else open_images(val, model=model, split="test", workers=reading)

    def judge(slim: nn.Module) -> dict[str, Any]:
        assert judged is not None
        return asdict(evaluate(slim, judged, batch_size))

    torch.manual_seed(seed)
    with show_recovery() as listen:
        found = recover_run(request, source, config, place, listen, judge if judged else None)
    note_skipped(found["skipped_images"], len(source))
    result = _result(request.folder, found)
    report(result, as_json, summary(result))


def _result(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What the command prints as JSON."""
    before, after, val = found["before"], found["after"], found.get("val") or {"before": {}, "after": {}}
    return {
        "run": str(folder),
        "images": found["images"],
        "held_out_images": found["held_out_images"],
        "seconds": found["seconds"],
        "loss_before": before["loss"],
        "loss_after": after["loss"],
        "kl_before": before.get("kl"),
        "kl_after": after.get("kl"),
        "agreement_before": before["agreement"],
        "agreement_after": after["agreement"],
        "macs_before": before.get("macs"),
        "macs_after": after.get("macs"),
        "top1_before": val["before"].get("top1"),
        "top1_after": val["after"].get("top1"),
        "stopped": found["stopped"],
        "changed": found["changed"],
        "stages": found["stages"],
    }


def summary(result: dict[str, Any]) -> str:
    """A few lines for a person."""
    words = {"patience": ", stopped early", "diverged": ", stopped because the loss was not finite any more"}
    lines = [
        f"{result['run']}: distillation loss {result['loss_before']:.4g} → {result['loss_after']:.4g} on "
        f"{result['held_out_images']} held-out of {result['images']} images, in {result['seconds']:.0f} s"
        + words.get(result["stopped"], "")
    ]
    if result["agreement_after"] is not None:
        before, after = result["agreement_before"], result["agreement_after"]
        lines.append(f"same answer as the original network: {before:.1f} % → {after:.1f} %")
    if None not in (result["kl_before"], result["kl_after"]):  # recoveries begun before it was measured have none
        lines[-1] += f", KL {result['kl_before']:.4g} → {result['kl_after']:.4g} nats"
    if result["macs_after"] is not None:
        before, after = result["macs_before"] / 1e9, result["macs_after"] / 1e9
        lines.append(f"GMACs per image, where images keep as many patches as they need: {before:.4g} → {after:.4g}")
    if result["top1_after"] is not None:
        lines.append(f"top-1: {result['top1_before']:.2f} % → {result['top1_after']:.2f} %")
    if not result["changed"]:
        lines.append("Nothing learnt was better on held-out images, so the weights are as they were.")
    return "\n".join(lines)
