"""Searches that were cut short: to the last bit what one gives that was not, wherever it was cut."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import patchslim as ps
from patchslim.cache import ENTRIES, Cache
from patchslim.events import silent
from patchslim.evidence import distances, selectors
from patchslim.methods import PS, Cover, Drop, Merge, Predict, Task
from patchslim.plan import SPEED
from patchslim.search import Target, greedy, measured, topdown
from patchslim.search.greedy import Greedy
from patchslim.timing import stopwatch
from power import Interrupted, interrupt_after
from searches import WAYS, assert_same, slim_by
from small import make_host, make_images
from ticking import Ticking

EVERY: dict[str, Any] = {
    **{name: method for name, method in WAYS.items() if name != "predict drop"},
    "merge, few": Merge(blocks=2),
    "drop": Drop(),
    "ps": PS(step=3, tune_epochs=2, learning_rate=1e-3),
    "carry": PS(step=3, tune_epochs=0, carry=True),
}
LIMITS: list[dict[str, Any]] = [{"kind": "class", "macs": 0.75}, {"kind": "mean", "tolerance": 0.05}]
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def search(way: str, kind: str = "class", **asked: Any) -> Any:
    """With one of the methods, on few images."""
    return slim_by(make_host(kind), make_images(3), EVERY[way], batch_size=2, **asked)


@pytest.mark.parametrize("asked", LIMITS)
@pytest.mark.parametrize("way", EVERY)
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(way: str, asked: dict[str, Any], tmp_path: Path) -> None:
    heard: list[Mapping[str, Any]] = []
    expected = search(way, **asked, progress=heard.append)
    assert len(heard) > 2
    for cut in sorted({1, len(heard) // 3, len(heard) - 1}):
        folder = tmp_path / str(cut)
        with pytest.raises(Interrupted):
            search(way, **asked, cache=folder, progress=interrupt_after(cut))
        assert_same(search(way, **asked, cache=folder), expected)


@pytest.mark.parametrize("way", ["merge", "drop", "ps", "predict"])
def test_a_cache_cut_short_at_any_byte_leads_to_the_same_cache_and_model(way: str, tmp_path: Path) -> None:
    expected = search(way, macs=0.75, cache=tmp_path / "whole")
    whole = (tmp_path / "whole" / ENTRIES).read_bytes()
    assert_same(expected, search(way, macs=0.75))
    for cut in (1, len(whole) // 3, 2 * len(whole) // 3, len(whole) - 25):
        folder = tmp_path / str(cut)
        shutil.copytree(tmp_path / "whole", folder)
        (folder / ENTRIES).write_bytes(whole[:cut])
        assert_same(search(way, macs=0.75, cache=folder), expected)
        assert (folder / ENTRIES).read_bytes() == whole


@pytest.mark.parametrize("way", EVERY)
def test_what_was_found_out_is_not_found_out_again(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = search(way, macs=0.75, cache=tmp_path)

    def refuse(*args: Any, **given: Any) -> None:
        raise AssertionError("measured, derived, trained or tuned again")

    monkeypatch.setattr(measured, "measure", refuse)  # candidates'; of the plan that predicts it is another name
    monkeypatch.setattr(greedy, "measure", refuse)
    monkeypatch.setattr(Greedy, "_stage", refuse)
    monkeypatch.setattr(distances, "gather", refuse)
    monkeypatch.setattr(selectors.SelectorTraining, "_train", refuse)
    monkeypatch.setattr(topdown, "tune_block", refuse)
    monkeypatch.setattr(topdown, "score_block", refuse)
    assert_same(search(way, macs=0.75, cache=tmp_path), expected)


@pytest.mark.parametrize("way", EVERY)
def test_what_other_limits_found_out_changes_nothing(way: str, tmp_path: Path) -> None:
    """One cache for a sweep, on disk; and one task, in memory."""
    task = Task.of(make_host(), make_images(3), batch_size=2)
    limits: list[dict[str, Any]] = [{"macs": 0.8}, {"tolerance": 0.1}, {"macs": 0.65}]
    for asked in limits:
        alone = search(way, **asked)
        assert_same(search(way, **asked, cache=tmp_path), alone)
        found = ps.methods.fit(EVERY[way], task.at(Target(**asked)))
        assert found.plan is not None
        assert found.plan.with_(provenance={}) == alone.plan.with_(provenance={})


def exact(n_in: float, n: float) -> float:
    """What a block takes: whole numbers, so that a clock that has run for longer rounds nothing away."""
    return 128 + 50 * n_in + 20 * n + n * n_in


@pytest.mark.parametrize("method", [Drop(), Cover(), Merge(), PS(step=3, tune_epochs=1), Predict(epochs=2)])
def test_a_search_for_speed_goes_on_with_its_own_times_though_the_machine_has_changed(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faster(law: Any = exact, progress: Any = silent, **asked: Any) -> Any:
        model = make_host()
        monkeypatch.setattr(stopwatch, "perf_counter", Ticking(model, law, 768, 256))
        return slim_by(model, make_images(3), method, speedup=1.5, batch_size=2, progress=progress, **asked)

    heard: list[Mapping[str, Any]] = []
    whole = faster(cache=tmp_path / "whole", progress=heard.append)
    assert whole.plan.provenance[SPEED]["asked"] == 1.5
    for cut in (9, len(heard) - 1):
        with pytest.raises(Interrupted):
            faster(cache=tmp_path / str(cut), progress=interrupt_after(cut))
        assert_same(faster(cache=tmp_path / str(cut)), whole)
    assert_same(faster(law=lambda n_in, n: 3 * exact(n, n_in), cache=tmp_path / "whole"), whole)


def test_paths_by_macs_and_by_time_are_kept_apart() -> None:
    """A device that takes tokens by eights keeps other patches after as many moves."""

    def by_eights(n_in: float, n: float) -> float:
        return exact(-(-n_in // 8) * 8, -(-n // 8) * 8)

    def path(target: Target, cache: Cache) -> Greedy:
        task = Task.of(make_host(img_size=64), make_images(2, 64), target, cache=cache)
        monkeypatch.setattr(stopwatch, "perf_counter", Ticking(task.host.model, by_eights))
        limit = task.limit(Drop().draft(task.info))
        found = Greedy(task.host, task.features, task.cache, silent, limit, 0)
        found.search(0.02)
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        shared = Cache()
        for target in (Target(macs=0.5), Target(speedup=1.2, batch_size=2), Target(speedup=1.5, batch_size=2)):
            alone, among = path(target, Cache()), path(target, shared)
            assert among.moves == alone.moves
            for moves in range(0, len(alone.moves), 9):
                assert among.error(moves) == alone.error(moves)
