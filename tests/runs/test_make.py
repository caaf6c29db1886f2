"""Making runs: what a method found lies in them; several MAC ratios out of one search; going on with either."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import patchslim as ps
from patchslim.events import Listener, silent
from patchslim.hosts.weights import weights_fingerprint
from patchslim.methods import Task
from patchslim.runs.make import check_runs_folder, make_runs
from patchslim.runs.sweep import run_name
from patchslim.search import Target
from power import Interrupted, interrupt_after
from sealing import resealed
from small import make_host, make_images

RATIOS = [0.8, 0.6]
IMAGES = make_images(4)
STARTED: dict[str, Any] = {"model": "small", "settings": {}, "weights": "w", "images": "i"}
METHODS = {
    "merge": ps.methods.Merge(blocks=None),
    "cover": ps.methods.Cover(),
    "drop": ps.methods.Drop(),
    "predict": ps.methods.Predict(epochs=2),
    "threshold": ps.methods.Predict(threshold=True, removed="drop", epochs=2),
    "ps": ps.methods.PS(step=4, tune_epochs=1),
    "tome": ps.methods.ToMe(),
}
FILES = {"config.json", "log.jsonl", "manifest.json", "metrics.json", "model.safetensors", "plan.json"}
OWN = {name: {"steps.safetensors"} for name in ("merge", "cover", "predict", "threshold")}
Made = dict[Path, dict[str, Any]]


def go(
    folder: Path, method: Any, ratios: list[float], listen: Listener = silent, started: dict[str, Any] = STARTED
) -> Made:
    """Runs of the small host, as `patchslim slim` makes them."""
    task = Task.of(make_host(), IMAGES, Target(macs=ratios[0], batch_size=8), batch_size=8, progress=listen)
    return make_runs(task, method, folder, started, ratios)


def plans(folder: Path, ratios: list[float] = RATIOS) -> list[bytes]:
    return [(folder / run_name(ratio) / "plan.json").read_bytes() for ratio in ratios]


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_a_run_holds_what_the_method_found(name: str, tmp_path: Path) -> None:
    model, run = make_host(), tmp_path / "run"
    ((folder, metrics),) = go(run, METHODS[name], [0.6]).items()
    slim = ps.load(run)
    expected = ps.slim(model, IMAGES, METHODS[name], macs=0.6, batch_size=8)
    assert folder == run
    assert torch.equal(slim(IMAGES), expected(IMAGES))
    assert slim.plan == expected.plan
    tuned = {"host.safetensors"} if name == "ps" else set()
    silence = {"log.jsonl"} if name == "tome" else set()  # a method that measures nothing has nothing to tell
    assert {path.name for path in run.iterdir()} == (FILES - silence) | OWN.get(name, tuned)
    weights = load_file(run / ("host.safetensors" if tuned else "model.safetensors"))
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    config = json.loads((run / "config.json").read_text())
    assert STARTED.items() <= config.items()
    assert metrics == json.loads((run / "metrics.json").read_text())
    assert metrics["method"] == METHODS[name].name
    assert (metrics["macs"], metrics["host_macs"]) == (ps.count_macs(slim), ps.count_macs(model))
    assert metrics["macs_ratio"] <= 0.6


@pytest.mark.parametrize("name", ["merge", "cover", "predict"])
def test_a_sweep_finds_what_single_runs_find(name: str, tmp_path: Path) -> None:
    metrics = go(tmp_path / "sweep", METHODS[name], RATIOS[::-1])
    assert list(metrics) == [tmp_path / "sweep" / run_name(ratio) for ratio in RATIOS]
    sweep = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert sweep == {"runs": {run.name: found for run, found in metrics.items()}}
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {*sweep["runs"], "sweep.json", "log.jsonl"}
    for ratio in RATIOS:
        alone = tmp_path / f"{ratio}"
        go(alone, METHODS[name], [ratio])
        assert (alone / "plan.json").read_bytes() == plans(tmp_path / "sweep", [ratio])[0]


@pytest.mark.parametrize(("name", "events"), [("merge", 3), ("merge", 12), ("cover", 5), ("predict", 8)])
def test_an_interrupted_sweep_goes_on_to_the_same_plans(name: str, events: int, tmp_path: Path) -> None:
    go(tmp_path / "whole", METHODS[name], RATIOS)
    folder = tmp_path / "cut"
    with pytest.raises(Interrupted):
        go(folder, METHODS[name], RATIOS, interrupt_after(events))
    assert (folder / "search" / "cache.jsonl").exists()
    with pytest.raises(ps.RunError, match="--resume"):
        check_runs_folder(folder, resume=False, sweep=True)
    check_runs_folder(folder, resume=True, sweep=True)
    with pytest.raises(ps.RunError, match=r"other weights \(w, now others\)"):
        go(folder, METHODS[name], RATIOS, started=STARTED | {"weights": "others"})
    go(folder, METHODS[name], RATIOS)
    assert plans(folder) == plans(tmp_path / "whole")
    assert not (folder / "search").exists()


def test_a_finished_run_in_an_interrupted_sweep_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ToMe remembers nothing, so what tells that there is something to go on with is the first run."""
    real = ps.methods.ToMe.fit

    def fit(self: ps.methods.ToMe, task: Task) -> Any:
        if task.target.macs == 0.6:
            raise Interrupted
        return real(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(ps.methods.ToMe, "fit", fit)
        with pytest.raises(Interrupted):
            go(tmp_path, METHODS["tome"], RATIOS)
    first = (tmp_path / "macs-0.8" / "plan.json").stat().st_mtime_ns
    check_runs_folder(tmp_path, resume=True, sweep=True)
    go(tmp_path, METHODS["tome"], RATIOS)
    assert (tmp_path / "macs-0.8" / "plan.json").stat().st_mtime_ns == first
    assert ps.SlimPlan.load(tmp_path / "macs-0.6" / "plan.json").provenance["macs_ratio"] <= 0.6


def test_what_is_finished_is_left_alone_and_a_sweep_takes_more_ratios(tmp_path: Path) -> None:
    first = go(tmp_path, METHODS["cover"], RATIOS)
    with pytest.raises(ps.RunError, match="already holds a sweep; go on with --resume"):
        check_runs_folder(tmp_path, resume=False, sweep=True)
    check_runs_folder(tmp_path, resume=True, sweep=True)
    before = (tmp_path / "macs-0.8" / "plan.json").stat().st_mtime_ns
    assert go(tmp_path, METHODS["cover"], RATIOS) == first
    assert (tmp_path / "macs-0.8" / "plan.json").stat().st_mtime_ns == before
    with pytest.raises(ps.RunError, match="other weights"):
        go(tmp_path, METHODS["cover"], RATIOS, started=STARTED | {"weights": "others"})
    more = go(tmp_path, METHODS["cover"], [0.8, 0.7, 0.6])
    assert list(more) == [tmp_path / run_name(ratio) for ratio in (0.8, 0.7, 0.6)]
    assert {run: more[run] for run in first} == first
    assert not (tmp_path / "search").exists()


def test_a_finished_run_is_read_and_checked(tmp_path: Path) -> None:
    ((_, first),) = go(tmp_path, METHODS["tome"], [0.6]).items()
    (tmp_path / "search").mkdir()  # a crash came between the plan and its removal
    assert list(go(tmp_path, METHODS["tome"], [0.6]).values()) == [first]
    assert not (tmp_path / "search").exists()
    with pytest.raises(ps.RunError, match=r"other model \(small, now large\)"):
        go(tmp_path, METHODS["tome"], [0.6], started=STARTED | {"model": "large"})
    (tmp_path / "metrics.json").write_text('{"seconds": "long"}')
    resealed(tmp_path)
    with pytest.raises(ps.RunError, match=r"metrics\.json is not valid: seconds: Input should be a valid number"):
        go(tmp_path, METHODS["tome"], [0.6])


@pytest.mark.parametrize("ratios", [[0.001], [0.8, 0.001]])
def test_a_ratio_out_of_reach_leaves_nothing_but_finished_runs(tmp_path: Path, ratios: list[float]) -> None:
    folder = tmp_path / "sweep"
    with pytest.raises(ps.BudgetError, match=r"0\.001"):
        go(folder, METHODS["cover"], ratios)
    left = {path.name for path in folder.iterdir()} if folder.exists() else set()
    assert left == ({run_name(0.8), "log.jsonl"} if len(ratios) > 1 else set())


def test_a_sweep_goes_on_past_a_ratio_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ps.methods.ToMe.fit

    def fit(self: ps.methods.ToMe, task: Task) -> Any:
        if task.target.macs == 0.7:
            raise ps.BudgetError("No plan has 0.7.")
        return real(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(ps.methods.ToMe, "fit", fit)
        for _ in range(2):  # what is finished is not made again
            with pytest.raises(ps.BudgetError, match=r"holds macs-0.8, macs-0.6, but macs-0.7 can't be had: No plan"):
                go(tmp_path, METHODS["tome"], [0.8, 0.7, 0.6])
            assert {path.name for path in tmp_path.iterdir()} <= {"macs-0.8", "macs-0.6", "log.jsonl"}
    first = (tmp_path / "macs-0.6" / "plan.json").stat().st_mtime_ns
    with pytest.raises(ps.RunError, match="already holds a sweep; go on with --resume"):
        check_runs_folder(tmp_path, resume=False, sweep=True)
    check_runs_folder(tmp_path, resume=True, sweep=True)
    assert len(go(tmp_path, METHODS["tome"], [0.8, 0.7, 0.6])) == 3
    assert (tmp_path / "macs-0.6" / "plan.json").stat().st_mtime_ns == first


def test_a_model_without_a_plan_makes_no_run(tmp_path: Path) -> None:
    with pytest.raises(ps.RunError, match="a model that no plan describes, so there is no run to write"):
        go(tmp_path / "run", ps.methods.VTP(epochs=1), [0.8])
    assert not (tmp_path / "run").exists()


def test_a_plan_names_the_weights_it_was_made_for(tmp_path: Path) -> None:
    go(tmp_path, METHODS["tome"], [0.6])
    found = json.loads((tmp_path / "plan.json").read_text())["provenance"]
    assert found["host_weights"] == weights_fingerprint(make_host())
    assert found["target"]["macs"] == 0.6


@pytest.mark.parametrize("name", ["merge", "ps"])
def test_whatever_changes_in_a_memory_changes_no_plan(name: str, tmp_path: Path) -> None:
    """Every file of an interrupted search is damaged here and there, or is another search's: told, or of no account."""
    whole, cut, other = (tmp_path / name for name in ("whole", "cut", "other"))
    go(whole, METHODS[name], [0.6])
    for folder, started, events in ((cut, STARTED, 12), (other, STARTED | {"images": "j"}, 9)):
        with pytest.raises(Interrupted):
            go(folder, METHODS[name], [0.6], interrupt_after(events), started)
    expected, draw, told = (whole / "plan.json").read_bytes(), random.Random(0), 0
    for path in sorted((cut / "search").iterdir()):
        good = path.read_bytes()
        bad = [changed(good, draw) for _ in range(4)] if good else []
        if (other / "search" / path.name).exists():
            bad.append((other / "search" / path.name).read_bytes())
        for data in bad:
            folder = tmp_path / "again"
            shutil.copytree(cut, folder)
            (folder / "search" / path.name).write_bytes(data)
            try:
                go(folder, METHODS[name], [0.6])
            except ps.PatchslimError:
                told += 1
            else:
                assert (folder / "plan.json").read_bytes() == expected
            shutil.rmtree(folder)
    assert told > 3


def changed(data: bytes, draw: random.Random) -> bytes:
    """Bytes with one other bit, a part of them zero, or without their end."""
    place = draw.randrange(len(data))
    bit = bytes([data[place] ^ 1 << draw.randrange(8)])
    return draw.choice([data[:place] + bit + data[place + 1 :], data[:place], data[:place] + bytes(len(data) - place)])


def test_a_run_that_lost_its_plan_is_told_and_not_made_anew(tmp_path: Path) -> None:
    """Its weights may be what a recovery has learnt."""
    run = tmp_path / "run"
    go(run, METHODS["drop"], [0.6])
    (run / "plan.json").rename(tmp_path / "kept.json")
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(ps.RunError, match=r"plan\.json is missing; restore it"):
        go(run, METHODS["drop"], [0.6])
    assert (run / "model.safetensors").read_bytes() == before
    (tmp_path / "kept.json").rename(run / "plan.json")
    assert go(run, METHODS["drop"], [0.6])[run]["seconds"] >= 0
