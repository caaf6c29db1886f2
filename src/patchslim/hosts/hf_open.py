"""Opening a model of Hugging Face: a folder, or a name on the hub. Weights come from safetensors only, code from
nowhere: the class is one of those patchslim knows, whatever a config asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.errors import CheckpointError, DataError, UnsupportedModel, first_words
from patchslim.files import read_json
from patchslim.hosts.hf_check import SUPPORTED
from patchslim.hosts.hf_data import PREPROCESSOR, preparation
from patchslim.hosts.hf_parts import KINDS, LIBRARY, OPENED_AS
from patchslim.hosts.hf_spec import library
from patchslim.hosts.weights import check_weights

ON_HUB = "hf:"  # how a name on the hub begins
CONFIG = "config.json"


def is_hf_folder(path: Path) -> bool:
    """Whether a folder holds a transformers model: its config names a model type, which a run's does not."""
    if not (path / CONFIG).is_file():
        return False
    try:
        return "model_type" in read_json(path / CONFIG, UnsupportedModel, "config")
    except UnsupportedModel:
        return False


def is_hf_name(name: str) -> bool:
    """Whether MODEL is a name on the hub, `hf:NAME`, or a folder with a transformers model."""
    return name.startswith(ON_HUB) or (bool(name.strip()) and is_hf_folder(Path(name)))


def open_hf(name: str | Path, img_size: int | None = None) -> nn.Module:
    """A transformers model in eval mode, with its own weights and the way its images are prepared.

    `name` is a folder with config.json and model.safetensors, or `hf:NAME` for one on the hub. Of models that read
    text too the vision tower is opened. `img_size` is for DINOv2, that takes any.
    """
    text = str(name)
    local = not text.startswith(ON_HUB)
    source = text.removeprefix(ON_HUB)
    if not local and not source.strip():
        raise UnsupportedModel("hf: needs the name of a model on the hub after it, such as hf:facebook/dinov2-small.")
    if local and not is_hf_folder(Path(text)):
        raise UnsupportedModel(f"{text} holds no Hugging Face model: it needs a {CONFIG} with a model_type.")
    found = library()
    with _quiet():
        cls, settings = _class_of(found, source, local)
        model = _loaded(cls, source, local, **settings)
        given = _preprocessor(found, source, local)
    model.pretrained_cfg = preparation(model, given, img_size)
    return model.eval()


def _class_of(found: Any, source: str, local: bool) -> tuple[Any, dict[str, Any]]:
    """The class that a config's `architectures` names, and what a tower has to know of the whole model."""
    try:
        config, _ = found.PreTrainedConfig.get_config_dict(source, local_files_only=local)
    except Exception as error:  # the hub's client fails in many ways
        raise _unreadable(source, local, error) from None
    names = config.get("architectures") or ["nothing"]
    name = OPENED_AS.get(names[0], names[0])
    if name not in KINDS:
        raise UnsupportedModel(f"{source} is a {name}, which can't be slimmed; {SUPPORTED}.")
    tower = name != names[0] and "projection_dim" in config
    return getattr(found, name), {"projection_dim": config["projection_dim"]} if tower else {}


def _loaded(cls: Any, source: str, local: bool, **settings: Any) -> Any:
    try:
        model, told = cls.from_pretrained(
            source, use_safetensors=True, local_files_only=local, output_loading_info=True, **settings
        )
    except Exception as error:  # a missing, damaged or foreign file can fail in any way
        raise _unreadable(source, local, error) from None
    missing = sorted(name for name in told["missing_keys"] if not name.endswith("mask_token"))  # only pretraining's
    if missing and all(name.startswith("pooler.") for name in missing):
        return _loaded(cls, source, local, add_pooling_layer=False)  # it was published without
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"The weights of {source} lack {missing[0]}{more}, which {cls.__name__} needs; they are another model's."
        )
    check_weights(model, model.state_dict(), source)
    return model


def _preprocessor(found: Any, source: str, local: bool) -> dict[str, Any] | None:
    """What the model says of its images, where it does."""
    if local:
        path = Path(source) / PREPROCESSOR
        return read_json(path, DataError, "preprocessor's config") if path.is_file() else None
    try:
        path = found.utils.cached_file(source, PREPROCESSOR, _raise_exceptions_for_missing_entries=False)
    except Exception as error:
        raise _unreadable(source, local, error) from None
    return None if path is None else read_json(Path(path), DataError, "preprocessor's config")


def _unreadable(source: str, local: bool, error: Exception) -> CheckpointError:
    if local:
        return CheckpointError(
            f"The weights in {source} can't be read ({first_words(error)}); it needs a model.safetensors that fits its "
            f"{CONFIG}."
        )
    return CheckpointError(
        f"{source} can't be had from the Hugging Face hub ({first_words(error)}); where it can't be reached, download "
        "the model elsewhere and give its folder."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own report of what it loads: what is wrong is told in a sentence."""
    logger = logging.getLogger(LIBRARY)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
