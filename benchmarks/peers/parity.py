"""The same answers as the authors' code gives, on the same weights and images?"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.inputs import MODEL, ModelName, Out, Weights, Where, in_memory, network, say, scored
from benchmarks.peers.code import EViTCode, ToMeCode, their_evit, their_tome
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.table import COLUMNS, method_of, number, pages, place, value
from patchslim.data import ImageSource
from patchslim.hosts import HostInfo
from patchslim.macs import count_macs, host_macs
from patchslim.methods import EViT, ToMe
from patchslim.plan import make_plan
from patchslim.slimmed import apply
from patchslim.steps import Step
from patchslim.steps.evit import choose

EXACT = 4  # batches that run in double precision too


def parity(
    data: Annotated[str, typer.Option("--data", help="Labelled images.")],
    checkpoint: Weights,
    tome: ToMeCode = None,
    evit: EViTCode = None,
    model: ModelName = MODEL,
    images: Annotated[int | None, typer.Option("--images", help="A sample of --data.")] = None,
    r: Annotated[str, typer.Option("--r", metavar="R,…", help="ToMe's tokens per block.")] = "8,13",
    keep_rate: Annotated[str, typer.Option("--keep-rate", metavar="K,…", help="EViT's.")] = "0.7,0.5",
    batch_size: int = 50,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Compare logits, answers and kept patches with those of the authors' code."""
    host, info, place = network(model, checkpoint, device=device)
    source = in_memory(data, host, images, split="test")
    rows = []
    for ours, theirs, known in pairs(host, info, tome, evit, r, keep_rate):
        found = compared(ours, theirs, source, batch_size)
        if known["method"] == "evit":
            found["values"] |= same_choice(theirs, source, batch_size)
        macs = count_macs(ours)
        head = about(place) | {"question": "peers-parity", "model": model, "dtype": "float32"}
        rows.append(Row(**head, **known, **found, macs=macs, macs_ratio=macs / host_macs(info)))
        keep(rows[-1:], out)
        say(f"{known}: {found['values']}")
    print(pages("peers-parity", rows))


def pairs(
    host: nn.Module, info: HostInfo, tome: Path | None, evit: Path | None, r: str, rates: str
) -> Iterator[tuple[nn.Module, nn.Module, dict[str, Any]]]:
    """Ours, theirs, and what a row says of both."""

    def ours(steps: Sequence[Step]) -> nn.Module:
        return apply(host, make_plan(info, steps))

    for own in map(int, r.split(",")) if tome else ():
        steps = ToMe().steps(info, [own] * info.depth)
        yield ours(steps), their_tome(tome, host, own), {"method": "tome", "point": {"r": own}}
    for rate in map(float, rates.split(",")) if evit else ():
        steps = EViT().steps(info, rate)
        yield ours(steps), their_evit(evit, host, rate), {"method": "evit", "point": {"keep_rate": rate}}


@torch.inference_mode()
def answers(models: Sequence[nn.Module], batches: Iterable[Tensor]) -> list[Tensor]:
    """Logits of several models on the same images: (images, classes) each."""
    place = next(models[0].parameters()).device
    found = [[model(batch.to(place)).cpu() for model in models] for batch in batches]
    return [torch.cat(own) for own in zip(*found, strict=True)]


def compared(ours: nn.Module, theirs: nn.Module, images: ImageSource, size: int) -> dict[str, Any]:
    """Top-1 of both on the same images, and how far apart they are: in single precision, where a tie may go either
    way, and on the first batches in double, where none does."""
    labels = torch.cat([labels for _, labels in images.batches(size)])
    one, two = answers([ours, theirs], (batch for batch, _ in images.batches(size)))
    apart = (one - two).abs().amax(dim=1)
    few = (batch.double() for batch, _ in itertools.islice(images.batches(size), EXACT))
    exact = answers([copy.deepcopy(model).double() for model in (ours, theirs)], few)
    values = {
        "their_top1": float((two.argmax(dim=1) == labels).double().mean() * 100),
        "other_answers": int((one.argmax(dim=1) != two.argmax(dim=1)).sum()),
        "median_difference": float(apart.median()),
        "images_apart_by_1e-4": int((apart > 1e-4).sum()),
        "float64_images": len(exact[0]),
        "float64_largest_difference": float((exact[0] - exact[1]).abs().max()),
    }
    return {"values": values} | scored(one.argmax(dim=1) == labels)


@torch.inference_mode()
def same_choice(theirs: Any, images: ImageSource, batch_size: int) -> dict[str, int]:
    """Given the attention that their own blocks see, on how many images and stages we keep the same patches."""
    kind, place = type(theirs.blocks[0].attn), next(theirs.parameters()).device
    attention: Callable[..., Any] = kind.forward
    alike = asked = 0

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal alike, asked
        result = attention(self, *args, **kwargs)
        kept, seen = result[2], result[3]
        if kept is not None:
            alike += int((choose(seen, kept.shape[1])[0] == kept).all(dim=1).sum())
            asked += len(kept)
        return result

    kind.forward = look
    try:
        for batch, _ in images.batches(batch_size):
            theirs(batch.to(place))
    finally:
        kind.forward = attention
    return {"choices": asked, "same_choices": alike}


COLUMNS["peers-parity"] = {
    "method": method_of,
    "r": place("r"),
    "keep rate": place("keep_rate"),
    "MACs": number("macs_ratio", ".3f"),
    "top-1, ours": number("top1", ".2f"),
    "top-1, their code": value("their_top1", ".2f"),
    "other answers": value("other_answers", ".0f"),
    "images": number("val_images", "d"),
    "largest difference in float64": value("float64_largest_difference", ".1e"),
    "the same patches kept": value("same_choices", ",.0f"),
    "of": value("choices", ",.0f"),
}
