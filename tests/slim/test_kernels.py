"""The kernels against the plain tensor operations that say what they compute; interpreted where there is no GPU."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from timm.layers import Mlp, SwiGLU
from torch import Tensor, nn

import patchslim as ps
from hf_small import make_hf
from patchslim.hosts import answer_of, attention, fast, timm_block
from patchslim.hosts.attention import plain, sized
from patchslim.slim.merge import FLOOR, LEARNT_FLOOR, join_first, match, match_lighter, merge, unit_keys
from patchslim.slim.tokens import Tokens
from small import per_image_plan

pytest.importorskip("triton")
from triton.runtime.jit import KernelInterface

from patchslim.hosts import kernels as attention_kernels
from patchslim.hosts import mlp_kernel
from patchslim.slim import merge_kernels, pair_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOMS = ("patchslim.hosts.attention", "patchslim.hosts.timm_block", "patchslim.hosts.hf_block", "patchslim.slim.merge")

KERNELS = {"kernels": attention_kernels, "merge_kernels": merge_kernels, "pair_kernels": pair_kernels}

SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(3, 9), st.sampled_from([4, 12]))


def drawn(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def keys_of(normal: Callable[..., Tensor], batch: int, heads: int, n_in: int, width: int) -> Tensor:
    """As a block gives them: every second part of one product, (B, H, n_in, d_h)."""
    return normal(batch, n_in, 2, heads, width)[:, :, 0].transpose(1, 2)


@given(SHAPES, st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_attention_with_sizes(shape: Any, n: int, alike: bool, seed: int) -> None:
    batch, heads, n_in, width = shape
    normal = drawn(seed)
    k, v, q = keys_of(normal, *shape), keys_of(normal, *shape), normal(batch, heads, min(n, n_in), width)
    size = normal(1 if alike else batch, n_in).abs() + 1
    found = attention_kernels.attend(q, k, v, size, 0.4)
    wanted = sized(size)(q, k, v, scale=0.4, dropout=0.0, fused=False)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.transpose(1, 2).is_contiguous()  # what the projection reads without a copy
    wanted = plain(q, k, v, scale=0.4, dropout=0.0, fused=False)
    for launches in (True, False):
        with patch.object(attention_kernels, "worth_launching", lambda kernel, answer=launches: answer):
            once = attention_kernels.attend(q, k, v, None, 0.4)
        torch.testing.assert_close(once, wanted, rtol=1e-5, atol=1e-5)
        assert once.transpose(1, 2).is_contiguous()


@given(SHAPES, st.booleans(), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_the_class_tokens_attention(shape: Any, alike: bool, seed: int) -> None:
    batch, heads, n_in, width = shape
    normal = drawn(seed)
    k, q = keys_of(normal, *shape), normal(batch, heads, 1, width)
    size = normal(1 if alike else batch, n_in).abs() + 1
    found = attention_kernels.class_rows(q, k, size, 0.4).mean(dim=1)
    wanted = (0.4 * q @ k.transpose(2, 3) + size.log()[:, None, None]).softmax(dim=-1).mean(dim=1)[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@given(SHAPES, st.integers(0, 2), st.floats(0, 1), st.booleans(), st.booleans(), st.integers(0, 99))
@example((2, 2, 75, 4), 1, 0.8, True, True, 0)  # more pairs than one program looks after
@example((2, 2, 75, 4), 1, 0.8, False, False, 0)
@example((1, 1, 70, 4), 1, 0.5, False, True, 1)
@settings(max_examples=8, deadline=None)
def test_pairs_and_merges(shape: Any, prefix: int, share: float, weighed: bool, keys: bool, seed: int) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    k, x = keys_of(normal, batch, heads, prefix + t, width), normal(batch, prefix + t, 20)
    size = normal(batch, prefix + t).abs() + 1
    n = t - round(share * (t - t // 2))  # as many as there are pairs may go
    importance = normal(batch, t).abs() if weighed else None
    if keys:
        weight = normal(batch, t).exp() if weighed else torch.ones(batch, t, device=DEVICE)
        found = match(unit_keys(k, prefix), n, weight if weighed else None)
        place = pair_kernels.pair(k[:, :, prefix:], weight, n)
    else:
        z = normal(batch, t, 6)
        found = match_lighter(z[..., :-1], n, z[..., -1].exp())
        place = pair_kernels.pair_lighter(z, n)
    rows = torch.arange(batch, device=DEVICE)[:, None]
    assert (place[rows, found.keep] == torch.arange(n, device=DEVICE)).all()
    assert (place[rows, found.gone] == found.into).all()
    wanted = merge(Tokens(x, size), found, prefix, importance)
    tokens, grown = merge_kernels.merge_rows(x, size, size[:, prefix:] if importance is None else importance, place, n)
    torch.testing.assert_close(tokens, wanted.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grown, wanted.size, rtol=1e-6, atol=1e-6)
    _check_norm(x, size, size[:, prefix:] if importance is None else importance, place, n, wanted)
    goes = place[:, :, None] == torch.arange(n, device=DEVICE)
    alone, own = goes.sum(dim=1) == 1, goes.int().argmax(dim=1)  # places that one patch goes to, and which
    assert torch.equal(tokens[:, prefix:][alone], x[rows, prefix + own][alone])


def _check_norm(x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int, wanted: Tokens) -> None:
    """Merging with a LayerNorm at its end."""
    gain, bias = drawn(1)(20), drawn(2)(20)
    tokens, grown, normed = merge_kernels.merge_normed(x, size, weight, place, n, gain, bias, 1e-5)
    torch.testing.assert_close(tokens, wanted.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grown, wanted.size, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normed, F.layer_norm(tokens, (20,), gain, bias, 1e-5), rtol=1e-5, atol=1e-5)


@given(SHAPES, st.integers(1, 2), st.floats(0, 1), st.booleans(), st.booleans(), st.integers(0, 99))
@example((2, 2, 75, 4), 1, 0.8, False, True, 0)  # several tiles and programs
@example((2, 2, 75, 4), 1, 0.8, False, False, 0)
@example((1, 2, 196, 4), 1, 0.5, True, False, 2)
@settings(max_examples=8, deadline=None)
def test_pairs_by_the_class_tokens_attention(
    shape: Any, prefix: int, share: float, alike: bool, keys: bool, seed: int
) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    k, q = keys_of(normal, batch, heads, prefix + t, width), normal(batch, heads, 1, width)
    size = normal(1 if alike else batch, prefix + t).abs() + 1
    n = t - round(share * (t - t // 2))
    rows = (0.4 * q @ k.transpose(2, 3) + size.log()[:, None, None]).softmax(dim=-1).mean(dim=1)[:, 0]
    importance = rows[:, prefix:] * t
    if keys:
        wanted = match(unit_keys(k, prefix), n, importance + FLOOR)
        place, found = pair_kernels.pair_by_class(q, k, size, 0.4, prefix, n, FLOOR)
    else:
        z = normal(batch, t, 6)
        wanted = match_lighter(z[..., :-1], n, z[..., -1].exp() * (importance + LEARNT_FLOOR) ** 2)
        place, found = pair_kernels.pair_lighter_by_class(q, k, z, size, 0.4, n, LEARNT_FLOOR)
    torch.testing.assert_close(found, importance, rtol=1e-5, atol=1e-6)
    each = torch.arange(batch, device=DEVICE)[:, None]
    assert (place[each, wanted.keep] == torch.arange(n, device=DEVICE)).all()
    assert (place[each, wanted.gone] == wanted.into).all()


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that compete with a library's run as if a CUDA graph were recorded."""
    for room in (attention_kernels, mlp_kernel):
        monkeypatch.setattr(room, "worth_launching", lambda kernel: True)


@pytest.mark.usefixtures("launching")
@pytest.mark.parametrize(("rows", "deep", "wide"), [(3, 24, 40), (130, 96, 200), (70, 64, 64)])
def test_a_linear_layer_and_gelu(rows: int, deep: int, wide: int) -> None:
    normal = drawn(rows)
    made = 2 * normal(2, rows, deep), 3 * normal(wide, deep) / deep**0.5, normal(wide)
    x, weight, bias = (own.half() for own in made)
    found = mlp_kernel.linear_gelu(x, weight, bias)
    wanted = F.gelu(F.linear(x.double(), weight.double(), bias.double()))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-6)  # half precision has 11 bits


@pytest.mark.usefixtures("launching")
def test_an_mlp_with_that_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mlp, tokens = Mlp(32, 64).to(DEVICE), 2 * drawn(1)(3, 5, 32)
    wanted = mlp.double()(tokens.double())
    monkeypatch.setattr(timm_block, "gelu_kernel_for", lambda y, weight: True)
    monkeypatch.setattr(timm_block, "mlp_kernel", mlp_kernel, raising=False)
    with torch.no_grad():
        torch.testing.assert_close(timm_block.fed(mlp.half(), tokens.half()).double(), wanted, rtol=0, atol=2e-3)


OTHERS = {
    "tanh": Mlp(8, 16, act_layer=partial(nn.GELU, approximate="tanh")),
    "relu": Mlp(8, 16, act_layer=nn.ReLU),
    "no bias": Mlp(8, 16, bias=False),
    "norm": Mlp(8, 16, norm_layer=nn.LayerNorm),
    "dropout": Mlp(8, 16, drop=0.1).train(),
    "gated": SwiGLU(8, 16),
    "other": nn.Sequential(),
}


@pytest.mark.parametrize("mlp", OTHERS.values(), ids=OTHERS)
def test_only_plain_mlps_have_it(mlp: nn.Module) -> None:
    assert not timm_block.plain_mlp(mlp)
    assert timm_block.plain_mlp(Mlp(8, 16, drop=0.1).eval())


@pytest.mark.usefixtures("launching")
def test_attention_of_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = drawn(0)
    q, k, v = normal(1, 2, 5, 8), keys_of(normal, 1, 2, 9, 8), keys_of(normal, 1, 2, 9, 8)
    wanted = plain(q, k, v, scale=0.4, dropout=0.0, fused=True)
    monkeypatch.setattr(attention, "small_kernel_for", lambda k: True)
    monkeypatch.setattr(attention, "kernels", attention_kernels, raising=False)
    found = plain(q, k, v, scale=0.4, dropout=0.0, fused=True)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_compiler_can_rely_on_their_shapes() -> None:
    normal = drawn(0)
    k, q, size = keys_of(normal, 2, 3, 9, 8), normal(2, 3, 4, 8), normal(2, 9).abs() + 1
    place = pair_kernels.pair(k[:, :, 1:], normal(2, 8), 6)
    for name, args in (
        ("attend", (q, k, k, size, 0.4)),
        ("class_rows", (q[:, :, :1], k, size, 0.4)),
        ("pair", (k[:, :, 1:], normal(2, 8), 6)),
        ("pair_by_class", (q[:, :, :1], k, size, 0.4, 1, 6, 0.3)),
        ("pair_lighter", (normal(2, 8, 4), 6)),
        ("pair_lighter_by_class", (q[:, :, :1], k, normal(2, 8, 4), size, 0.4, 6, 0.3)),
        ("merge_rows", (normal(2, 9, 20), size, size[:, 1:], place, 6)),
        ("merge_normed", (normal(2, 9, 20), size, size[:, 1:], place, 6, normal(20), normal(20), 1e-5)),
    ):
        torch.library.opcheck(
            getattr(torch.ops.patchslim, name).default, args, test_utils=("test_schema", "test_faketensor")
        )


def timm_model() -> nn.Module:
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, embed_dim=48, num_heads=3)
    return model.eval()


@pytest.mark.parametrize("channels", [None, 5])
@pytest.mark.parametrize("removed", ["merge", "drop"])
@pytest.mark.parametrize("make", [timm_model, partial(make_hf, "ViTForImageClassification")])
def test_a_model_says_the_same_with_them(
    make: Callable[[], nn.Module], removed: str, channels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = make().to(DEVICE)
    info = ps.inspect(model)
    counts = [info.patches * 3 // 4, info.patches // 2, *[info.patches // 2] * (info.depth - 3), 0]
    slim = ps.apply(model, *per_image_plan(model, "matched", removed, counts, channels=channels))
    images, calls = drawn(1)(3, info.channels, *info.image_size), list[bool]()

    def note(k: Tensor) -> bool:
        calls.append(True)
        return True

    with torch.no_grad():
        for room in map(import_module, ROOMS):
            monkeypatch.setattr(room, "kernels_for", lambda k: False)
        wanted = answer_of(slim(images))
        for room in map(import_module, ROOMS):
            monkeypatch.setattr(room, "kernels_for", note)
            for name, own in KERNELS.items():
                monkeypatch.setattr(room, name, own, raising=False)
        torch.testing.assert_close(answer_of(slim(images)), wanted, rtol=1e-4, atol=1e-4)
    assert calls


@given(SHAPES, st.integers(0, 2), st.floats(0, 1), st.booleans(), st.integers(0, 99))
@example((2, 2, 75, 4), 1, 0.9, True, 0)  # many join one
@settings(max_examples=8, deadline=None)
def test_patches_after_the_first_join_these(shape: Any, prefix: int, share: float, weighed: bool, seed: int) -> None:
    batch, heads, t, width = shape
    normal = drawn(seed)
    k, x = keys_of(normal, batch, heads, prefix + t, width), normal(batch, prefix + t, 20)
    tokens = Tokens(x, normal(batch, prefix + t).abs() + 1)
    n, importance = t - max(1, round(share * (t - 1))), normal(batch, t).abs() if weighed else None
    room = import_module("patchslim.slim.merge")
    with torch.no_grad(), patch.object(room, "merge_kernels", merge_kernels, create=True):
        with patch.object(room, "kernels_for", lambda k: False):
            wanted = join_first(tokens, k, n, prefix, importance)
        with patch.object(room, "kernels_for", lambda k: True):
            found = join_first(tokens, k, n, prefix, importance)
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.size, wanted.size, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("launching")
def test_a_compiler_can_rely_on_the_shapes_of_those_that_compete() -> None:
    normal = drawn(0)
    k, q = keys_of(normal, 2, 3, 9, 8), normal(2, 3, 4, 8)
    for name, args in (
        ("attend", (q, k, k, None, 0.4)),
        ("linear_gelu", (q.half(), normal(16, 8).half(), normal(16).half())),
    ):
        torch.library.opcheck(
            getattr(torch.ops.patchslim, name).default, args, test_utils=("test_schema", "test_faketensor")
        )


def test_a_kernel_that_competes_is_launched_once_and_then_in_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = False
    monkeypatch.setattr(fast, "KERNELS", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    monkeypatch.setattr(fast, "_launched", set())
    assert [fast.worth_launching("a") for _ in range(3)] == [True, False, False]
    recording = True
    assert [fast.worth_launching("a") for _ in range(2)] == [True, True]
    assert not fast.worth_launching("b")  # it can't be compiled now


@pytest.mark.parametrize(("channels", "pairs"), [(None, "pair_by_class"), (5, "pair_lighter_by_class")])
def test_a_compiler_takes_them_as_they_are(channels: int | None, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = timm_model().to(DEVICE)
    info = ps.inspect(model)
    slim = ps.apply(model, *per_image_plan(model, "matched", "merge", [12, 8, 0], channels=channels))
    images = drawn(1)(2, info.channels, *info.image_size)
    with torch.no_grad():
        wanted = slim(images)
        for room in map(import_module, ROOMS):
            monkeypatch.setattr(room, "kernels_for", lambda k: True)
            for name, own in KERNELS.items():
                monkeypatch.setattr(room, name, own, raising=False)
        graphs: list[Any] = []

        def keep(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph

        found = torch.compile(slim, backend=keep, fullgraph=True)(images)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    called = {str(node.target) for node in graphs[0].graph.nodes if "patchslim" in str(node.target)}
    assert {f"patchslim.{pairs}", "patchslim.merge_normed", "patchslim.attend"} <= {
        name.removesuffix(".default") for name in called
    }


def test_training_and_the_cpu_do_without() -> None:
    assert not fast.kernels_for(torch.zeros(1, 1, 4, 4))
    if DEVICE == "cuda":
        assert fast.kernels_for(torch.zeros(1, 1, 4, 4, device="cuda")) is not torch.is_grad_enabled()


def test_they_compile_for_gpus_that_need_not_be_here() -> None:
    """What the interpreter lets pass a compiler may refuse."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parent.parent / "kernel_compiler.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    rooms = (attention_kernels, merge_kernels, mlp_kernel, pair_kernels)
    assert compiled == set.union(*map(launched, rooms))


def launched(room: ModuleType) -> set[str]:
    """Kernels that a module launches: those called with a grid."""
    return set(re.findall(r"(\w+)\[", inspect.getsource(room))) & {
        name for name, value in vars(room).items() if isinstance(value, KernelInterface)
    }
