"""What a setting is worth: a method's variants side by side, measured as `accuracy` measures them."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.accuracy import accuracy
from benchmarks.inputs import MODEL, Macs, ModelName, Out, Sized, Weights, Where
from benchmarks.rows import RESULTS
from patchslim.errors import PatchslimError

STUDIES = {
    "blocks": "merge:blocks=1,merge:blocks=2,merge,merge:blocks=4,merge:blocks=6,merge:blocks=none",
    "cover-blocks": "cover:blocks=2,cover:blocks=3,cover:blocks=6,cover",
    "predict": "predict,predict:removed=drop,predict:threshold=true,dps",
    "paper": "ps,ps:tune_epochs=0,ps:carry=true,uniform,attention,random,radial,spread",
    "last-block": "tome,tome:readout_only=true,evit,evit:readout_only=true",
}


def ablations(
    study: Annotated[str, typer.Argument(metavar="STUDY", help=", ".join(STUDIES))],
    data: Annotated[str, typer.Option("--data")],
    val: Annotated[str, typer.Option("--val")],
    checkpoint: Weights,
    model: ModelName = MODEL,
    target_macs: Macs = 0.55,
    images: int = 256,
    seed: int = 0,
    img_size: Sized = None,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Measure the variants of a study."""
    if study not in STUDIES:
        raise PatchslimError(f"There is no study {study!r}; choose from {', '.join(STUDIES)}.")
    accuracy(
        data,
        val,
        checkpoint,
        model,
        methods=STUDIES[study],
        target_macs=target_macs,
        images=images,
        seed=seed,
        img_size=img_size,
        device=device,
        out=out,
    )
