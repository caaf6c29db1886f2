"""Recovering a run folder: the teacher it finds, what it leaves behind, and what an interruption costs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.folder import alone
from patchslim.hosts.weights import weights_fingerprint
from patchslim.methods import Task
from patchslim.recover import RecoverConfig
from patchslim.runs import manifest
from patchslim.runs.make import make_runs
from patchslim.runs.recover import Request, recover_run
from patchslim.runs.store import load_teacher
from patchslim.search import Target
from power import Interrupted
from small import make_host, make_images, plan_for

RATE = 1e-3
CONFIG = RecoverConfig(2, 1, batch_size=8, learning_rate=RATE, block_learning_rate=RATE, vector_factor=3.0)
IMAGES = tensor_images(make_images(24))
CPU = torch.device("cpu")
ALWAYS = {"config.json", "log.jsonl", "manifest.json", "metrics.json", "model.safetensors", "plan.json"}
FILES = ALWAYS | {"host.safetensors"}


TUNED, UNTUNED = (ps.methods.PS(step=4, tune_epochs=epochs) for epochs in (1, 0))


def slim_run(folder: Path, method: Any = TUNED, macs: float = 0.5) -> nn.Module:
    """A run as `patchslim slim` makes it; returns the original network."""
    model = make_host()
    task = Task.of(model, IMAGES, Target(macs=macs), batch_size=8)
    make_runs(task, method, folder, {"weights": weights_fingerprint(model)})
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
    model = slim_run(run, UNTUNED)
    assert not (run / "host.safetensors").exists()
    before = ps.load(run)
    report = go(run)
    assert {path.name for path in run.iterdir()} == FILES
    metrics, config = (json.loads((run / name).read_text()) for name in ("metrics.json", "config.json"))
    assert metrics["recovery"] == report
    assert metrics["macs_ratio"] < 0.51
    assert config["recovery"]["images"] == {"count": 24, "fingerprint": IMAGES.fingerprint}
    assert config["recovery"]["settings"] == CONFIG.decisive()
    assert report["settings"] == CONFIG.as_dict()
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


@pytest.mark.parametrize(
    ("method", "learns"),
    [(ps.methods.Merge(), False), (ps.methods.Predict(epochs=2), False), (ps.methods.HVT(), True)],
)
def test_what_steps_own_goes_with_the_run(method: Any, learns: bool, tmp_path: Path) -> None:
    """Distances and G stay as the plan has them; what no plan has a fingerprint of, HVT's positions, learns."""
    run, out = tmp_path / "run", tmp_path / "out"
    model = slim_run(run, method, 0.7)
    before, expected = load_file(run / "steps.safetensors"), ps.finetune(ps.load(run), model, IMAGES, CONFIG)
    report = go(run, out=out)
    names = (FILES if report["changed"] else ALWAYS) | {"steps.safetensors"}
    assert {path.name for path in out.iterdir()} == names
    after = load_file(out / "steps.safetensors")
    assert all(torch.equal(before[name], after[name]) != learns for name in before)
    assert not any(".step." in name for name in load_file(out / "model.safetensors"))
    go(run)
    assert same(ps.load(out), expected)
    assert same(ps.load(run), expected)


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


@pytest.mark.parametrize(
    ("method", "macs", "replaced"),
    [(UNTUNED, 0.5, None), (UNTUNED, 0.5, 0), *((ps.methods.HVT(), 0.7, files) for files in (5, 8))],
)
@pytest.mark.parametrize("copied", [False, True])
def test_an_interruption_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, macs: float, replaced: int | None, copied: bool
) -> None:
    """A crash after an epoch, and one while the result takes the run's place: the run is the old or the new one."""
    slim_run(tmp_path / "run", method, macs)
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    before, after = ps.load(tmp_path / "run"), go(tmp_path / "whole")
    assert not same(ps.load(tmp_path / "whole"), before)
    run, out = tmp_path / "run", tmp_path / "out" if copied else None
    folder, place, put = out or run, Path.replace, manifest.put_files

    def crash(*args: Any) -> None:
        left = iter(range(replaced or 0))

        def replace_few(path: Path, target: Path) -> Path:
            if next(left, None) is None:
                raise Interrupted
            return place(path, target)

        with monkeypatch.context() as inner:
            inner.setattr(Path, "replace", replace_few)
            put(*args)

    def listen(event: Any) -> None:
        if replaced is None and event["event"] == "epoch":
            raise Interrupted

    with monkeypatch.context() as patched:
        if replaced is not None:
            patched.setattr("patchslim.runs.store.put_files", crash)
        with pytest.raises(Interrupted):
            recover_run(Request(run, out), IMAGES, CONFIG, CPU, listen)
    found = ps.load(folder)
    assert same(found, before) or same(found, ps.load(tmp_path / "whole"))
    with pytest.raises(ps.RunError, match=r"--resume"):
        go(run, out=out)
    assert go(run, out=out, resume=True)["after"] == after["after"]
    assert same(ps.load(folder), ps.load(tmp_path / "whole"))
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


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


def test_a_recovery_that_learnt_nothing_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """No `--again` is asked for next time, and the original weights need not be kept twice."""
    run = tmp_path / "run"
    slim_run(run, UNTUNED)
    weights = (run / "model.safetensors").read_bytes()
    worse = RecoverConfig(1, 0, batch_size=8, learning_rate=0.5, vector_factor=1.0, ema=0.0)
    first = go(run, worse)
    assert not first["changed"]
    assert (run / "model.safetensors").read_bytes() == weights
    assert not (run / "host.safetensors").exists()
    assert go(run, worse, resume=True) == first
    assert go(run)["changed"]
    with pytest.raises(ps.RunError, match="recovered already"):
        go(run)


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


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    slim_run(tmp_path / "run")
    slim_run(tmp_path / "other", macs=0.4)
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
    with alone(run / "recovery", run), pytest.raises(ps.RunError, match="Another process is working on"):
        go(run)
    assert (run / "recovery" / "lock").exists()
    go(run)


def test_a_copy_that_was_killed_while_it_was_made_is_begun_anew(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    slim_run(run)
    (out / "recovery").mkdir(parents=True)
    (out / "recovery" / "started.json").write_text('{"settings": "others"}')
    (out / "model.safetensors").write_bytes(b"half")
    go(run, out=out, resume=True)
    assert same(ps.load(out), ps.finetune(ps.load(run), load_teacher(run), IMAGES, CONFIG))
    (out / "plan.json").unlink()  # nobody was at work here
    with pytest.raises(ps.RunError, match="an unfinished run"):
        go(run, out=out)


def test_an_interrupted_recovery_goes_on_with_less_memory(tmp_path: Path) -> None:
    run, heard = tmp_path / "run", [0]
    slim_run(run)
    shutil.copytree(run, tmp_path / "whole")

    def listen(event: Any) -> None:
        heard[0] += event["event"] == "reconstructed"
        if heard[0] == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        recover_run(Request(run), IMAGES, CONFIG, CPU, listen)
    go(run, replace(CONFIG, cache_gib=0.0), resume=True)
    go(tmp_path / "whole")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
