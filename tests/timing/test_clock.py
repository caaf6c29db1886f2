"""Clocks that jump, go backwards or stand still: times that are right, or one sentence."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.methods import Drop, Task
from patchslim.search import Target
from patchslim.timing import Contest, stopwatch
from patchslim.timing.latency import in_turns
from small import make_host, make_images

CPU = torch.device("cpu")


class Jumping:
    """A clock that goes by what it is called for, and now and then by something else."""

    def __init__(self, jumps: Iterator[float]) -> None:
        self.now, self.jumps = 0.0, jumps

    def __call__(self) -> float:
        self.now += next(self.jumps)
        return self.now

    def call(self, seconds: float) -> Any:
        """Something that takes so long."""

        def taking() -> None:
            self.now += seconds

        return taking


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_times_survive_a_clock_that_jumps_now_and_then(jump: float) -> None:
    clock = Jumping(itertools.cycle([0.0] * 10 + [jump]))
    fast, slow = in_turns([clock.call(1.0), clock.call(2.0)], CPU, 30.0, clock)
    assert [fast.median, slow.median] == pytest.approx([1.0, 2.0])


def test_a_clock_that_runs_backwards_is_told() -> None:
    clock = Jumping(itertools.repeat(-5.0))
    with pytest.raises(ps.PatchslimError, match="runs backwards"):
        in_turns([clock.call(1.0)], CPU, 1.0, clock)


def test_a_clock_that_stands_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_host()
    with pytest.raises(ps.PatchslimError, match="stands still"):
        Contest(["eager"], clock=lambda: 7.0).time({"host": model}, make_images(1))
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: 7.0)
    with pytest.raises(ps.PatchslimError, match="stands still"):
        Drop().fit(Task.of(model, make_images(2), Target(speedup=1.5, batch_size=2)))
