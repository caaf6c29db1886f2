"""Every command end to end on the smallest models, in seconds: the rows it writes, what it prints and refuses."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
from PIL import Image
from safetensors.torch import load_file
from typer import Typer
from typer.testing import CliRunner

import patchslim as ps
from benchmarks import __main__ as runner
from benchmarks import ablations
from benchmarks.accuracy import error_of
from benchmarks.inputs import read_methods
from benchmarks.rows import Row
from patchslim.cli.opening import open_model
from patchslim.data import tensor_images
from patchslim.errors import BudgetError, PatchslimError
from patchslim.exports import FORMATS
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS
from patchslim.measure import evaluate
from patchslim.methods import Fitted, Task, fit
from patchslim.search import Target
from small import PYRAMID, make_host, make_images, plan_of, read_by

ROOT = Path(__file__).parents[2]
OUT = ("--out", "rows")
DIGITS = ("--data", "digits:test", "--val", "digits:test", "--images", "12")
Run = Callable[..., tuple[list[Row], str]]


def test_accuracy_before_and_after_a_recovery(
    run: Run, small: tuple[str, ...], shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.accuracy.UNSEEN", 40)
    words = (*small, *DIGITS, "--limit", "30", "--methods", "drop,hvt,evit", "--target-macs", "0.6", *OUT)
    rows, _ = run("accuracy", *words, "--recover", "1", "--train", shard)
    host, drop, again, hvt, *_ = rows
    model = open_model("test_vit", Path(small[5]), img_size=64)
    images = ps.open_images("digits:test", model=model, limit=30, seed=0)
    assert (host.method, host.val_images, host.top1) == ("host", 30, evaluate(model, images).top1)
    assert [(row.method, row.recovery_epochs) for row in (drop, again)] == [("drop", None), ("drop", 1)]
    assert again.recovery_images == 24
    for row in (row for row in rows[1:] if row.reason is None):
        assert row.macs_ratio is not None
        assert 0.45 < row.macs_ratio <= 0.6
        assert row.lost == pytest.approx((host.top1 or 0) - (row.top1 or 0))
        assert (row.images, row.error_images, row.seed) == (12, 40, 0)
        assert (row.error or 0) > 0
    assert hvt.reason is None or "takes at least" in hvt.reason


def test_the_error_is_that_of_what_the_head_reads() -> None:
    model, images = make_host("mean"), make_images(9)
    slim = ps.apply(model, plan_of(model, PYRAMID))
    read, wanted = read_by(slim, images), read_by(model, images)
    apart = ((read - wanted).square().sum(dim=1) / wanted.square().sum(dim=1)).mean()
    assert error_of(slim, model, tensor_images(images)) == pytest.approx(float(apart.detach()), rel=1e-4)
    assert error_of(model, model, tensor_images(images)) == 0


def test_searches_do_not_share_what_they_found(run: Run, small: tuple[str, ...]) -> None:
    """Two methods that try the same counts must not take each other's errors."""
    words = ("accuracy", *small, *DIGITS, "--limit", "30", "--target-macs", "0.7", *OUT, "--methods")
    together, _ = run(*words, "cover,merge:blocks=none")
    (own,) = (row for row in together if row.method == "merge")
    alone, _ = run(*words, "merge:blocks=none")
    (other,) = (row for row in alone if row.method == "merge")
    assert (own.patches_per_block, own.error) == (other.patches_per_block, other.error)


def test_ablations_measure_the_variants_of_a_study(
    run: Run, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {chosen.name for study in ablations.STUDIES.values() for chosen in read_methods(study)}
    assert {"merge", "cover", "predict", "ps", "tome"} <= every
    monkeypatch.setitem(ablations.STUDIES, "paper", "ps:tune_epochs=0,uniform,radial")
    rows, _ = run("ablations", "paper", *small, *DIGITS, *OUT)
    found = [(row.method, row.settings) for row in rows[1:]]
    assert found == [("ps", {"tune_epochs": 0}), ("uniform", {}), ("radial", {})]


def test_search_tells_what_it_took(run: Run, small: tuple[str, ...]) -> None:
    (row,), _ = run("search", *small, "--data", "digits:test", "--images", "12", "--methods", "drop", *OUT)
    assert (row.question, row.images, row.image_size) == ("search", 12, 64)
    assert (row.search_seconds or 0) > 0
    assert (row.search_passes or 0) > 1
    assert (row.peak_memory_gib or 0) > 0.1
    assert row.patches_per_block is not None


def test_speed_of_hosts_and_drawn_models(run: Run, small: tuple[str, ...]) -> None:
    words = ("--dtype", "float32", "--mode", "eager", "--seconds", "0.01", "--batch-sizes", "1,2")
    rows, _ = run("speed", *small, *words, "--methods", "drop,tome", *OUT)
    assert [(row.method, row.batch_size) for row in rows] == [
        (name, size) for size in (1, 2) for name in ("host", "drop", "tome")
    ]
    for row in rows:
        assert row.modes is not None
        assert row.images_per_second == row.modes["eager"]
        assert row.image_size == 64
        host = next(own for own in rows if own.method == "host" and own.batch_size == row.batch_size)
        assert row.speedup == pytest.approx((row.images_per_second or 0) / (host.images_per_second or 1), rel=1e-2)
    _, shown = run("table", "speed", *OUT)
    assert len(re.findall(r"^\| `(?:drop|tome)` \| 64 \|", shown, flags=re.M)) == 4


def test_searched_counts_are_timed(run: Run, small: tuple[str, ...]) -> None:
    (found, *_), _ = run("accuracy", *small, *DIGITS, "--methods", "uniform", *OUT)
    rows, _ = run(
        "speed", *small, "--methods", "uniform", "--searched", "--batch-sizes", "1", "--seconds", "0.01", *OUT
    )
    searched, timed = (row for row in rows if row.method == "uniform")
    assert searched.patches_per_block == timed.patches_per_block
    assert found.method == "host"


@pytest.mark.usefixtures("run")  # an empty folder
def test_the_picture_of_the_house_is_a_command() -> None:
    done = CliRunner().invoke(runner.app, ["figures", "house", "--out", "house.png"], catch_exceptions=False)
    assert done.stdout == "house.png\n"  # no room without a place, no import back
    with Image.open("house.png") as picture:
        assert min(picture.size) > 800


def test_exported_files_say_what_pytorch_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.export.parity.FORMATS", {"torch-export": FORMATS["torch-export"]})
    words = ("--model", "digits_vit", "--checkpoint", str(DIGITS_WEIGHTS), *DIGITS, "--limit", "30")
    (row,), shown = run("export", "parity", *words, "--methods", "uniform", *OUT)
    assert (row.reason, row.val_images, row.point) == (None, 30, {"runtime": "torch-export"})
    assert row.values is not None
    assert row.values["max_difference"] < 1e-3
    assert "onnxruntime" in row.versions
    assert "| `uniform` | torch-export |" in shown


@pytest.mark.usefixtures("run")
def test_authors_code_wants_a_checkout() -> None:
    words = ["speed", "--model", "test_vit", "--tome", ".", "--methods", "tome", "--device", "cpu"]
    with pytest.raises(PatchslimError, match="holds no package tome"):
        CliRunner().invoke(runner.app, words, catch_exceptions=False)


# What a checkout has to offer: a patch that makes a model do less, the larger `r` is.
AUTHORS = """
class patch:
    @staticmethod
    def timm(model):
        def fewer(block, args):
            return (args[0][:, : max(1, args[0].shape[1] - model.r)],)
        model.blocks[0].register_forward_pre_hook(fewer)
"""


def test_authors_code_at_its_setting_within_the_macs(
    run: Run, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tome").mkdir()
    (tmp_path / "tome" / "__init__.py").write_text(AUTHORS)
    monkeypatch.setitem(sys.modules, "tome", None)  # restored afterwards, whatever the import puts there
    monkeypatch.delitem(sys.modules, "tome")
    words = (*small, "--tome", ".", "--target-macs", "0.6", *OUT, "--methods", "")
    timing = ("--dtype", "float32", "--mode", "eager", "--seconds", "0.01", "--batch-sizes", "2")
    rows, _ = run("speed", *words, *timing)
    rows, _ = run("accuracy", *words, *DIGITS, "--limit", "30")
    theirs = [row for row in rows if row.method == "ToMe as published"]
    assert [(row.question, row.target_macs) for row in theirs] == [("speed", 0.6), ("accuracy", 0.6)]
    for row in theirs:
        assert row.macs_ratio is not None
        assert 0.6 - 1 / 16 < row.macs_ratio <= 0.6  # of 17 tokens, one more would be too many
    assert theirs[0].speedup is not None
    assert (theirs[1].val_images, theirs[1].error) == (30, None)


def test_a_speedup_asked_for_is_judged_anew(run: Run, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(method: Any, task: Task) -> Fitted:
        if task.target.batch_size == 4:
            raise BudgetError("test_vit can't be made 1.5× as fast.")
        task.report["predicted"] = 1.4
        return fit(method, task.at(Target(macs=0.6)))

    monkeypatch.setattr("benchmarks.speedup.fit", quick)
    words = ("--batch-sizes", "2,4", "--images", "8", "--methods", "drop", "--seconds", "0.01", *OUT)
    rows, shown = run("speedup", *small, "--data", "digits:test", *words)
    two, four = rows
    assert (two.batch_size, two.values, two.point) == (2, {"predicted": 1.4}, {"asked": 1.5})
    assert (two.speedup or 0) > 0
    assert 0.5 < (two.macs_ratio or 0) <= 0.6
    assert (four.batch_size, four.reason, four.speedup) == (4, "test_vit can't be made 1.5× as fast.", None)
    assert "- `drop`: test_vit can't be made" in shown


def test_a_training_step_against_what_macs_promise(run: Run) -> None:
    words = ("--model", "test_vit", "--img-size", "64", "--device", "cpu", "--batch-size", "2", "--methods", "drop")
    rows, _ = run("training-speed", *words, "--target-macs", "0.6", "--seconds", "0.01", *OUT)
    assert [(row.method, row.point) for row in rows] == [
        (name, {"part": part}) for part in ("whole", "student") for name in ("host", "drop")
    ]
    ratio = rows[1].macs_ratio or 0
    for row, promised in zip(rows, (1, 4 / (1 + 3 * ratio), 1, 1 / ratio), strict=True):
        assert row.values is not None
        assert row.values["promised"] == pytest.approx(promised, abs=1e-4)
        assert row.values["share"] == pytest.approx((row.speedup or 0) / promised, abs=1e-3)


def test_training_the_digits_model(run: Run) -> None:
    _, shown = run("train", "digits", "--out", "w.safetensors", "--epochs", "1", "--limit", "128")
    assert "held-out top-1" in shown
    timm.create_model("digits_vit").load_state_dict(load_file("w.safetensors"))


def test_training_a_small_network_on_shards(run: Run, shard: str) -> None:
    words = ("--model", "lvvit_t", "--img-size", "32", "--classes", "4", "--epochs", "1", "--batch-size", "8")
    _, shown = run("train", "small", "--data", shard, *words, "--device", "cpu", "--out", "small")
    assert "held-out top-1" in shown
    assert json.loads(Path("small/metrics.json").read_text())["steps"] == 2
    trained = open_model("lvvit_t", Path("small/model.safetensors"), img_size=32)
    assert ps.inspect(trained).classes == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["speed", "--model", "test_vit", "--methods", "merg"], "did you mean merge?"),
        (["ablations", "colours", "--checkpoint", "w", *DIGITS[:4]], "There is no study 'colours'"),
        (["table", "prices"], "There is no question 'prices'"),
        (["paper", "table1", "--weights", "nothing"], "Weights are given as MODEL=FILE"),
        (["paper", "table1", "--also", "1.5"], "between 0 and 1"),
        (["paper", "table1", "--mode", "quick"], "There is no mode 'quick'"),
        (["paper", "table1", "--models", "resnet50"], "The table has no resnet50"),
        (["paper", "figures", "--figures", "pie"], "There is no figure 'pie'"),
        (["paper", "figures", "--rates", "1.0"], "between 0 and 1"),
        (["paper", "figures", "--model", "digits_vit", "--blocks", "7"], "blocks 1 to 6"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    with pytest.raises(SystemExit) as end:
        runner.main()
    shown = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2
    assert said in shown[-1]
    assert shown[-1].startswith("benchmarks: ")


def commands_in_docs() -> list[tuple[str, list[str]]]:
    """Every `python -m benchmarks …` of the pages for users, and its page."""
    pages = [*ROOT.glob("*.md"), ROOT / "results" / "README.md", *(ROOT / "docs").glob("*.md")]
    found = []
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"python -m benchmarks([^`\n]*)", text):
            found.append((page.name, shlex.split(line, comments=True)))
    return found


def sub_app(app: Typer, name: str) -> Typer | None:
    return next((group.typer_instance for group in app.registered_groups if group.name == name), None)


def test_commands_of_the_docs_are_real() -> None:
    """Their names and options are those of the runner."""
    commands = [(page, words) for page, words in commands_in_docs() if words and words[0] not in ("NAME", "…")]
    assert sum(page == "paper.md" for page, _ in commands) >= 5
    for page, words in commands:
        app, depth = runner.app, 0
        while depth < len(words) and (group := sub_app(app, words[depth])):
            app, depth = group, depth + 1
        if depth == len(words):
            continue
        assert words[depth] in {command.name for command in app.registered_commands}, (page, words)
        done = CliRunner().invoke(runner.app, [*words[: depth + 1], "--help"], env={"COLUMNS": "200"})
        assert all(word in done.stdout for word in words if word.startswith("--")), (page, words)


def test_the_module_runs() -> None:
    words = [sys.executable, "-m", "benchmarks", "table", "speed"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
