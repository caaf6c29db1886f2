"""What a run says of its speed here, on a clock that the networks move, so that the true speed-up is known."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import patchslim as ps
from patchslim.errors import PatchslimWarning
from patchslim.hosts import alike
from patchslim.methods import Drop, Merge, Task
from patchslim.plan import SlimPlan
from patchslim.runs import expected
from patchslim.runs.make import make_runs
from patchslim.search import Target
from small import make_host, make_images
from ticking import Ticking

HOST, SLIM = 0.3, 0.1  # what the patch embedding of a host and of a slim model takes


def law(n_in: float, n: float) -> float:
    return 0.05 + 0.02 * n_in + 0.01 * n


def true_speedup(plan: SlimPlan, slim: float = SLIM) -> float:
    tokens = [17, *(1 + count for count in plan.counts)]
    return (HOST + 4 * law(17, 17)) / (slim + sum(law(n_in, n) for n_in, n in pairwise(tokens)))


def run_of(
    folder: Path, method: Any, monkeypatch: Any, slim: float = SLIM, dear: tuple[str, ...] = (), **target: Any
) -> Any:
    """A run's plan and metrics. Slim models of `dear` methods take 5 seconds more."""
    model = make_host()
    clock = Ticking(model, law, HOST, slim)

    def stalled(own: Any, given: Any, found: Any) -> None:
        clock.now += 5.0 * (hasattr(own, "plan") and own.plan.method in dear)

    model.register_forward_hook(stalled)
    monkeypatch.setattr(alike, "HARMLESS", (*alike.HARMLESS, Ticking.__module__, __name__))  # its hooks only count
    monkeypatch.setattr(expected, "perf_counter", clock)
    task = Task.of(model, make_images(2), Target(**({"macs": 0.7, "batch_size": 2} | target)))
    made = make_runs(task, method, folder, {}, timed=True)[folder]
    assert json.loads((folder / "metrics.json").read_text()) == made
    return SlimPlan.load(folder / "plan.json"), made


def test_a_run_says_how_fast_it_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, metrics = run_of(tmp_path / "a", Drop(), monkeypatch)
    assert metrics["expected_speedup"] == pytest.approx(true_speedup(plan))
    told = {name: metrics["timing"][name] for name in ("device", "batch_size", "dtype", "mode", "host_mode")}
    assert told == {"device": "cpu", "batch_size": 2, "dtype": "float32", "mode": "eager", "host_mode": "eager"}
    assert "other_methods" not in metrics["timing"]


def test_a_run_that_is_not_faster_is_told_with_the_method_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What merges costs more here than it gains."""
    with pytest.warns(PatchslimWarning) as heard:
        plan, metrics = run_of(tmp_path / "a", Merge(), monkeypatch, dear=("merge", "cover", "predict"))
    others = metrics["timing"]["other_methods"]
    assert metrics["expected_speedup"] == pytest.approx(1 / (1 / true_speedup(plan) + 5.0 / (HOST + 4 * law(17, 17))))
    assert others["drop"] == pytest.approx(true_speedup(plan), rel=0.1)  # at the same MACs
    assert max(others["cover"], others["predict"]) < 1 < others["drop"]
    (sentence,) = [str(own.message) for own in heard]
    assert sentence.startswith(f"The slim model is not faster than its host here ({metrics['expected_speedup']:.2f}×; ")
    assert sentence.endswith(f"at the same MACs --method drop runs at {others['drop']:.2f}×.")


def test_where_none_is_faster_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slim model's embedding takes very long here."""
    with pytest.warns(PatchslimWarning, match="nor would another method be at the same MACs; try a larger"):
        run_of(tmp_path / "a", Drop(), monkeypatch, slim=9.0)
    with pytest.warns(PatchslimWarning, match="because it keeps all patches"):
        run_of(tmp_path / "b", Drop(), monkeypatch, slim=9.0, macs=None, tolerance=0.0)


def test_a_model_that_can_not_be_timed_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "patchslim.timing.latency.Contest.time", lambda *_: (_ for _ in ()).throw(ps.PatchslimError("No clock."))
    )
    with pytest.warns(PatchslimWarning, match="is not known: No clock"):
        _, metrics = run_of(tmp_path / "a", Drop(), monkeypatch)
    assert metrics["expected_speedup"] is None
    ps.load(tmp_path / "a")
