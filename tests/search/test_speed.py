"""Speed-ups on a clock that the networks themselves move, so that the true one of every plan is known."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import patchslim as ps
from patchslim.errors import PatchslimWarning
from patchslim.hosts import HostInfo, open_host
from patchslim.macs import host_macs
from patchslim.plan import SlimPlan
from patchslim.search import stopwatch
from patchslim.search.cost import snapped
from patchslim.search.greedy import Greedy
from patchslim.search.ledger import Ledger
from patchslim.search.run import Session
from patchslim.search.sketch import sketch
from patchslim.search.speed import next_guess
from patchslim.search.stopwatch import GRAINS, Stopwatch
from patchslim.timing.modes import MODES
from power import Interrupted, interrupt_after
from small import make_host, make_images
from ticking import Seconds, Ticking

WAYS: dict[str, dict[str, Any]] = {
    "effect": {"removed": "drop"},
    "impact": {"score": "impact", "tune_epochs": 0, "step": 2},
    "impact, tuned": {"score": "impact", "tune_epochs": 1, "step": 4},
    "carry": {"removed": "carry", "tune_epochs": 0, "step": 2},
    "matched merge": {"select": "matched"},
    "static merge": {"removed": "merge"},
    "fixed groups": {"groups": "fixed"},
    "predicted drop": {"select": "predicted", "removed": "drop", "predictor_epochs": 2},
    "threshold": {"select": "predicted", "mode": "threshold", "predictor_epochs": 2},
}
HOST, SLIM = 0.3, 0.1  # what the patch embedding of a host and of a slim model takes
INFO = ps.inspect(make_host())
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def smooth(n_in: float, n: float) -> float:
    """Far from the price of MACs: keys and values cost more than all else."""
    return 0.05 + 0.020 * n_in + 0.008 * n + 0.0004 * n * n_in


def by_eights(n_in: float, n: float) -> float:
    """A device that takes tokens by eights."""
    return smooth(-(-n_in // 8) * 8, -(-n // 8) * 8)


def time_of(counts: Sequence[int], info: HostInfo, law: Seconds, carry: bool = False) -> float:
    total, n_in = SLIM, info.tokens
    for count in counts:
        total += law(n_in, info.prefix_tokens + count)
        n_in = info.tokens if carry else info.prefix_tokens + count
    return total


def true_speedup(plan: SlimPlan, info: HostInfo, law: Seconds = smooth) -> float:
    host = HOST + info.depth * law(info.tokens, info.tokens)
    return host / time_of(plan.counts, info, law, plan.removed == "carry")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.nn.Module]:
    """A small host whose clock the stopwatch reads."""

    def make(kind: str = "class", law: Seconds = smooth, slim: float = SLIM, **settings: Any) -> torch.nn.Module:
        model = make_host(kind, **settings)
        monkeypatch.setattr(stopwatch, "perf_counter", Ticking(model, law, HOST, slim))
        return model

    return make


def config(speedup: float = 1.5, **settings: Any) -> ps.SearchConfig:
    """Static patches drop unless it is said what becomes of them, or how they are chosen."""
    usual: dict[str, Any] = {"batch_size": 4, "speed_batch_size": 2}
    if not {"select", "removed", "groups", "score"} & settings.keys():
        usual["removed"] = "drop"
    return ps.SearchConfig(target_speedup=speedup, **(usual | settings))


@pytest.mark.parametrize(("kind", "way"), [*itertools.product(["class"], WAYS), ("mean", "effect")])
def test_the_speedup_is_reached_and_told(kind: str, way: str, ticking: Any) -> None:
    model = ticking(kind)
    asked = config(1.25 if way == "carry" else 1.4 if kind == "mean" else 1.6, **WAYS[way])
    plan, weights = ps.search(model, make_images(5), asked)
    told, info = plan.provenance["speed"], ps.inspect(model)
    if way != "threshold":  # there, images differ
        assert told["predicted"] == pytest.approx(true_speedup(plan, info))
    assert told["predicted"] == pytest.approx(asked.target_speedup, rel=0.05)
    assert told["asked"] == asked.target_speedup
    assert (told["device"], told["batch_size"], told["dtype"], told["mode"]) == ("cpu", 2, "float32", "eager")
    assert (told["grain"], told["spread"]) == (1, pytest.approx(0.0))
    assert plan.provenance["settings"] == asked.as_dict()
    assert plan.provenance["macs_ratio"] == ps.count_macs(model, plan) / ps.count_macs(model)
    assert bool(torch.isfinite(ps.apply(model, plan, weights)(make_images(2))).all())


def test_blocks_alone_predict_a_device_that_is_the_sum_of_its_parts(ticking: Any) -> None:
    plan, _ = ps.search(ticking(), make_images(4), config(1.7))
    told = plan.provenance["speed"]
    assert told["from_blocks"] == pytest.approx(told["predicted"], rel=1e-4)
    assert told["predicted"] >= 1.7
    assert told["predicted"] == pytest.approx(1.7, rel=0.02)


def test_patches_leave_where_they_cost_time_not_macs(ticking: Any) -> None:
    """Attention is all here, and it is dearest where there are many tokens: more of them leave early."""
    macs, _ = ps.search(make_host(), make_images(4), ps.SearchConfig(target_macs=0.6, removed="drop", batch_size=4))
    model = ticking(law=lambda n_in, n: 0.01 * n * n_in)
    speedup = true_speedup(macs, ps.inspect(model), lambda n_in, n: 0.01 * n * n_in)
    timed, _ = ps.search(model, make_images(4), config(speedup))
    assert timed.provenance["speed"]["predicted"] == pytest.approx(speedup, rel=0.03)
    assert timed.counts[0] < macs.counts[0]
    assert timed.counts[2] > macs.counts[2]


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
    plan, _ = ps.search(model, make_images(4), config(1.6))
    told, info = plan.provenance["speed"], ps.inspect(model)
    true = (HOST + 4 * smooth(17, 17)) / (time_of(plan.counts, info, smooth) + lost(plan.counts))
    assert told["predicted"] == pytest.approx(true)
    assert true == pytest.approx(1.6, rel=0.025)
    assert abs(told["from_blocks"] / 1.6 - 1) > 0.005


@pytest.mark.parametrize("way", ["effect", "impact", "matched merge"])
def test_tokens_come_by_the_eights_that_the_device_likes(way: str, ticking: Any) -> None:
    model = ticking(law=by_eights, img_size=64)
    info = ps.inspect(model)
    plan, _ = ps.search(model, make_images(4, 64), config(1.5, **WAYS[way]))
    assert plan.provenance["speed"]["grain"] == 8
    assert all((info.prefix_tokens + count) % 8 == 0 or count in (0, info.patches) for count in plan.counts)
    assert true_speedup(plan, info, by_eights) == pytest.approx(plan.provenance["speed"]["predicted"])
    assert plan.provenance["speed"]["predicted"] == pytest.approx(1.5, rel=0.1)


@given(st.integers(1, 300), st.integers(0, 5), st.integers(1, 70), st.data())
def test_snapping_goes_up_to_the_next_multiple(patches: int, prefix: int, grain: int, data: st.DataObject) -> None:
    info = replace(INFO, patches=patches, prefix_tokens=prefix)
    count = data.draw(st.integers(0, patches))
    found = snapped(info, grain, count)
    assert count <= found <= patches
    assert found == snapped(info, grain, found)
    assert found == 0 or (prefix + found) % grain == 0 or found == patches
    assert found - count < grain
    assert snapped(info, 1, count) == count


def test_everything_snapped_back_is_what_left_last(ticking: Any) -> None:
    """The patches that fill a multiple up are those that the path removed last, and come back in all blocks before."""
    model, images = ticking(law=by_eights, img_size=64), make_images(4, 64)
    session = Session(model, images, config())
    path = Greedy(session.host, session.features, config(), session.ledger, session.listen, session._budget(config()))
    path.search()
    for moves in range(0, len(path.moves), 7):
        plan, exits = path.plan(moves), path.exits(moves).tolist()
        exact = [{patch for patch in range(64) if exits[patch] >= block} for block in (1, 2, 3)]
        assert [len(kept) for kept in plan.kept] == path.kept(moves)
        for block, kept in enumerate(plan.kept[:3], start=1):
            back = set(kept) - exact[block - 1]
            assert exact[block - 1] <= set(kept) or back & set(plan.kept[block])
            left = {patch: move for move, patch in enumerate(path.moves[:moves]) if gone(path.moves, move) == 4 - block}
            chosen = back - set(plan.kept[block])
            if chosen:
                assert min(left[patch] for patch in chosen) > max(
                    (left[patch] for patch in set(left) - set(kept)), default=-1
                )


def gone(moves: list[int], move: int) -> int:
    """From how many blocks a patch is gone with a move."""
    return moves[: move + 1].count(moves[move])


def test_what_can_not_be_reached_is_refused_with_what_can(ticking: Any) -> None:
    model = ticking()
    info = ps.inspect(model)
    most = (HOST + 4 * smooth(17, 17)) / time_of([0, 0, 0, 0], info, smooth)
    with pytest.raises(ps.BudgetError, match=rf"can't be made 9× .* {math.floor(most * 100) / 100:.2f}× is the most"):
        ps.search(model, make_images(2), config(9.0))
    halves = (HOST + 4 * smooth(17, 17)) / time_of([8, 4, 2, 0], info, smooth)
    with pytest.raises(ps.BudgetError, match=f"{math.floor(halves * 100) / 100:.2f}× is the most"):
        ps.search(model, make_images(2), config(halves + 0.1, select="matched"))


def test_a_device_where_tokens_cost_nothing_is_told(ticking: Any) -> None:
    model = ticking(law=lambda n_in, n: 0.1)
    with pytest.raises(ps.BudgetError, match=r"1\.40× is the most"):  # all of it the embedding's
        ps.search(model, make_images(2), config(1.5))


def test_little_asked_for_keeps_everything_that_is_read(ticking: Any) -> None:
    model = ticking()
    plan, _ = ps.search(model, make_images(2), config(1.01))
    assert plan.counts == (16, 16, 16, 0)
    assert plan.provenance["speed"]["predicted"] == pytest.approx(true_speedup(plan, ps.inspect(model)))


def test_times_that_spread_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_host()
    clock, busy = Ticking(model, smooth, HOST, SLIM), itertools.cycle([0.0, 0.0, 0.0, 0.4, 0.4])

    def slowed(own: Any, given: Any, found: Any) -> None:
        clock.now += next(busy)

    model.register_forward_hook(slowed)
    monkeypatch.setattr(stopwatch, "perf_counter", clock)
    with pytest.warns(PatchslimWarning, match="busy with something else"):
        ps.search(model, make_images(2), config(1.3, score="radial", tune_epochs=0, step=2))


@pytest.mark.parametrize("way", ["effect", "matched merge"])
def test_interrupted_and_resumed_gives_the_same_bytes_though_the_machine_has_changed(
    way: str, ticking: Any, tmp_path: Path
) -> None:
    model = ticking()
    whole, _ = ps.search(model, make_images(4), config(1.5, **WAYS[way]), checkpoint=tmp_path / "whole")
    model = ticking()
    cut: dict[str, Any] = {"checkpoint": tmp_path / "cut"}
    with pytest.raises(Interrupted):
        ps.search(model, make_images(4), config(1.5, **WAYS[way]), **cut, listen=interrupt_after(9))
    resumed, _ = ps.search(model, make_images(4), config(1.5, **WAYS[way]), **cut)
    assert resumed.to_json() == whole.to_json()
    other = ticking(law=lambda n_in, n: 3 * smooth(n, n_in))
    again, _ = ps.search(other, make_images(4), config(1.5, **WAYS[way]), checkpoint=tmp_path / "whole")
    assert again.to_json() == whole.to_json()


def test_times_of_another_device_batch_or_precision_are_not_taken_over(
    ticking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, ledger = open_host(ticking()), Ledger()

    def times(**changes: Any) -> bool:
        """Whether anything is timed."""
        events: list[Any] = []
        watch = Stopwatch(host, config(1.5, **changes), ledger, events.append)
        plan = sketch(host.info, watch.config, (12, 9, 6, 0))
        assert watch.blocks(plan)[0] > 0
        assert watch.whole(plan)["share"] > 0
        return bool(events)

    assert times()
    assert not times()
    assert times(speed_batch_size=3)
    assert times(speed_dtype="bfloat16")
    assert times(speed_mode="eager")
    assert not times()
    monkeypatch.setattr(stopwatch, "place_of", lambda device: {"device": "another", "threads": None, "torch": "2"})
    assert times()


def test_the_host_is_the_one_that_came_in_and_stays_as_it_was(ticking: Any) -> None:
    model = ticking()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    embed = model.patch_embed
    ps.search(model, make_images(2), config(1.5, speed_dtype="bfloat16"))
    assert model.patch_embed is embed
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_costs_are_in_the_macs_of_the_host(ticking: Any) -> None:
    model, asked = ticking(), config(1.5)
    budget = Session(model, make_images(2), asked)._budget(asked)
    info = ps.inspect(model)
    host = HOST + 4 * smooth(17, 17)
    for counts in ([16, 16, 16, 0], [12, 9, 5, 0], [3, 2, 1, 0]):
        share = time_of(counts, info, smooth) / host
        assert budget.cost.of(counts) == pytest.approx(share * host_macs(info), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target_speedup": 1.0}, "above 1"),
        ({"target_speedup": 0.5}, "above 1"),
        ({"target_speedup": -2.0}, "above 1"),
        ({"target_speedup": math.inf}, "above 1"),
        ({"target_speedup": math.nan}, "above 1"),
        ({"target_speedup": 1.5, "target_macs": 0.5}, "one of them"),
        ({"target_speedup": 1.5, "tolerance": 0.01}, "one of them"),
        ({"target_speedup": 1.5, "speed_batch_size": 0}, "at least 1"),
        ({"target_speedup": 1.5, "speed_dtype": "int4"}, "no dtype 'int4'"),
        ({"target_speedup": 1.5, "speed_mode": "fast"}, "called 'fast'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.BudgetError, match=words):
        ps.SearchConfig(**settings)


def test_a_graph_needs_its_device() -> None:
    with pytest.raises(ps.PatchslimError, match="CUDA graph needs a CUDA device"):
        ps.search(make_host(), make_images(2), config(1.5, speed_mode="graph"))


@given(st.floats(0.5, 1.5), st.floats(-0.05, 0.2), st.floats(0.3, 0.9))
def test_guesses_close_in_on_what_is_wanted(slope: float, shift: float, wanted: float) -> None:
    """What is found is a line in what is given; the second correction is along that line."""
    tried, found = [wanted], [slope * wanted + shift]
    for _ in range(3):
        tried.append(next_guess(tried, found, wanted))
        found.append(slope * tried[-1] + shift)
    assert abs(found[-1] - wanted) <= 1e-9 + 0.02 * abs(found[0] - wanted)


def test_one_block_is_enough_to_be_told(ticking: Any) -> None:
    model = ticking(depth=1)
    info = ps.inspect(model)
    plan, _ = ps.search(model, make_images(2), config(1.1))
    assert plan.counts == (0,)
    assert plan.provenance["speed"]["predicted"] == pytest.approx((HOST + smooth(17, 17)) / (SLIM + smooth(17, 1)))
    assert info.depth == 1


def test_a_batch_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(stopwatch, "in_turns", full)
    with pytest.raises(ps.BudgetError, match=r"a batch of 2 takes more memory .*--speed-batch-size"):
        ps.search(make_host(), make_images(2), config(1.5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["effect", "matched merge", "predicted drop"])
def test_on_a_gpu_blocks_are_recorded_and_networks_run_in_all_modes(way: str) -> None:
    model = make_host().cuda()
    host, asked = open_host(model), config(1.5, **WAYS[way] | {"speed_dtype": "bfloat16"})
    watch = Stopwatch(host, asked, Ledger(), lambda event: None)
    plan = sketch(host.info, asked, (12, 9, 6, 0))
    times = [*watch.blocks(plan), watch.rest(plan)]
    assert all(0 < time < math.inf for time in times)
    assert watch.grain() in (1, *GRAINS)
    timed = watch.whole(plan)
    assert 0 < timed["share"] < math.inf
    assert set(timed["modes"].values()) <= set(MODES)
    assert watch.place["device"] == torch.cuda.get_device_name()
