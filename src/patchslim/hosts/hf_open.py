"""Opening a model of Hugging Face: a folder, a name on the hub, or the settings of a run. Weights come from safetensors
only, code from nowhere: the class is one of those patchslim knows, whatever a config asks for."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.errors import CheckpointError, UnsupportedModel
from patchslim.files import read_json
from patchslim.hosts.hf_data import PREPROCESSOR, hf_data_settings, preparation, read_preprocessor
from patchslim.hosts.hf_parts import KINDS, LIBRARY, OPENED_AS, SUPPORTED, tower_of
from patchslim.hosts.hub import answers, bars_for_eyes
from patchslim.hosts.shells import as_host
from patchslim.hosts.spec import HFSpec
from patchslim.hosts.timm_spec import listed, prove, set_data_settings_
from patchslim.hosts.weights import check_weights
from patchslim.packages import quiet, told

ON_HUB = "hf:"  # how a name on the hub begins
CONFIG = "config.json"


def is_hf_folder(path: Path) -> bool:
    """Whether a folder holds a transformers model: its config names a model type, which a run's does not."""
    with suppress(UnsupportedModel):
        return (path / CONFIG).is_file() and "model_type" in read_json(path / CONFIG, UnsupportedModel, "config")
    return False


def is_hf_name(name: str) -> bool:
    """Whether MODEL is a name on the hub, `hf:NAME`, or a folder with a transformers model."""
    return name.startswith(ON_HUB) or (bool(name.strip()) and is_hf_folder(Path(name)))


def open_hf(name: str | Path, img_size: int | None = None) -> nn.Module:
    """A transformers model in eval mode, with its own weights and the way its images are prepared.

    `name` is a folder with config.json and model.safetensors, or `hf:NAME` for one on the hub. Of models that read
    text too the vision tower is opened. `img_size` is for DINOv2, that takes any.
    """
    local, source = not str(name).startswith(ON_HUB), str(name).removeprefix(ON_HUB)
    if not local and not source.strip():
        raise UnsupportedModel("hf: needs the name of a model on the hub after it, such as hf:facebook/dinov2-small.")
    if local and not is_hf_folder(Path(source)):
        raise UnsupportedModel(f"{source} holds no Hugging Face model: it needs a {CONFIG} with a model_type.")
    found = library()
    with _reading(found, source, local):
        here = local or not answers()  # what was downloaded before is found without it
        cls, settings = _class_of(found, source, here)
        model = _loaded(cls, source, here, **settings)
        preprocessor = read_preprocessor(Path(source)) if local else _preprocessor(found, source, here)
    model.pretrained_cfg = preparation(model, preprocessor, img_size)
    return model.eval()


def library() -> Any:
    """The package transformers; UnsupportedModel when it is not installed."""
    try:
        return import_module(LIBRARY)
    except ImportError:
        raise UnsupportedModel(
            "Models of Hugging Face need the package transformers; install it with pip install 'patchslim[hf]'."
        ) from None


def _class_of(found: Any, source: str, here: bool) -> tuple[Any, dict[str, Any]]:
    """The class that a config's `architectures` names, and what a tower has to know of the whole model."""
    config, _ = found.PreTrainedConfig.get_config_dict(source, local_files_only=here)
    names = config.get("architectures") or ["nothing"]
    name = OPENED_AS.get(names[0], names[0])
    if name not in KINDS:
        raise UnsupportedModel(f"{source} is a {name}, which can't be slimmed; {SUPPORTED}.")
    tower = name != names[0] and "projection_dim" in config
    return getattr(found, name), {"projection_dim": config["projection_dim"]} if tower else {}


def _loaded(cls: Any, source: str, here: bool, **settings: Any) -> Any:
    ways = {"use_safetensors": True, "local_files_only": here, "output_loading_info": True}
    model, report = cls.from_pretrained(source, **ways, **settings)
    missing = sorted(name for name in report["missing_keys"] if not name.endswith("mask_token"))  # only pretraining's
    if missing and all(name.startswith("pooler.") for name in missing):
        return _loaded(cls, source, here, add_pooling_layer=False)  # it was published without
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"The weights of {source} lack {missing[0]}{more}, which {cls.__name__} needs; they are another model's."
        )
    check_weights(model, model.state_dict(), source)
    return model


def _preprocessor(found: Any, source: str, here: bool) -> dict[str, Any] | None:
    """What a model on the hub says of its images, where it does."""
    ways = {"local_files_only": here, "_raise_exceptions_for_missing_entries": False}
    path = found.utils.cached_file(source, PREPROCESSOR, **ways)
    return None if path is None else read_preprocessor(Path(path).parent)


@contextmanager
def _reading(found: Any, source: str, local: bool) -> Iterator[None]:
    """Tells in a sentence what fails: a missing, damaged or foreign file and the hub's client can fail in any way."""
    what, remedy = f"The weights in {source} can't be read", f"it needs a model.safetensors that fits its {CONFIG}"
    if not local:
        what = f"{source} can't be had from the Hugging Face hub"
        remedy = "where it can't be reached, download the model elsewhere and give its folder"
    own = found.utils.logging  # it loads weights with a bar
    bars = bars_for_eyes(lambda: not own.is_progress_bar_enabled(), own.disable_progress_bar, own.enable_progress_bar)
    with told(what, remedy, CheckpointError), bars:
        yield


def describe_hf(model: Any) -> dict[str, Any]:
    """The class and config of a host, also of a slim model's, proved by building it again."""
    model = as_host(model)
    spec = {
        "library": LIBRARY,
        "version": version(LIBRARY),
        "class": type(model).__name__,
        "config": model.config.to_dict(),
        "attention": "eager" if tower_of(model).config._attn_implementation == "eager" else "sdpa",
        "kwargs": {"add_pooling_layer": False} if hasattr(model, "pooler") and model.pooler is None else {},
        "pretrained_cfg": listed(hf_data_settings(model)),
    }
    spec = json.loads(json.dumps(spec))  # as a run gives it back
    prove(model, spec, rebuild_hf, "its config does not describe")
    return spec


def rebuild_hf(spec: Mapping[str, Any]) -> Any:
    """A model of these settings with fresh weights (on torch's current default device)."""
    HFSpec.model_validate(spec)
    if spec["class"] not in KINDS:
        raise KeyError(spec["class"])
    cls = getattr(library(), spec["class"])
    with quiet():
        model = cls(cls.config_class.from_dict(spec["config"]), **spec["kwargs"])
        model.set_attn_implementation(spec["attention"])
    set_data_settings_(model, spec["pretrained_cfg"])
    return model
