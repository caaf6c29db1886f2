"""ToMe's and EViT's own code beside ours: the same answers on the same weights and images, and how fast each is.

    git clone https://github.com/facebookresearch/ToMe tome
    git clone https://github.com/youweiliang/evit evit

Their code was written for an older timm. Nothing of it is changed: modules that it imports and that are gone by now
are filled in before the import, with what today's timm has under other names.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import sys
import types
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import timm.layers
import timm.models
import torch
import typer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.drawn import drawn_model
from benchmarks.inputs import (
    MODEL,
    Macs,
    Methods,
    ModelName,
    Out,
    Weights,
    Where,
    in_memory,
    network,
    noise,
    read_methods,
    say,
    scored,
)
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.speed import about_model, contenders, timed
from benchmarks.table import COLUMNS, Column, method_of, number, pages, place, value
from patchslim.data import ImageSource
from patchslim.errors import PatchslimError
from patchslim.hosts import HostInfo, inspect
from patchslim.macs import count_macs, host_macs
from patchslim.methods import EViT, ToMe
from patchslim.plan import make_plan
from patchslim.slim import apply
from patchslim.steps import Step
from patchslim.steps.evit import choose
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import modes_for
from patchslim.timing.running import in_dtype

EXACT = 4  # batches that run in double precision too
OWN = "{} as published"  # a row's method
ToMeCode = Annotated[Path | None, typer.Option("--tome", help="A checkout of facebookresearch/ToMe.")]
EViTCode = Annotated[Path | None, typer.Option("--evit", help="A checkout of youweiliang/evit.")]


def their_tome(checkout: Path, model: nn.Module, r: int) -> nn.Module:
    """ToMe's own patch of a model."""
    package = imported(checkout, "tome")
    patched: Any = copy.deepcopy(model)
    package.patch.timm(patched)
    patched.r = r
    return patched  # type: ignore[no-any-return]


def their_evit(checkout: Path, model: nn.Module, rate: float) -> nn.Module:
    """EViT's own model with the same weights, reorganising in the blocks that begin the later quarters."""
    fill_in()
    package, info = imported(checkout, "evit"), inspect(model)
    begins = [round(info.depth * quarter / 4) for quarter in (1, 2, 3)]
    their = package.EViT(
        img_size=info.image_size[0],
        patch_size=info.image_size[0] // info.grid[0],
        num_classes=info.classes,
        embed_dim=info.width,
        depth=info.depth,
        num_heads=info.heads,
        keep_rate=[rate if layer in begins else 1 for layer in range(info.depth)],
        fuse_token=True,
    )
    their.load_state_dict(model.state_dict())
    return their.to(next(model.parameters()).device).eval()  # type: ignore[no-any-return]


def imported(checkout: Path, name: str) -> Any:
    """A package of a checkout; PatchslimError where there is none."""
    if not ((checkout / name / "__init__.py").is_file() or (checkout / f"{name}.py").is_file()):
        raise PatchslimError(f"{checkout} holds no package {name}; give a checkout of its repository.")
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(checkout))


def fill_in() -> None:
    """What EViT's files import and today's timm has elsewhere or not at all; none of it is used for inference."""

    def module(name: str, **names: Any) -> None:
        made = sys.modules.setdefault(name, types.ModuleType(name))
        for key, own in names.items():
            setattr(made, key, own)

    layers, models = timm.layers, timm.models
    helpers = ("build_model_with_cfg", "named_apply", "adapt_input_conv")
    module("timm.models.helpers", **{name: getattr(models, name) for name in helpers})
    old = ("trunc_normal_", "lecun_normal_", "to_2tuple")
    module("timm.models.layers", **{name: getattr(layers, name) for name in old})
    module("timm.models.registry", register_model=lambda function: function)
    module("torchprofile", profile_macs=None)


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
        assert tome is not None
        steps = ToMe().steps(info, [own] * info.depth)
        yield ours(steps), their_tome(tome, host, own), {"method": "tome", "point": {"r": own}}
    for rate in map(float, rates.split(",")) if evit else ():
        assert evit is not None
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


def sort_by_library() -> None:
    """Have compiled models sort by ATen's kernel, as they do eagerly: with one made for every length, ToMe was not
    compiled after five minutes for batches of 256 (docs/notebook/results.md)."""
    from torch._inductor.lowering import make_fallback

    for sort in (torch.ops.aten.sort.default, torch.ops.aten.sort.stable):
        make_fallback(sort, warn=False, override_decomp=True)


PARITY: dict[str, Column] = {
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
COLUMNS |= {"peers-parity": PARITY, "peers-speed": COLUMNS["speed"]}
