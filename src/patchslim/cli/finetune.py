"""`patchslim finetune`: a run's model gets its accuracy back, from the network it was made from."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Context, Option

from patchslim.cli import options
from patchslim.cli.terminal import console, note_skipped, report, show_recovery

if TYPE_CHECKING:
    from patchslim.recover.config import Amp


def finetune(
    context: Context,
    run: options.RunFolder,
    data: options.Data,
    val: Annotated[str | None, Option(metavar="SRC", help="Labelled images; top-1 before and after.")] = None,
    classes: options.Classes = None,
    epochs: Annotated[int | None, Option(min=0, help="Of distillation [5,000 steps, at most 100].")] = None,
    block_epochs: Annotated[int, Option(min=0, help="Of block-wise reconstruction.")] = 1,
    supervised_epochs: Annotated[int, Option(min=0, help="Of the DeiT recipe, with labels.")] = 0,
    learning_rate: Annotated[float, Option(help="At its peak.")] = 3e-5,
    temperature: Annotated[float, Option(help="Of the probabilities that are distilled.")] = 4.0,
    batch_size: options.BatchSize = 128,
    amp: Annotated[str, Option(help="auto: bf16 on a GPU; bf16: on a CPU too; off.")] = "auto",
    images: Annotated[int | None, Option(min=2, help="Take a sample of this many.")] = None,
    held_out: Annotated[float, Option(help="Share of images, at most 512, that says when to stop.")] = 0.1,
    patience: Annotated[int, Option(min=1, help="Epochs without a better loss on held-out images.")] = 20,
    teacher: Annotated[Path | None, Option(metavar="F", help="The original weights, if the run lacks them.")] = None,
    out: Annotated[Path | None, Option(metavar="RUN2", help="Leave RUN as it is and recover a copy.")] = None,
    device: options.Device = None,
    workers: Annotated[int | None, Option(min=0, help="Processes that read images.")] = None,
    seed: options.Seed = 0,
    resume: Annotated[bool, Option("--resume", help="Go on with an interrupted recovery.")] = False,
    again: Annotated[bool, Option("--again", help="Start over from the weights that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Give a slim model its accuracy back: it learns from the network it was made from. No labels are needed."""
    import torch

    from patchslim.cli.opening import open_device, workers_for
    from patchslim.data import open_images
    from patchslim.measure import evaluate
    from patchslim.recover import RecoverConfig
    from patchslim.runs.made import stale_files
    from patchslim.runs.recover import Request, check_request, recover_run
    from patchslim.runs.store import load

    if epochs == supervised_epochs == 0:
        options.refuse_idle(context, "only blocks learn, at a rate of their own", "learning_rate", "patience")
    if val is None and not supervised_epochs:
        options.refuse_idle(context, "no labels are read without --val or --supervised-epochs", "classes")
    config = RecoverConfig(
        epochs=epochs,
        block_epochs=block_epochs,
        supervised_epochs=supervised_epochs,
        learning_rate=learning_rate,
        temperature=temperature,
        batch_size=batch_size,
        held_out=held_out,
        patience=patience,
        amp=cast("Amp", amp),
        seed=seed,
    )
    request = Request(run, out, teacher, resume, again)
    check_request(request)
    place = open_device(device)
    reading = workers_for(place) if workers is None else workers
    model = load(run)
    opened = partial(open_images, model=model, workers=reading)
    source = opened(data, limit=images, seed=seed, classes=classes if supervised_epochs else None)
    judged = None if val is None else opened(val, split="test", classes=classes)
    judge = None if judged is None else lambda slim: asdict(evaluate(slim, judged, batch_size))
    torch.manual_seed(seed)
    with show_recovery() as listen:
        found = recover_run(request, source, config, place, listen, judge)
    note_skipped(found["skipped_images"], len(source))
    result = {"run": str(request.folder)} | {name: found[name] for name in ("images", "held_out_images", "seconds")}
    top1 = found.get("val") or {"before": {}, "after": {}}
    for name, told in {"loss": found, "kl": found, "agreement": found, "macs": found, "top1": top1}.items():
        result |= {f"{name}_{side}": told[side].get(name) for side in ("before", "after")}
    result |= {name: found[name] for name in ("stopped", "changed", "stages")} | {"stale": stale_files(request.folder)}
    if result["stale"]:
        console.print(
            f"Of the weights before: {', '.join(result['stale'])}; make them anew.", highlight=False, soft_wrap=True
        )
    report(result, as_json, summary(result))


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
