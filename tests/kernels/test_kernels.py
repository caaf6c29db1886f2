"""All kernels together: in a model, under a compiler, and compiled for GPUs that need not be here."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from hf_small import make_hf
from kernel_inputs import DEVICE, drawn, kernels_run, keys_of
from patchslim.errors import PatchslimWarning
from patchslim.hosts import open_host
from patchslim.kernels import attention, available, match_kernels, mlp
from patchslim.kernels import merge as averaging
from patchslim.kernels.attention import plain, sized
from patchslim.kernels.match import chosen
from patchslim.kernels.merge import merge

pytest.importorskip("triton")
from triton.runtime.jit import KernelInterface


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that compete with a library's run as if a CUDA graph were recorded."""
    for room in (attention, mlp):
        monkeypatch.setattr(room, "worth_launching", lambda kernel: True)


class Merging(nn.Module):
    """A host's blocks, in each of which a third of the patches merges."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.host = model, open_host(model)
        self.features = nn.ModuleList(nn.Linear(self.host.info.width, 6) for _ in self.host.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, classes)."""
        host, math, prefix = self.host, self.host.math, self.host.info.prefix_tokens
        x, size, log_size = host.embed(images), None, None
        for block, features in zip(host.blocks, self.features, strict=True):
            incoming, n = math.read(block, x), (x.shape[1] - prefix) * 2 // 3
            found, weight = chosen(features(x)[:, prefix:], None if size is None else size[:, prefix:], n)
            merged = merge(x, size, found, prefix, weight, math.first_norm(block))
            mix = plain if size is None else sized(size, log_size)
            x, size, log_size = (
                math.compute(block, merged.x, incoming, mix, merged.normed),
                merged.size,
                merged.log_size,
            )
        return host.logits(x)


def timm_model() -> nn.Module:
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, embed_dim=48, num_heads=3)
    return model.eval()


@pytest.mark.parametrize("make", [timm_model, partial(make_hf, "ViTForImageClassification")])
def test_a_model_says_the_same_with_them(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    merging = Merging(make()).to(DEVICE)
    info = merging.host.info
    images = drawn(1)(3, info.channels, *info.image_size)
    with torch.no_grad():
        with kernels_run(False):
            wanted = merging(images)
        with kernels_run() as asked:
            torch.testing.assert_close(merging(images), wanted, rtol=1e-4, atol=1e-4)
    assert asked


def test_a_compiler_takes_them_as_they_are() -> None:
    torch.manual_seed(0)
    merging = Merging(timm_model()).to(DEVICE)
    images, graphs = drawn(1)(2, 3, 64, 64), list[Any]()

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    with torch.no_grad(), kernels_run():
        wanted = merging(images)
        found = torch.compile(merging, backend=keep, fullgraph=True)(images)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    called = {str(node.target).split(".")[1] for node in graphs[0].graph.nodes if "patchslim." in str(node.target)}
    assert called == {"choose", "merge_rows", "attend"}


@pytest.mark.usefixtures("launching")
def test_a_compiler_can_rely_on_their_shapes() -> None:
    normal = drawn(0)
    k, q, size = keys_of(normal, 2, 3, 9, 8), normal(2, 3, 4, 8), normal(2, 9).abs() + 1
    rows, z = attention.size_rows(size, k), normal(2, 8, 4)
    root, weight = match_kernels.choose(z, None, 6, False)
    for name, args in (
        ("size_rows", (size, k)),
        ("attend", (q, k, k, rows, 0.4)),
        ("attend", (q, k, k, None, 0.4)),
        ("class_rows", (q[:, :, :1], k, size, 0.4)),
        ("linear_gelu", (q.half(), normal(16, 8).half(), normal(16).half())),
        ("choose", (z, None, 6, False)),
        ("choose", (z, size[:, 1:], 6, True)),
        ("merge_rows", (normal(2, 9, 20), size, weight, root, 6, None, None, 0.0)),
        ("merge_rows", (normal(2, 9, 20), size, weight, root, 6, normal(20), normal(20), 1e-5)),
    ):
        operator = getattr(torch.ops.patchslim, name).default
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))


def test_they_compile_for_gpus_that_need_not_be_here() -> None:
    """What the interpreter lets pass a compiler may refuse."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parent / "compile_kernels.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    assert compiled == set.union(*map(launched, (attention, match_kernels, averaging, mlp)))


def launched(room: ModuleType) -> set[str]:
    """Kernels that a module launches: those called with a grid."""
    return set(re.findall(r"(\w+)\[", inspect.getsource(room))) & {
        name for name, value in vars(room).items() if isinstance(value, KernelInterface)
    }


def test_a_gpu_without_kernels_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for has, why in ((True, "need a GPU of compute capability 8.0"), (False, "need Triton, which is not installed")):
        available._looked_up.cache_clear()
        monkeypatch.setattr(available, "TRITON", has)
        with pytest.warns(PatchslimWarning, match=f"kernels {why}, so an old one runs") as told:
            assert [available.generation(gpu) < available.OLDEST for _ in range(2)] == [True, True]
        assert len(told) == 1
    available._looked_up.cache_clear()
    monkeypatch.setattr(available, "TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert available.generation(gpu) == 9
    available._looked_up.cache_clear()
