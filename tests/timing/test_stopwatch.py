"""Blocks and networks on a clock that they themselves move, so that every time is known beforehand."""

import itertools
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.cache import Cache
from patchslim.events import silent
from patchslim.hosts import open_host
from patchslim.plan import SlimPlan, make_plan, static_plan
from patchslim.steps.merge import Merge
from patchslim.timing import stopwatch
from patchslim.timing.modes import MODES
from patchslim.timing.stopwatch import MULTIPLES, Conditions, Stopwatch
from small import make_host, make_images, steps_for
from ticking import Seconds, Ticking

HOST, SLIM, BATCH = 0.3, 0.1, 2  # what the patch embedding of a host and of a slim model takes
COUNTS = [12, 9, 6, 0]


def smooth(n_in: float, n: float) -> float:
    """Far from the price of MACs: keys and values cost more than all else."""
    return 0.05 + 0.020 * n_in + 0.008 * n + 0.0004 * n * n_in


def by(multiple: int) -> Seconds:
    """A device that takes tokens by multiples."""
    return lambda n_in, n: smooth(-(-n_in // multiple) * multiple, -(-n // multiple) * multiple)


def watch_of(model: Any, clock: Any, cache: Cache | None = None, listen: Any = silent, **asked: Any) -> Stopwatch:
    conditions = Conditions(**({"batch_size": BATCH} | asked))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopwatch, "perf_counter", clock)
        return Stopwatch(open_host(model), conditions, cache or Cache(), listen)


def plan_of(model: Any, kind: str = "slice") -> SlimPlan:
    """A plan with COUNTS, or with twice the same block where patches merge."""
    if kind == "merge":
        steps = steps_for(model, lambda n, layer: Merge(n=n, channels=3), [12, 12, 8, 0])
        return make_plan(ps.inspect(model), steps)
    return static_plan(ps.inspect(model), [list(range(16))[-count:] if count else [] for count in COUNTS], "slice")


@pytest.mark.parametrize("kind", ["slice", "merge"])
def test_blocks_are_told_in_whole_blocks_and_the_rest_too(kind: str) -> None:
    model = make_host()
    watch, plan = watch_of(model, Ticking(model, smooth, HOST, SLIM)), plan_of(model, kind)
    tokens = [1 + count for count in (16, *plan.counts)]
    expected = [smooth(n_in, n) / smooth(17, 17) for n_in, n in itertools.pairwise(tokens)]
    assert watch.blocks(plan) == pytest.approx(expected)
    assert watch.rest(plan) == pytest.approx(SLIM / smooth(17, 17))


def test_a_whole_network_is_timed_beside_the_host_as_it_comes() -> None:
    model = make_host()
    found = watch_of(model, Ticking(model, smooth, HOST, SLIM)).whole(plan_of(model))
    slim = SLIM + smooth(17, 13) + smooth(13, 10) + smooth(10, 7) + smooth(7, 1)
    assert found["seconds"] == pytest.approx({"slim": slim, "host": HOST + 4 * smooth(17, 17)})
    assert found["share"] == pytest.approx(slim / (HOST + 4 * smooth(17, 17)))
    assert found["modes"] == {"slim": "eager", "host": "eager"}
    assert found["spread"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("again", [True, False])
def test_times_that_spread_are_taken_anew_for_longer(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is busy while networks are timed for the first time, and then no more."""
    model = make_host()
    clock, busy = Ticking(model, smooth, HOST, SLIM), iter([0.9, 0.0, 0.0] * 10)

    def slowed(own: Any, given: Any, found: Any) -> None:
        clock.now += next(busy, 0.0)

    model.register_forward_hook(slowed)
    if not again:
        monkeypatch.setattr(stopwatch, "STEADY", math.inf)
    found = watch_of(model, clock).whole(plan_of(model))
    if again:
        assert found["spread"] == pytest.approx(0, abs=1e-9)
        assert found["seconds"]["host"] == pytest.approx(HOST + 4 * smooth(17, 17))
    else:
        assert found["spread"] > 0.1


@pytest.mark.parametrize(("law", "size", "expected"), [(smooth, 64, 1), (by(8), 64, 8), (by(64), 112, 64)])
def test_the_multiple_is_that_of_the_devices_steps(law: Seconds, size: int, expected: int) -> None:
    model = make_host(img_size=size)
    assert watch_of(model, Ticking(model, law)).multiple() == expected
    assert expected in (1, *MULTIPLES)


def test_times_are_remembered_but_not_those_of_another_device_batch_precision_or_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_host()
    plan, told = plan_of(model), list[Any]()
    elsewhere = plan.with_(order=[*range(16)])  # which patches stay makes no difference

    def times(law: Seconds = smooth, own: SlimPlan = plan, **asked: Any) -> list[float]:
        """What a process says that begins anew; `told` has something where it times."""
        told.clear()
        watch = watch_of(model, Ticking(model, law), Cache(tmp_path), told.append, **asked)
        return [*watch.blocks(own), watch.whole(own)["share"], watch.rest(own), watch.multiple()]

    first = times()
    assert told
    assert times(law=lambda n_in, n: 1.0) == first
    assert times(own=elsewhere) == first
    assert not told
    for asked in ({"batch_size": 3}, {"dtype": "bfloat16"}, {"mode": "eager"}):
        times(**asked)
        assert told
    times()
    assert not told
    monkeypatch.setattr(stopwatch, "described", lambda device: {"device": "another", "threads": None, "torch": "2"})
    times()
    assert told


def test_the_host_stays_as_it_was() -> None:
    model = make_host()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parts, random = list(model.modules()), torch.random.get_rng_state()
    watch = watch_of(model, Ticking(model, smooth), dtype="bfloat16")
    watch.whole(plan_of(model), images=make_images(1))
    watch.blocks(plan_of(model, "merge"))
    assert all(one is other for one, other in zip(model.modules(), parts, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_a_batch_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    model = make_host()
    watch = watch_of(model, Ticking(model, smooth))
    monkeypatch.setattr(stopwatch, "in_turns", full)
    with pytest.raises(ps.BudgetError, match=r"a batch of 2 takes more memory .*--batch-size"):
        watch.blocks(plan_of(model))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["slice", "merge"])
def test_on_a_gpu_blocks_are_recorded_and_networks_run_in_all_modes(kind: str) -> None:
    model = make_host().cuda()
    watch, plan = watch_of(model, perf_counter, dtype="bfloat16"), plan_of(model, kind)
    times = [*watch.blocks(plan), watch.rest(plan)]
    assert all(0 < time < math.inf for time in times)
    assert watch.multiple() in (1, *MULTIPLES)
    timed = watch.whole(plan)
    assert 0 < timed["share"] < math.inf
    assert set(timed["modes"].values()) <= set(MODES)
    assert watch.about["device"] == torch.cuda.get_device_name()
