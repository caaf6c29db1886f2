"""Pruning masks and quantised layers, as torch and torchao put them into a model, act in slim models."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torchao.quantization import Int8WeightOnlyConfig, quantize_

import patchslim as ps
from small import make_images, plan_for, relative
from together.alike import LIBRARIES, answered, check_alike, host_of, slimmed, step

WAYS = ("drop", "merge", "predict merging")


def pruned(model: nn.Module) -> nn.Module:
    """A copy in which half of the weights of every layer are masked; those that steps own are left alone."""
    own = copy.deepcopy(model)
    for name, module in list(own.named_modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)) and ".step." not in name:
            prune.l1_unstructured(module, "weight", amount=0.5)
    return own


def normed(model: nn.Module) -> nn.Module:
    """A copy whose layers keep length and direction of their weights apart, and twice the length."""
    own = copy.deepcopy(model)
    for name, module in list(own.named_modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)) and ".step." not in name:
            changed: Any = parametrizations.weight_norm(module)
            with torch.no_grad():
                changed.parametrizations.weight.original0.mul_(2)
    return own


def dynamic(model: nn.Module) -> nn.Module:
    """torch's own: INT8 weights, activations quantised as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have torchao used
        own: nn.Module = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    return own


def weight_only(model: nn.Module) -> nn.Module:
    """torchao's INT8 weights."""
    own = copy.deepcopy(model)
    quantize_(own, Int8WeightOnlyConfig())
    return own


@pytest.mark.parametrize("change", [pruned, normed])
@pytest.mark.parametrize("library", LIBRARIES)
def test_changed_weights_are_used_and_learn(library: str, change: Callable[[nn.Module], nn.Module]) -> None:
    host = host_of(library)
    other = change(host)
    assert relative(answered(other), answered(host)) > 1e-2
    check_alike(change(slimmed(host)), other)
    for way in WAYS:
        slim = slimmed(host, way)
        own = change(slim)
        answer, gradients = step(own)
        assert relative(answer, answered(slim)) > 1e-2
        learning = {name for name, parameter in own.named_parameters() if parameter.requires_grad}
        assert {name for name in learning if "qkv" in name or "q_proj" in name} <= gradients.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_pruned_host_is_slimmed_as_it_is(library: str) -> None:
    host = pruned(host_of(library))
    check_alike(slimmed(host), host)
    plan, weights = plan_for(host, "drop")
    assert relative(answered(ps.apply(host, plan, weights)), ps.masked_logits(host, plan, make_images())) <= 1e-5


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_quantised_host_is_slimmed_or_refused(library: str) -> None:
    host = host_of(library)
    quantised = weight_only(host)
    assert relative(answered(slimmed(quantised)), answered(quantised)) <= 1e-5
    with pytest.raises(ps.UnsupportedModel, match=r"quantized\.dynamic\..*Linear in .* slim the model first"):
        slimmed(dynamic(host))


@pytest.mark.parametrize("change", [dynamic, weight_only])
@pytest.mark.parametrize("library", LIBRARIES)
def test_quantised_layers_are_called(library: str, change: Callable[[nn.Module], nn.Module]) -> None:
    host = host_of(library)
    wanted = answered(change(host))
    assert 1e-4 < relative(wanted, answered(host)) < 0.1
    assert relative(answered(change(slimmed(host))), wanted) <= 1e-2
    for way in WAYS:
        slim = slimmed(host, way)
        assert 1e-5 < relative(answered(change(slim)), answered(slim)) < 0.2, way
