"""How pictures are prepared for a transformers model, in timm's words: by preprocessor_config.json or its family."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.data import constants
from torch import nn

from patchslim.errors import DataError, UnsupportedModel
from patchslim.files import read_json
from patchslim.hosts.hf_parts import kind_of, tower_of

PREPROCESSOR = "preprocessor_config.json"
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
HALVES = {"mean": constants.IMAGENET_INCEPTION_MEAN, "std": constants.IMAGENET_INCEPTION_STD}
IMAGENET = {"mean": constants.IMAGENET_DEFAULT_MEAN, "std": constants.IMAGENET_DEFAULT_STD}
OPENAI = {"mean": constants.OPENAI_CLIP_MEAN, "std": constants.OPENAI_CLIP_STD}
# The defaults of transformers' image processors, for a model that comes without its settings.
DINO_DEFAULT: dict[str, Any] = IMAGENET | {"interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": HALVES | {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"},
    "DeiT": IMAGENET | {"interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "squash"},
    "DINOv2": DINO_DEFAULT,
    "DINOv2 with registers": DINO_DEFAULT,
    "CLIP": OPENAI | {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center"},
    "SigLIP": HALVES | {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"},
}


def hf_data_settings(model: nn.Module) -> dict[str, Any]:
    """Name, input size, mean, deviation, resize and crop of a transformers model, as timm's `pretrained_cfg` has them.

    What the model was opened with, else what lies beside its weights, else what its family takes.
    """
    own: dict[str, Any] | None = getattr(model, "pretrained_cfg", None)
    if own is not None:
        return own
    config: Any = model.config
    return preparation(model, read_preprocessor(Path(config._name_or_path)) if config._name_or_path else None)


def read_preprocessor(folder: Path) -> dict[str, Any] | None:
    """What a folder says of its model's images, where it does."""
    path = folder / PREPROCESSOR
    return read_json(path, DataError, "preprocessor's config") if path.is_file() else None


def preparation(model: nn.Module, given: Mapping[str, Any] | None, img_size: int | None = None) -> dict[str, Any]:
    """The same from a preprocessor's config, for images of `img_size` pixels where the model takes any."""
    family, config = kind_of(model).family, tower_of(model).config
    usual = DEFAULTS[family.name]
    found, size = (usual, None) if given is None else _read(given, usual)
    own = pair(config.image_size)
    wanted = (img_size, img_size) if img_size is not None else size if family.any_size and size is not None else own
    if wanted != own and not family.any_size:
        raise UnsupportedModel(
            f"This {family.name} has positions for images of {own[1]}×{own[0]} pixels only; leave out --img-size."
        )
    return {"architecture": name_of(model), "input_size": (config.num_channels, *wanted)} | found


def name_of(model: Any) -> str:
    """The hub's name, or the folder's without the way to it; the class of a model made anew."""
    given = model.config._name_or_path.rstrip("/\\")
    if not given:
        return type(model).__name__
    on_hub = given.count("/") == 1 and not given.startswith((".", "~", "/")) and not Path(given).exists()
    return given if on_hub else Path(given).resolve().name


def _read(given: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """timm's settings and the size of the picture in the end; DataError for what can't be said in them."""
    try:
        scaled = given.get("do_rescale", True) and math.isclose(given.get("rescale_factor", 1 / 255), 1 / 255)
        if not scaled:
            raise DataError(f"{PREPROCESSOR} does not scale pixels by 1/255, which is the only scale patchslim knows.")
        normal = given.get("do_normalize", True)
        number = given.get("resample", -1)
        crop_pct, crop_mode, size = _resize(given, usual)
        return {
            "mean": tuple(map(float, given.get("image_mean") or usual["mean"])) if normal else (0.0,) * 3,
            "std": tuple(map(float, given.get("image_std") or usual["std"])) if normal else (1.0,) * 3,
            "interpolation": usual["interpolation"] if number in (-1, None) else RESAMPLE[number],
            "crop_pct": crop_pct,
            "crop_mode": crop_mode,
        }, size
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{PREPROCESSOR} does not describe how images are prepared: {error!r}.") from None


def _resize(given: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[float, str, tuple[int, int] | None]:
    """(share of the resized picture that is cropped, how it is resized, what comes out)."""
    size, crops = given.get("size"), bool(given.get("do_center_crop", False))
    if size is None or not given.get("do_resize", True):
        return usual["crop_pct"], usual["crop_mode"], None
    shortest = size if crops and isinstance(size, int) else None  # as older configs say it
    if isinstance(size, Mapping):
        shortest = size.get("shortest_edge")
    resized = pair(size) if shortest is None else (int(shortest), int(shortest))
    mode = "squash" if shortest is None else "center"
    if not crops:
        return 1.0, mode, resized
    crop = pair(given.get("crop_size") or resized)
    share = crop[0] / resized[0]
    # timm divides by the share and rounds down, which may fall one short.
    return (share if math.floor(crop[0] / share) == resized[0] else crop[0] / (resized[0] + 0.5)), mode, crop


def pair(size: Any) -> tuple[int, int]:
    """(height, width) of a number, a pair, or a mapping."""
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
