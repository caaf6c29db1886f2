"""Recovering a run folder: the teacher it finds, what it leaves behind, and what an interruption costs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.hosts.weights import weights_fingerprint
from patchslim.recover import RecoverConfig
from patchslim.runs import Request, make_run, recover_run
from patchslim.runs import recover as recovering
from patchslim.runs.folder import alone
from patchslim.runs.teacher import load_teacher
from small import make_host, make_images, plan_for

CONFIG = RecoverConfig(epochs=2, block_epochs=1, batch_size=8, learning_rate=1e-3, block_learning_rate=1e-3)
IMAGES = tensor_images(make_images(24))
CPU = torch.device("cpu")
FILES = {"config.json", "host.safetensors", "log.jsonl", "metrics.json", "model.safetensors", "plan.json"}


def slim_run(folder: Path, model: nn.Module | None = None, **settings: Any) -> nn.Module:
    """A run as `patchslim slim` makes it."""
    model = model or make_host()
    usual: dict[str, Any] = {"score": "impact", "target_macs": 0.5, "step": 4, "tune_epochs": 1, "batch_size": 8}
    config = ps.SearchConfig(**(usual | settings))
    started = {"settings": config.as_dict(), "weights": weights_fingerprint(model)}
    make_run(model, IMAGES, config, folder, started)
    return model


def go(run: Path, config: RecoverConfig = CONFIG, **request: Any) -> dict[str, Any]:
    return recover_run(Request(run, **request), IMAGES, config, CPU)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(a.state_dict()[name], tensor) for name, tensor in b.state_dict().items())


def test_a_tuned_run_keeps_its_host_as_the_teacher(tmp_path: Path) -> None:
    model = slim_run(tmp_path / "run")
    assert same(load_teacher(tmp_path / "run"), model)
    assert not same(ps.load(tmp_path / "run"), model)


def test_in_place(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = slim_run(run, tune_epochs=0)
    assert not (run / "host.safetensors").exists()
    before = ps.load(run)
    report = go(run)
    assert {path.name for path in run.iterdir()} == FILES
    metrics, config = (json.loads((run / name).read_text()) for name in ("metrics.json", "config.json"))
    assert metrics["recovery"] == report
    assert metrics["macs_ratio"] < 0.51
    assert config["recovery"]["images"] == {"count": 24, "fingerprint": IMAGES.fingerprint}
    assert config["recovery"]["settings"] == CONFIG.as_dict()
    assert not same(ps.load(run), before)
    assert same(load_teacher(run), model)
    assert report["after"]["loss"] < report["before"]["loss"]


def test_the_result_is_that_of_the_verb(tmp_path: Path) -> None:
    model = slim_run(tmp_path / "run")
    expected = ps.finetune(ps.load(tmp_path / "run"), model, IMAGES, CONFIG)
    go(tmp_path / "run")
    assert same(ps.load(tmp_path / "run"), expected)


def test_into_a_copy(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    slim_run(run)
    before = contents(run)
    go(run, out=out)
    assert contents(run) == before
    assert {path.name for path in out.iterdir()} == FILES
    assert "recovery" in json.loads((out / "config.json").read_text())
    with pytest.raises(ps.RunError, match="already holds a run"):
        go(run, out=out)


@pytest.mark.parametrize(("select", "file"), [("matched", "distance"), ("predicted", "predictor")])
def test_a_copy_has_what_its_patches_are_chosen_by(select: str, file: str, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    slim_run(run, select=select, score=None, tune_epochs=0)
    go(run, out=out)
    assert {path.name for path in out.iterdir()} == FILES | {f"{file}.safetensors"}
    go(run)
    assert same(ps.load(out), ps.load(run))


def test_a_second_recovery_has_to_be_meant(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = slim_run(run)
    first = go(run)
    with pytest.raises(ps.RunError, match="recovered already; recover it further with --again"):
        go(run)
    assert go(run, resume=True) == first
    with pytest.raises(ps.RunError, match=r"other settings \(epochs 2, now 5\)"):
        go(run, RecoverConfig(epochs=5), resume=True)
    again = go(run, again=True)
    assert again["before"] == pytest.approx(first["after"])
    assert same(load_teacher(run), model)
    with pytest.raises(ps.RunError, match="give one of them"):
        go(run, again=True, resume=True)


class Interrupted(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("where", ["epoch", "write_weights", "write_json"])
@pytest.mark.parametrize("copied", [False, True])
def test_an_interruption_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, copied: bool
) -> None:
    """A crash after an epoch, and one while the result takes the run's place."""
    slim_run(tmp_path / "run", tune_epochs=0)
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    go(tmp_path / "whole")
    run, out = tmp_path / "run", tmp_path / "out" if copied else None
    folder = out or run

    def crash(*args: Any) -> None:
        raise Interrupted

    def listen(event: Any) -> None:
        if event["event"] == where:
            raise Interrupted

    with monkeypatch.context() as patched:
        if where != "epoch":
            patched.setattr(recovering, where, crash)
        with pytest.raises(Interrupted):
            recover_run(Request(run, out), IMAGES, CONFIG, CPU, listen)
    ps.load(folder)
    with pytest.raises(ps.RunError, match=r"--resume"):
        go(run, out=out)
    go(run, out=out, resume=True)
    assert same(ps.load(folder), ps.load(tmp_path / "whole"))
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_failure_before_anything_is_learnt_leaves_nothing(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    slim_run(run)
    before = contents(run)
    labels = RecoverConfig(supervised_epochs=1)
    for request in (Request(run), Request(run, out)):
        with pytest.raises(ps.DataError, match="no labels"):
            recover_run(request, IMAGES, labels, CPU)
    assert contents(run) == before
    assert not out.exists()


def test_other_images_do_not_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slim_run(run)

    def listen(event: Any) -> None:
        if event["event"] == "epoch":
            raise Interrupted

    with pytest.raises(Interrupted):
        recover_run(Request(run), IMAGES, CONFIG, CPU, listen)
    others = tensor_images(make_images(24, seed=8))
    with pytest.raises(ps.RunError, match="other images"):
        recover_run(Request(run, resume=True), others, CONFIG, CPU)
    assert (run / "recovery" / "state.json").exists()
    go(run, again=True)
    assert not (run / "recovery").exists()


def test_the_judge_is_asked_before_and_after(tmp_path: Path) -> None:
    slim_run(tmp_path / "run")
    asked: list[nn.Module] = []

    def judge(model: nn.Module) -> dict[str, Any]:
        asked.append(model)
        return {"top1": float(len(asked))}

    report = recover_run(Request(tmp_path / "run"), IMAGES, CONFIG, CPU, judge=judge)
    assert report["val"] == {"before": {"top1": 1.0}, "after": {"top1": 2.0}}
    assert not same(asked[0], asked[1])


def test_a_saved_model_needs_its_teacher_named(tmp_path: Path) -> None:
    """`ps.save` knows nothing of the original weights."""
    model = make_host()
    ps.save(ps.apply(model, plan_for(model, "drop")[0]), tmp_path / "run")
    with pytest.raises(ps.RunError, match="with --teacher"):
        go(tmp_path / "run")
    save_file(model.state_dict(), tmp_path / "host.safetensors")
    go(tmp_path / "run", teacher=tmp_path / "host.safetensors")
    assert same(load_teacher(tmp_path / "run"), model)


def test_a_teacher_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    slim_run(tmp_path / "run")
    save_file(make_host(seed=5).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ps.CheckpointError, match="does not hold the weights that"):
        go(tmp_path / "run", teacher=tmp_path / "other.safetensors")
    save_file(make_host(depth=3).state_dict(), tmp_path / "short.safetensors")
    with pytest.raises(ps.CheckpointError, match="does not fit"):
        go(tmp_path / "run", teacher=tmp_path / "short.safetensors")
    with pytest.raises(ps.CheckpointError, match="There is no checkpoint"):
        go(tmp_path / "run", teacher=tmp_path / "none.safetensors")
    assert not (tmp_path / "run" / "recovery").exists()


def test_predictors_keep_their_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slim_run(run, select="predicted", tune_epochs=0, predictor_epochs=2)
    before = load_file(run / "predictor.safetensors")
    go(run)
    after = load_file(run / "predictor.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any("predictor" in name for name in load_file(run / "model.safetensors"))


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    slim_run(tmp_path / "run")
    slim_run(tmp_path / "other", target_macs=0.4)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    for out, words in (("file", "is no folder"), ("full", "something else than a run")):
        with pytest.raises(ps.RunError, match=words):
            go(tmp_path / "run", out=tmp_path / out)
    with pytest.raises(ps.RunError, match="holds another run"):
        go(tmp_path / "run", out=tmp_path / "other", resume=True)
    with pytest.raises(ps.RunError, match="There is no run folder"):
        go(tmp_path / "nothing")
    with pytest.raises(ps.RunError, match="holds no run"):
        go(tmp_path / "full")


def test_a_second_process_is_kept_out_and_does_no_harm(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slim_run(run)
    (run / "recovery").mkdir()
    with alone(run, "recovery"), pytest.raises(ps.RunError, match="Another process is working on"):
        go(run)
    assert (run / "recovery" / "lock").exists()
    go(run)
