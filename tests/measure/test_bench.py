"""The benchmark on a clock that the models themselves move, so that every number is known beforehand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.errors import PatchslimError
from patchslim.hosts import open_host, open_slim
from patchslim.measure import BenchConfig, bench
from patchslim.measure.bench import by_dtype
from patchslim.timing.modes import MODES
from small import make_host, make_images, plan_for, slim_of

SECONDS = {"slim": 1.0, "baseline": 3.0, "baseline_same_embedding": 2.5}


class Clock:
    """Stands still until a model runs; then it goes on by what that model is said to take."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, list[str]()

    def __call__(self) -> float:
        return self.now

    def pass_by(self, name: str, seconds: float) -> None:
        """A model has run."""
        self.order.append(name)
        self.now += seconds


def name_of(model: nn.Module) -> str:
    """Which of the three it is."""
    if hasattr(model, "plan"):
        return "slim"
    return "baseline_same_embedding" if is_fast(model) else "baseline"


def is_fast(model: nn.Module) -> bool:
    """Whether the host has the slim model's patch embedding."""
    return type(model.patch_embed).__name__ == "MatmulPatchEmbed"


@pytest.fixture
def timed() -> tuple[nn.Module, Any, Clock]:
    """A host, its slim model and the clock that both move."""
    host, slim = slim_of()
    clock = Clock()

    def tick(model: nn.Module, *_: Any) -> None:
        name = name_of(model)
        clock.pass_by(name, SECONDS[name])

    for model in (host, slim):
        model.register_forward_hook(tick)  # deep copies keep hooks
    return host, slim, clock


def test_numbers_are_consistent(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed
    found = bench(slim, host, BenchConfig(batch_sizes=[4, 2], dtypes=["float32", "bfloat16"]), clock=clock)
    assert [(row["dtype"], row["batch_size"]) for row in found["rows"]] == [
        ("float32", 4),
        ("float32", 2),
        ("bfloat16", 4),
        ("bfloat16", 2),
    ]
    ideal = ps.count_macs(host) / ps.count_macs(slim)
    for row in found["rows"]:
        assert row["speedup"] == pytest.approx(3.0)
        assert row["speedup_same_embedding"] == pytest.approx(2.5)
        assert row["throughput"] == pytest.approx(row["batch_size"])
        assert row["baseline_throughput"] == pytest.approx(row["batch_size"] / 3)
        assert row["baseline_same_embedding_throughput"] == pytest.approx(row["batch_size"] / 2.5)
        assert row["ideal_speedup"] == pytest.approx(ideal)
        assert row["share_of_ideal"] == pytest.approx(3.0 / ideal)
        assert row["share_of_ideal_same_embedding"] == pytest.approx(2.5 / ideal)
        assert row["baseline_seconds_per_batch"] == pytest.approx([3.0, 3.0, 3.0])
        assert row["peak_memory"] is None
        assert row["reduced_batch"] is None
        assert row["mode"] == row["baseline_mode"] == "eager"
        assert row["models"].keys() == SECONDS.keys()
    top = found["rows"][0]
    assert all(found[name] == top[name] for name in ("throughput", "baseline_throughput", "speedup", "ideal_speedup"))


def test_models_are_timed_in_turns(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed
    bench(slim, host, BenchConfig(batch_sizes=[2], seconds=30.0), clock=clock)
    rounds = 30 // 3  # by the slowest
    assert clock.order[-3 * rounds :] == list(SECONDS) * rounds


def test_the_models_stay_as_they_were(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed
    host.train()
    bench(slim, host, BenchConfig(batch_sizes=[2], dtypes=["bfloat16"], profile=True), clock=clock)
    assert host.training
    assert {weight.dtype for model in (host, slim) for weight in model.parameters()} == {torch.float32}
    assert not is_fast(host)
    blocks = [*open_host(host).blocks, *open_slim(slim).blocks]
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in blocks)


def test_autocast_leaves_the_weights(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed
    seen = set[tuple[torch.dtype, torch.dtype]]()
    host.register_forward_hook(lambda model, given, logits: seen.add((given[0].dtype, logits.dtype)))
    bench(slim, host, BenchConfig(batch_sizes=[2], dtypes=["bfloat16"], autocast=True), clock=clock)
    assert seen == {(torch.float32, torch.bfloat16)}


def test_out_of_memory_halves_the_batch(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed
    tried = list[int]()

    def full(model: nn.Module, given: tuple[torch.Tensor]) -> None:
        tried.append(len(given[0]))
        if len(given[0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    host.register_forward_pre_hook(full)
    found = bench(slim, host, BenchConfig(batch_sizes=[23, 4]), clock=clock)
    assert list(dict.fromkeys(tried)) == [23, 11, 5, 4]
    first, second = found["rows"]
    assert (first["asked_batch_size"], first["reduced_batch"], first["batch_size"]) == (23, 5, 5)
    assert (second["asked_batch_size"], second["reduced_batch"], second["batch_size"]) == (4, None, 4)
    assert first["throughput"] == pytest.approx(5.0)


def test_a_batch_of_one_that_does_not_fit_is_told(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed

    def full(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    slim.register_forward_pre_hook(full)
    with pytest.raises(PatchslimError, match="Even a batch of one image"):
        bench(slim, host, BenchConfig(batch_sizes=[8]), clock=clock)


def fake_compile(cost: Callable[[nn.Module], float], clock: Clock, broken: str = "") -> Any:
    """Stands for torch.compile: a model that takes another time, or a failure."""

    def compile_(model: nn.Module, **_: Any) -> Any:
        if name_of(model) == broken:
            raise ValueError("no compiler here.\nand more lines")

        def run(images: torch.Tensor) -> Any:
            now = clock.now
            logits = model(images)
            clock.now = now + cost(model)
            return logits

        return run

    return compile_


def test_each_model_counts_by_its_best_mode(
    timed: tuple[nn.Module, Any, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, slim, clock = timed
    cost = {"slim": 0.5, "baseline": 4.0, "baseline_same_embedding": 2.0}
    monkeypatch.setattr(torch, "compile", fake_compile(lambda model: cost[name_of(model)], clock))
    row = bench(slim, host, BenchConfig(batch_sizes=[2], modes=["eager", "compiled"]), clock=clock)["rows"][0]
    assert (row["mode"], row["baseline_mode"], row["baseline_same_embedding_mode"]) == ("compiled", "eager", "compiled")
    assert row["speedup"] == pytest.approx(3.0 / 0.5)
    assert row["speedup_same_embedding"] == pytest.approx(2.0 / 0.5)
    every = {mode: way["seconds_per_batch"][1] for mode, way in row["models"]["baseline"]["modes"].items()}
    assert every == pytest.approx({"eager": 3.0, "compiled": 4.0})


@pytest.mark.parametrize("asked", [["eager", "compiled"], ["compiled"]])
def test_a_model_that_cant_be_compiled_is_timed_without(
    asked: list[str], timed: tuple[nn.Module, Any, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, slim, clock = timed
    monkeypatch.setattr(torch, "compile", fake_compile(lambda model: 0.5, clock, broken="slim"))
    row = bench(slim, host, BenchConfig(batch_sizes=[2], modes=asked), clock=clock)["rows"][0]
    assert row["models"]["slim"]["failed"] == {"compiled": "no compiler here"}
    assert (row["mode"], row["baseline_mode"]) == ("eager", "compiled")
    assert row["models"]["baseline"]["failed"] == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_sizes": [0]}, "from 1 to 65536"),
        ({"batch_sizes": [4, 2**17]}, "131072"),
        ({"batch_sizes": []}, "at least one"),
        ({"dtypes": ["int3"]}, "no dtype 'int3'"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PatchslimError, match=words):
        BenchConfig(**settings)


def test_a_dtype_that_the_device_lacks_is_told(timed: tuple[nn.Module, Any, Clock]) -> None:
    host, slim, clock = timed

    def lacking(*_: Any) -> None:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    slim.register_forward_pre_hook(lacking)
    with pytest.raises(PatchslimError, match="cpu can't compute in float16"):
        bench(slim, host, BenchConfig(batch_sizes=[1], dtypes=["float16"]), clock=clock)


def test_images_fill_the_batch() -> None:
    host = make_host()
    plan, weights = plan_for(host, "threshold")
    slim = ps.apply(host, plan, weights)
    with pytest.raises(PatchslimError, match="--data"):
        bench(slim, host, BenchConfig(batch_sizes=[5]))
    images, seen = make_images(3), list[torch.Tensor]()
    host.register_forward_hook(lambda model, given, logits: seen.append(given[0]))
    found = bench(slim, host, BenchConfig(batch_sizes=[5], seconds=0.01), images=images)
    assert torch.equal(seen[0], images[[0, 1, 2, 0, 1]])
    macs = ps.image_macs(slim, images[[0, 1, 2, 0, 1]]).double().mean()
    assert found["ideal_speedup"] == pytest.approx(ps.count_macs(host) / float(macs))


def test_files_are_named_by_device_torch_and_dtype() -> None:
    rows = [{"dtype": dtype, "batch_size": size} for dtype in ("float32", "bfloat16") for size in (1, 2)]
    files = by_dtype({"device": "NVIDIA H200 (141 GB)", "torch": "2.11.0+cu130", "rows": rows})
    assert list(files) == [
        "nvidia-h200-141-gb_torch2.11.0+cu130_float32.json",
        "nvidia-h200-141-gb_torch2.11.0+cu130_bfloat16.json",
    ]
    second = list(files.values())[1]
    assert (second["dtype"], second["batch_size"]) == ("bfloat16", 1)
    assert second["rows"] == rows[2:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """All modes are timed there, and every part."""
    host, slim = slim_of()
    host, slim = host.cuda(), slim.cuda()
    row = bench(slim, host, BenchConfig(batch_sizes=[4], dtypes=["bfloat16"], seconds=0.1, profile=True))["rows"][0]
    assert row["models"]["slim"]["modes"].keys() == set(MODES)
    assert all(seconds > 0 for seconds in row["profile"]["slim"])
