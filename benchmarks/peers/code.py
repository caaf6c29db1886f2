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
from pathlib import Path
from typing import Annotated, Any

import timm.layers
import timm.models
import typer
from torch import nn

from patchslim.errors import PatchslimError
from patchslim.hosts import inspect

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
