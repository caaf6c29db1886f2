"""ToMe's and EViT's own code, from checkouts of their repositories.

    git clone https://github.com/facebookresearch/ToMe tome
    git clone https://github.com/youweiliang/evit evit

It was written for an older timm. Nothing of it is changed: modules that it imports and that are gone by now are filled
in before the import, with what today's timm has under other names.
"""

from __future__ import annotations

import copy
import importlib
import sys
import types
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import timm.layers
import timm.models
import torch
import typer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from patchslim.errors import PatchslimError
from patchslim.hosts import HostInfo, inspect
from patchslim.macs import host_macs

ToMeCode = Annotated[Path | None, typer.Option("--tome", help="A checkout of facebookresearch/ToMe.")]
EViTCode = Annotated[Path | None, typer.Option("--evit", help="A checkout of youweiliang/evit.")]
OWN = "{} as published"  # a row's method


def published(
    host: nn.Module, info: HostInfo, ratio: float, tome: Path | None, evit: Path | None
) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    """The authors' models with the most MACs within a ratio, each with what a row says of it."""
    for name, checkout, settings, make in (
        ("EViT", evit, range(99, 0, -1), lambda own: their_evit(evit, host, own / 100)),
        ("ToMe", tome, range(1, info.patches), lambda own: their_tome(tome, host, own)),
    ):
        if checkout is None:
            continue
        model = most_within(make, settings, info, ratio * host_macs(info))
        macs = counted(model, info)
        known: dict[str, Any] = {"method": OWN.format(name), "target_macs": ratio}
        yield model, known | {"macs": macs, "macs_ratio": macs / host_macs(info)}


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


def their_tome(checkout: Path | None, model: nn.Module, r: int) -> nn.Module:
    """ToMe's own patch of a model."""
    package = imported(checkout, "tome")
    patched: Any = copy.deepcopy(model)
    package.patch.timm(patched)
    patched.r = r
    return patched  # type: ignore[no-any-return]


def their_evit(checkout: Path | None, model: nn.Module, rate: float) -> nn.Module:
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


def imported(checkout: Path | None, name: str) -> Any:
    """A package of a checkout; PatchslimError where there is none."""
    if checkout is None or not ((checkout / name / "__init__.py").is_file() or (checkout / f"{name}.py").is_file()):
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
