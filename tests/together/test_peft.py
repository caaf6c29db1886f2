"""LoRA of peft on slim models: adapters of the attention and of the patch embedding act, and learn."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn

import patchslim as ps
from small import relative
from together.alike import answered, check_alike, host_of, slimmed, step

TARGETS = [
    ("timm", ["qkv"]),
    ("timm", ["qkv", "proj", "mlp.fc1"]),  # `proj` is the patch embedding's convolution too
    ("transformers", ["q_proj", "v_proj"]),
    ("transformers", ["o_proj", "projection", "mlp.fc2"]),
]


def adapted(model: nn.Module, targets: list[str]) -> Any:
    """A copy with adapters that do something from the start."""
    torch.manual_seed(1)
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(copy.deepcopy(model), settings)


@pytest.mark.parametrize(("library", "targets"), TARGETS)
def test_with_everything_kept_adapters_do_what_they_do_on_the_host(library: str, targets: list[str]) -> None:
    host = host_of(library)
    check_alike(adapted(slimmed(host), targets), adapted(host, targets))


@pytest.mark.parametrize("way", ["drop", "merge", "predict merging"])
@pytest.mark.parametrize(("library", "targets"), TARGETS)
def test_adapters_of_a_slim_model_act_and_learn(library: str, targets: list[str], way: str, tmp_path: Path) -> None:
    slim = slimmed(host_of(library), way)
    own = adapted(slim, targets)
    answer, gradients = step(own)
    assert relative(answer, answered(slim)) > 1e-3
    assert gradients.keys() == {name for name, _ in own.named_parameters() if "lora_" in name}
    assert all(float(gradient.norm()) > 0 for gradient in gradients.values())
    torch.optim.SGD([*own.parameters()], 0.1).step()
    learnt = answered(own)
    assert relative(learnt, answer) > 1e-4
    merged = own.merge_and_unload()
    assert relative(answered(merged), learnt) <= 1e-4
    ps.save(merged, tmp_path / "run")
    assert relative(answered(ps.load(tmp_path / "run")), learnt) <= 1e-4
