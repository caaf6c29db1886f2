"""Linear layers in INT8 or float8, for inference in PyTorch, by torchao: weights with a scale per output, taken once;
inputs with a scale per token, taken as they come. Nothing is calibrated, so it takes no images."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from patchslim.errors import PatchslimError
from patchslim.hosts import classifiers_of, split_qkv_
from patchslim.packages import need, quiet, told
from patchslim.slimmed import own_keys

WAYS = ("int8", "float8")
FLOAT8_FROM = (8, 9)  # compute capability of the first GPUs that multiply float8
MULTIPLE = 16  # of which widths have to be, or the kernels don't take them
FEWEST_ROWS = 17  # torch's INT8 product on CUDA takes no fewer, and fewer cost nothing


def check_way(way: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise PatchslimError for what can't be quantised so, on this device with weights of this dtype."""
    if way not in WAYS:
        raise PatchslimError(f"There is no quantisation {way}; choose from {', '.join(WAYS)}.")
    if way == "float8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < FLOAT8_FROM):
        raise PatchslimError("float8 needs an NVIDIA GPU of compute capability 8.9 or newer; take int8.")
    if way == "float8" and dtype != torch.bfloat16:
        raise PatchslimError("float8 goes with weights in bfloat16; ask for the dtype bfloat16.")
    _torchao()


def quantised(model: nn.Module, way: str, batch: Tensor) -> nn.Module:
    """A copy of a host or a slim model, for inference, whose linear layers compute in INT8 or float8.

    `batch` (B, C, H, W) shows what the layers are given; later ones may be larger. The classifiers and G, which chooses
    patches, stay as they are, and so does a layer that sees a handful of rows or has odd widths.
    """
    check_way(way, batch.device, batch.dtype)
    model = copy.deepcopy(model).eval().requires_grad_(False)
    split_qkv_(model, rows_seen(model, batch))  # a slim block takes rows of the weight where it has fewer queries
    fitting = _fitting(model, rows_seen(model, batch))
    with told(f"torchao can't quantise this model to {way}"):
        _torchao().quantize_(model, _config(way), lambda layer, name: name in fitting)
    return model


@torch.no_grad()
def rows_seen(model: nn.Module, batch: Tensor) -> dict[str, int]:
    """How many rows each linear layer is given for a batch (B, C, H, W), by name; those never called are not there."""
    rows: dict[str, int] = {}
    names = {layer: name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}

    def watch(layer: Any, given: Any) -> None:
        if layer in names:
            rows[names[layer]] = given[0][..., 0].numel()

    with register_module_forward_pre_hook(watch):
        model(batch)
    return rows


def _fitting(model: nn.Module, rows: Mapping[str, int]) -> set[str]:
    """Names of the layers to quantise; PatchslimError when there are none."""
    layers = [(name, layer) for name, layer in model.named_modules() if rows.get(name, 0) >= FEWEST_ROWS]
    own = {key.rpartition(".")[0] for key in own_keys(model)}  # layers of the steps: they choose patches
    classifying = {part for classifier in classifiers_of(model) for part in classifier.modules()}
    found = {name for name, layer in layers if _fits(layer) and name not in own and layer not in classifying}
    if not found:
        raise PatchslimError(
            f"No linear layer of this model can be quantised: they need widths that are multiples of {MULTIPLE} "
            f"and at least {FEWEST_ROWS} tokens in a batch."
        )
    return found


def _fits(layer: Any) -> bool:
    return type(layer) is nn.Linear and layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0


def _config(way: str) -> Any:
    """torchao's settings; the compiler's are left alone, so that plain and quantised models are compiled alike."""
    torchao, name = _torchao(), "Int8DynamicActivationInt8" if way == "int8" else "Float8DynamicActivationFloat8"
    return getattr(torchao, f"{name}WeightConfig")(granularity=torchao.PerRow(), set_inductor_config=False)


def _torchao() -> Any:
    with quiet():
        return need("torchao.quantization", extra="quant", what="Quantisation in PyTorch")
