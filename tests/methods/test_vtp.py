"""VTP: a narrow network is the gated one with closed gates, and gates close where nothing is lost."""

import copy

import pytest
import torch
from timm.layers import SwiGLU
from torch import nn

import patchslim as ps
from patchslim.errors import BudgetError
from patchslim.hosts import open_host
from patchslim.methods import VTP
from patchslim.methods.vtp import LINEAR, Cut, Gated, learn_gates, vtp_macs, widths
from patchslim.search import Target
from small import make_host, make_images
from tasks import budget, made, says, task_of


def gates_of(model: nn.Module, seed: int = 0) -> list[list[torch.Tensor]]:
    generator, widths = torch.Generator().manual_seed(seed), (24, 24, 24, 48)
    return [[torch.rand(width, generator=generator) for width in widths] for _ in open_host(model).blocks]


def gated(model: nn.Module, gates: list[list[torch.Tensor]]) -> nn.Module:
    """The host behind gates, full width."""
    model = copy.deepcopy(model)
    for block, own in zip(open_host(model).blocks, gates, strict=True):
        for name, gate in zip(LINEAR, own, strict=True):
            layer = Gated(block.get_submodule(name))
            layer.gate.data = gate
            block.set_submodule(name, layer)
    return model


def test_removing_is_closing(kind: str) -> None:
    model = make_host(kind)
    gates = gates_of(model)
    cut = Cut(gates)
    kept = cut.kept(100)
    closed = [
        [gate * torch.zeros_like(gate).index_fill(0, features, 1.0) for gate, features in zip(*pair, strict=True)]
        for pair in zip(gates, kept, strict=True)
    ]
    narrow = VTP().narrowed(task_of(model), gates, kept).model
    assert narrow is not None
    torch.testing.assert_close(
        says(narrow, make_images()), says(gated(model, closed), make_images()), atol=1e-5, rtol=1e-4
    )


def test_the_smallest_go_first_and_every_layer_keeps_one() -> None:
    gates = gates_of(make_host())
    cut = Cut(gates)
    total = sum(len(gate) for own in gates for gate in own)
    assert sum(sum(own) for own in widths(cut.kept(0))) == total
    assert sum(sum(own) for own in widths(cut.kept(30))) == total - 30
    gone = torch.cat(
        [
            gate[[i for i in range(len(gate)) if i not in features.tolist()]]
            for pair in zip(gates, cut.kept(30), strict=True)
            for gate, features in zip(*pair, strict=True)
        ]
    )
    stay = torch.cat(
        [gate[features] for pair in zip(gates, cut.kept(30), strict=True) for gate, features in zip(*pair, strict=True)]
    )
    assert float(gone.max()) < float(stay.min())
    assert widths(cut.kept(len(cut.thresholds))) == [[1, 1, 1, 1]] * 4


def test_full_width_is_the_host() -> None:
    model = make_host()
    gates = [[torch.ones_like(gate) for gate in own] for own in gates_of(model)]
    found = VTP().narrowed(task_of(model), gates, Cut(gates).kept(0))
    assert found.model is not None
    torch.testing.assert_close(says(found.model, make_images()), says(model, make_images()))
    assert found.macs == ps.count_macs(model) == vtp_macs(ps.inspect(model), [[24, 24, 24, 48]] * 4)


def test_gates_of_what_nobody_reads_close_first() -> None:
    model = make_host()
    idle = torch.arange(0, 48, 2)
    with torch.no_grad():
        for block in open_host(model).blocks:
            block.get_parameter("mlp.fc2.weight")[:, idle] = 0.0
    for own in learn_gates(task_of(model, make_images(32)), 6):
        gate = own[3].abs()
        read = torch.ones(48, dtype=torch.bool).index_fill(0, idle, False)
        assert float(gate[~read].max()) < float(gate[read].mean())


def test_it_asks_for_plain_layers() -> None:
    with pytest.raises(BudgetError, match=r"linear layers attn\.qkv, .*, and VisionTransformer has others\.$"):
        made(VTP(), task_of(make_host(mlp_layer=SwiGLU)))
    with pytest.raises(BudgetError, match=r"VTP prunes a plain two-layer MLP, and VisionTransformer has another\.$"):
        made(VTP(), task_of(make_host(scale_mlp_norm=True)))


def test_one_training_serves_every_ratio() -> None:
    task, vtp = task_of(make_host()), VTP(epochs=2)
    macs = {}
    for ratio in (0.5, 0.8):
        found, model = made(vtp, task.at(Target(macs=ratio)))
        macs[ratio] = ps.count_macs(model)
        assert found.detail == made(vtp, task_of(make_host(), ratio=ratio))[0].detail
    assert macs[0.5] <= budget(task, 0.5) < macs[0.8] <= budget(task, 0.8)
