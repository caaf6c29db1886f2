"""`slim --target-macs 0.8,0.6`: a run for each ratio out of one search, the same as made alone."""

import json
from pathlib import Path
from typing import Any

import pytest

import patchslim as ps
from commands import ON_CPU, SMALL, Run, ended_by_ctrl_c, refused, result
from patchslim.cli import terminal
from patchslim.cli.options import read_ratios
from patchslim.errors import BudgetError

SLIM = ("slim", *SMALL, "--method", "merge")


def test_every_ratio_gets_the_run_that_it_gets_alone(run: Run, tmp_path: Path) -> None:
    found = result(run, *SLIM, "--target-macs", "0.65,0.8", "--out", "sweep")
    assert found.keys() == {"sweep", "runs"}
    assert [own["run"] for own in found["runs"]] == ["sweep/macs-0.8", "sweep/macs-0.65"]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [
        *("log.jsonl", "macs-0.65", "macs-0.8", "sweep.json")
    ]
    saved = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["runs"]
    for own, ratio in zip(found["runs"], ("0.8", "0.65"), strict=True):
        alone = result(run, *SLIM, "--target-macs", ratio, "--out", f"alone-{ratio}")
        for name in ("plan.json", "steps.safetensors", "model.safetensors"):
            one, other = (tmp_path / folder / name for folder in (own["run"], f"alone-{ratio}"))
            assert one.read_bytes() == other.read_bytes(), name
        assert own["macs"] == alone["macs"] == ps.count_macs(ps.load(tmp_path / own["run"]))
        assert {"run": own["run"]} | saved[f"macs-{ratio}"] == own


def test_an_interrupted_sweep_goes_on_and_a_finished_one_is_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, seen = (*SLIM, "--target-macs", "0.8,0.65", "--out"), [0]
    doing, words = terminal.DOING["candidate"]

    def interrupted(told: Any) -> str:
        seen[0] += (tmp_path / "cut" / "macs-0.8" / "plan.json").exists()  # in the middle of the second ratio
        if seen[0] == 3:
            raise KeyboardInterrupt
        return words(told)

    with monkeypatch.context() as patch:
        patch.setitem(terminal.DOING, "candidate", (doing, interrupted))
        ended_by_ctrl_c(run(*command, "cut"), "slim")
    assert not (tmp_path / "cut" / "sweep.json").exists()
    refused(run(*command, "cut"), "already holds a sweep; go on with --resume")
    assert run(*command, "cut", "--resume")[0] == 0
    assert run(*command, "whole")[0] == 0
    for ratio in ("macs-0.8", "macs-0.65"):
        one, other = (tmp_path / name / ratio / "plan.json" for name in ("cut", "whole"))
        assert one.read_bytes() == other.read_bytes()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut").glob("*/plan.json")}
    refused(run(*command, "cut"), "cut already holds a sweep; go on with --resume")
    assert len(result(run, *command, "cut", "--resume")["runs"]) == 2
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "cut").glob("*/plan.json")}
    refused(run(*command, "cut", "--resume", "--seed", "1"), "started with other search (seed 0, now 1)")


def test_a_ratio_out_of_reach_leaves_the_finished_ones_whole(run: Run, tmp_path: Path) -> None:
    """A method that only finds out as it goes; others say so before they begin."""
    refused(run("slim", *SMALL, "--method", "evit", "--target-macs", "0.8,0.1", "--out", "a"), "EViT takes at least")
    assert {path.name for path in (tmp_path / "a").iterdir()} <= {"macs-0.8", "log.jsonl"}
    assert result(run, "inspect", "a/macs-0.8")["patches"] == 16
    for command in ("finetune", "eval", "export", "slim"):
        more = ("--format", "onnx") if command == "export" else ON_CPU
        refused(run(command, "a", *more), "a holds several runs; give one of them: a/macs-0.8")


@pytest.mark.parametrize("command", ["slim", "compare"])
@pytest.mark.parametrize(
    ("ratios", "words"),
    [("0.8,nan", "between 0 and 1"), ("0.8,1", "between 0 and 1"), ("0.8,0.80", "0.8 is given twice; leave one out")],
)
def test_bad_ratios_are_refused_before_any_work(
    command: str, ratios: str, words: str, run: Run, tmp_path: Path
) -> None:
    more = ("--val", "digits:test", "--methods", "tome") if command == "compare" else ("--method", "tome")
    refused(run(command, *SMALL, *more, "--target-macs", ratios, "--out", "a"), words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "ratios"), [(None, []), ("0.6", [0.6]), ("0.5,0.7, 0.6", [0.7, 0.6, 0.5])])
def test_ratios_are_read_with_commas_between(text: str | None, ratios: list[float]) -> None:
    assert read_ratios(text) == ratios


@pytest.mark.parametrize("text", ["", "abc", "0.5;0.6", "0.5,"])
def test_what_is_not_a_ratio_is_told(text: str) -> None:
    with pytest.raises(BudgetError, match="not a MAC ratio"):
        read_ratios(text)
