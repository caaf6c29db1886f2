"""Speed-ups on a clock that the networks themselves move, so that the true one of every plan is known."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import patchslim as ps
from patchslim.errors import PatchslimWarning
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs
from patchslim.methods import PS, Cover, Drop, Merge, Predict, Radial, Task
from patchslim.plan import SPEED, SlimPlan
from patchslim.search import Target
from patchslim.search.greedy import Greedy
from patchslim.search.speed import next_guess
from patchslim.timing import stopwatch
from small import make_host, make_images
from ticking import Seconds, Ticking

WAYS: dict[str, Any] = {
    "drop": Drop(),
    "ps": PS(step=2, tune_epochs=0),
    "ps, tuned": PS(step=4, tune_epochs=1),
    "carry": PS(step=2, tune_epochs=0, carry=True),
    "merge": Merge(),
    "cover": Cover(),
    "predict drop": Predict(removed="drop", epochs=2),
    "threshold": Predict(threshold=True, epochs=2),
}
HOST, SLIM = 0.3, 0.1  # what the patch embedding of a host and of a slim model takes
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def smooth(n_in: float, n: float) -> float:
    """Far from the price of MACs: keys and values cost more than all else."""
    return 0.05 + 0.020 * n_in + 0.008 * n + 0.0004 * n * n_in


def by_eights(n_in: float, n: float) -> float:
    """A device that takes tokens by eights."""
    return smooth(-(-n_in // 8) * 8, -(-n // 8) * 8)


def time_of(counts: Sequence[int], info: HostInfo, law: Seconds = smooth, carry: bool = False) -> float:
    total, n_in = SLIM, info.tokens
    for count in counts:
        total += law(n_in, info.prefix_tokens + count)
        n_in = info.tokens if carry else info.prefix_tokens + count
    return total


def true_speedup(plan: SlimPlan, info: HostInfo, law: Seconds = smooth) -> float:
    host = HOST + info.depth * law(info.tokens, info.tokens)
    return host / time_of(plan.counts, info, law, any(step.kind == "carry" for step in plan.steps))


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """A small host whose clock the stopwatch reads."""

    def make(kind: str = "class", law: Seconds = smooth, **settings: Any) -> nn.Module:
        model = make_host(kind, **settings)
        monkeypatch.setattr(stopwatch, "perf_counter", Ticking(model, law, HOST, SLIM))
        return model

    return make


def faster(model: nn.Module, speedup: float, way: Any = "drop", images: int = 4, size: int = 32, **asked: Any) -> Any:
    """A slim model, timed with batches of two."""
    method = WAYS[way] if isinstance(way, str) else way
    return ps.slim(model, make_images(images, size), method, speedup=speedup, batch_size=2, **asked)


@pytest.mark.parametrize(("kind", "way"), [*itertools.product(["class"], WAYS), ("mean", "drop")])
def test_the_speedup_is_reached_and_told(kind: str, way: str, ticking: Any) -> None:
    model, asked = ticking(kind), 1.25 if way == "carry" else 1.4 if kind == "mean" else 1.6
    slim = faster(model, asked, way, images=5)
    told, info = slim.plan.provenance[SPEED], ps.inspect(model)
    assert told["predicted"] == pytest.approx(asked, rel=0.05)
    assert told["asked"] == asked
    assert told["device"] == "cpu"
    if way != "threshold":  # there, images differ
        assert told["predicted"] == pytest.approx(true_speedup(slim.plan, info))
    if way not in ("threshold", "ps, tuned"):
        assert told["from_blocks"] == pytest.approx(told["predicted"], rel=0.1)
    assert (told["batch_size"], told["dtype"], told["mode"], told["host_mode"]) == (2, "float32", "eager", "eager")
    assert told["host_seconds_per_batch"] == pytest.approx(told["predicted"] * told["seconds_per_batch"])
    assert (told["multiple"], told["spread"]) == (1, pytest.approx(0.0))
    assert bool(torch.isfinite(slim(make_images(2))).all())


def test_blocks_alone_predict_a_device_that_is_the_sum_of_its_parts(ticking: Any) -> None:
    told = faster(ticking(), 1.7).plan.provenance[SPEED]
    assert told["from_blocks"] == pytest.approx(told["predicted"], rel=1e-4)
    assert told["predicted"] >= 1.7
    assert told["predicted"] == pytest.approx(1.7, rel=0.02)


def test_costs_are_in_the_macs_of_the_host(ticking: Any) -> None:
    task = Task.of(ticking(), make_images(2), Target(speedup=1.5, batch_size=2))
    limit, host = task.limit(Drop().draft(task.info)), HOST + 4 * smooth(17, 17)
    assert limit.ratio == pytest.approx(1 / 1.5)
    for counts in ([16, 16, 16, 0], [12, 9, 5, 0], [3, 2, 1, 0]):
        assert limit.cost.of(counts) == pytest.approx(
            time_of(counts, task.info) / host * host_macs(task.info), rel=1e-4
        )


def test_patches_leave_where_they_cost_time_not_macs(ticking: Any) -> None:
    """Attention is all here, and it is dearest where there are many tokens: more of them leave early."""

    def law(n_in: float, n: float) -> float:
        return 0.01 * n * n_in

    macs: Any = ps.slim(make_host(), make_images(4), Drop(), macs=0.6, batch_size=4)
    model = ticking(law=law)
    speedup = true_speedup(macs.plan, ps.inspect(model), law)
    timed = faster(model, speedup)
    assert timed.plan.provenance[SPEED]["predicted"] == pytest.approx(speedup, rel=0.03)
    assert timed.plan.counts[0] < macs.plan.counts[0]
    assert timed.plan.counts[2] > macs.plan.counts[2]


def test_a_network_that_is_more_than_its_blocks_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slim networks with few tokens here take longer than their blocks do; only timing them as a whole shows it."""
    model = make_host()
    clock = Ticking(model, smooth, HOST, SLIM)

    def lost(counts: Sequence[int]) -> float:
        return 0.08 * (sum(16 - count for count in counts[:3]) / 20) ** 2

    def stalled(own: Any, given: Any, found: Any) -> None:
        if hasattr(own, "plan"):
            clock.now += lost(own.plan.counts)

    model.register_forward_hook(stalled)
    monkeypatch.setattr(stopwatch, "perf_counter", clock)
    plan = faster(model, 1.6).plan
    told, info = plan.provenance[SPEED], ps.inspect(model)
    true = (HOST + 4 * smooth(17, 17)) / (time_of(plan.counts, info) + lost(plan.counts))
    assert told["predicted"] == pytest.approx(true)
    assert true == pytest.approx(1.6, rel=0.025)
    assert abs(told["from_blocks"] / 1.6 - 1) > 0.005


@pytest.mark.parametrize("way", ["drop", "ps", "merge"])
def test_tokens_come_by_the_eights_that_the_device_likes(way: str, ticking: Any) -> None:
    model = ticking(law=by_eights, img_size=64)
    info, plan = ps.inspect(model), faster(model, 1.5, way, size=64).plan
    told = plan.provenance[SPEED]
    assert told["multiple"] == 8
    assert all((info.prefix_tokens + count) % 8 == 0 or count in (0, info.patches) for count in plan.counts)
    assert true_speedup(plan, info, by_eights) == pytest.approx(told["predicted"])
    assert told["predicted"] == pytest.approx(1.5, rel=0.1)


def test_patches_that_fill_a_multiple_up_are_those_that_left_last(ticking: Any) -> None:
    """And they come back in all blocks before."""
    task = Task.of(ticking(law=by_eights, img_size=64), make_images(4, 64), Target(speedup=1.5, batch_size=2))
    limit = task.limit(Drop().draft(task.info))
    path = Greedy(task.host, task.features, task.cache, task.progress, limit, task.seed)
    path.search()
    for moves in range(0, len(path.moves), 7):
        left = [dict.fromkeys(range(64), math.inf) for _ in range(3)]  # by block, the move with which a patch left it
        for move, patch in enumerate(path.moves[:moves]):
            left[3 - path.moves[: move + 1].count(patch)][patch] = move
        plan, further = path.plan(moves), set[int]()
        for block in (2, 1, 0):
            kept = set(plan.kept[block])
            exact = {patch for patch in range(64) if left[block][patch] == math.inf}
            assert kept >= further
            assert len(kept) == path.kept(moves)[block] >= len(exact)
            assert kept >= exact or not further <= exact  # those that came back further on may take the places
            gone = set(range(64)) - kept
            for back in kept - further - exact:
                assert left[block][back] > max((left[block][patch] for patch in gone), default=-1)
            further = kept


def test_what_can_not_be_reached_is_refused_with_what_can(ticking: Any) -> None:
    model, host = ticking(), HOST + 4 * smooth(17, 17)
    for way, fewest in (("drop", [0, 0, 0, 0]), ("merge", [1, 1, 1, 0])):
        most = host / time_of(fewest, ps.inspect(model))
        asked = round(most + 0.1, 2)
        with pytest.raises(ps.BudgetError) as told:
            faster(model, asked, way)
        assert str(told.value) == (
            f"VisionTransformer on cpu (batch 2, float32) can't be made {asked:g}× as fast by {way}; "
            f"{math.floor(most * 100) / 100:.2f}× is the most."
        )


def test_a_device_where_tokens_cost_nothing_is_told(ticking: Any) -> None:
    with pytest.raises(ps.BudgetError, match=r"1\.40× is the most"):  # all of it the embedding's
        faster(ticking(law=lambda n_in, n: 0.1), 1.5)


def test_little_asked_for_keeps_everything_that_is_read(ticking: Any) -> None:
    model = ticking()
    plan = faster(model, 1.01).plan
    assert plan.counts == (16, 16, 16, 0)
    assert plan.provenance[SPEED]["predicted"] == pytest.approx(true_speedup(plan, ps.inspect(model)))


def test_one_block_is_enough_to_be_told(ticking: Any) -> None:
    plan = faster(ticking(depth=1), 1.1).plan
    assert plan.counts == (0,)
    assert plan.provenance[SPEED]["predicted"] == pytest.approx((HOST + smooth(17, 17)) / (SLIM + smooth(17, 1)))


def test_times_that_spread_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_host()
    clock, busy = Ticking(model, smooth, HOST, SLIM), itertools.cycle([0.0, 0.0, 0.0, 0.4, 0.4])

    def slowed(own: Any, given: Any, found: Any) -> None:
        clock.now += next(busy)

    model.register_forward_hook(slowed)
    monkeypatch.setattr(stopwatch, "perf_counter", clock)
    with pytest.warns(PatchslimWarning, match="busy with something else"):
        faster(model, 1.3, Radial(step=2))


def test_a_plan_that_is_slower_than_asked_is_told(ticking: Any) -> None:
    """Nothing lies between a network that keeps everything and one with eight tokens less."""
    words = r"The closest plan is 1\.13× as fast as the host, not 1\.3× as asked\."
    with pytest.warns(PatchslimWarning, match=words):
        plan = faster(ticking(law=by_eights), 1.3, "merge").plan
    assert true_speedup(plan, ps.inspect(make_host()), by_eights) == pytest.approx(1.133, abs=0.001)


def test_a_graph_needs_its_device() -> None:
    task = Task.of(make_host(), make_images(2), Target(speedup=1.5, mode="graph"))
    with pytest.raises(ps.PatchslimError, match="CUDA graph needs a CUDA device"):
        Drop().fit(task)


@given(st.floats(0.5, 1.5), st.floats(-0.05, 0.2), st.floats(0.3, 0.9))
def test_guesses_close_in_on_what_is_wanted(slope: float, shift: float, wanted: float) -> None:
    """What is found is a line in what is given; the second correction is along that line."""
    tried, found = [wanted], [slope * wanted + shift]
    for _ in range(3):
        tried.append(next_guess(tried, found, wanted))
        found.append(slope * tried[-1] + shift)
    assert abs(found[-1] - wanted) <= 1e-9 + 0.02 * abs(found[0] - wanted)
