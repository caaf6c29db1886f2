"""Every command end to end on the smallest models, in seconds: rows of the schema, tables, what is missing."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer import Typer
from typer.testing import CliRunner

import patchslim as ps
from benchmarks import __main__ as runner
from benchmarks import ablations
from benchmarks.paper import published
from benchmarks.paper.published import BASELINE, DPS, PS, Published
from benchmarks.rows import Row, read_rows
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS
from patchslim.measure import evaluate

ROOT = Path(__file__).parents[2]
DIGITS = ("--data", "digits:train", "--val", "digits:test", "--images", "12", "--limit", "30")
WEIGHED = ("--model", "digits_vit", "--checkpoint", str(DIGITS_WEIGHTS), *DIGITS)
TINY = "digits_vit"
QUICK = ("--bench-batch-size", "1", "--bench-dtype", "float32", "--seconds", "0.01", "--device", "cpu")
Run = Callable[..., tuple[list[Row], str]]  # words → the rows it wrote, what it printed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the runner in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[list[Row], str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        done = CliRunner().invoke(runner.app, [*words, "--out", "out"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return list(read_rows(tmp_path / "out")), done.stdout

    return call


def test_accuracy_before_and_after_a_recovery(run: Run) -> None:
    rows, _ = run("accuracy", *WEIGHED, "--methods", "drop,tome,evit", "--recover", "1", "--train", "digits:test")
    host, *others = rows
    model = timm.create_model("digits_vit", pretrained=True).eval()
    images = ps.open_images("digits:test", model=model, limit=30, seed=0)
    assert (host.method, host.val_images, host.top1) == ("host", 30, evaluate(model, images).top1)
    assert [(row.method, row.recovery_epochs) for row in others] == [
        (name, epochs) for name in ("drop", "tome", "evit") for epochs in (None, 1)
    ]
    for row in others:
        assert row.macs_ratio is not None
        assert 0.5 < row.macs_ratio <= 0.55
        assert row.lost == pytest.approx((host.top1 or 0) - (row.top1 or 0))
        assert 0 < (row.error or 0) < 0.2
        assert (row.images, row.error_images, row.seed) == (12, 500, 0)


def test_searches_do_not_share_what_they_found(run: Run) -> None:
    """Two methods that try the same counts must not take each other's errors."""
    together, _ = run("accuracy", *WEIGHED, "--methods", "cover,merge:blocks=none", "--target-macs", "0.7")
    alone, _ = run("accuracy", *WEIGHED, "--methods", "merge:blocks=none", "--target-macs", "0.7", "--out", "alone")
    found = [next(row for row in rows if row.method == "merge") for rows in (together, alone)]
    assert found[0].patches_per_block == found[1].patches_per_block
    assert found[0].error == found[1].error


def test_ablations_measure_the_variants_of_a_study(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"blocks", "predict", "paper"} <= set(ablations.STUDIES)
    monkeypatch.setitem(ablations.STUDIES, "paper", "ps:tune_epochs=0,uniform,radial")
    rows, _ = run("ablations", "paper", *WEIGHED[:-2])
    assert [(row.method, row.settings) for row in rows[1:]] == [
        ("ps", {"tune_epochs": 0}),
        ("uniform", {}),
        ("radial", {}),
    ]


def test_search_tells_what_it_took(run: Run) -> None:
    ((row),), _ = run("search", *WEIGHED[:-4], "--images", "12", "--methods", "drop")
    assert row.question == "search"
    assert (row.search_seconds or 0) > 0
    assert (row.search_passes or 0) > 1
    assert (row.peak_memory_gib or 0) > 0.1
    assert row.patches_per_block is not None


def test_speed_of_hosts_and_drawn_models(run: Run) -> None:
    small = ("--model", "test_vit", "--img-size", "64", "--dtype", "float32", "--mode", "eager", "--seconds", "0.01")
    rows, _ = run("speed", *small, "--batch-sizes", "1,2", "--methods", "drop,tome", "--device", "cpu")
    assert [(row.method, row.batch_size) for row in rows] == [
        (name, size) for size in (1, 2) for name in ("host", "drop", "tome")
    ]
    for row in rows:
        assert row.modes is not None
        assert row.images_per_second == row.modes["eager"]
        assert row.image_size == 64
        host = next(own for own in rows if own.method == "host" and own.batch_size == row.batch_size)
        assert row.speedup == pytest.approx((row.images_per_second or 0) / (host.images_per_second or 1), rel=1e-2)
    shown = CliRunner().invoke(runner.app, ["table", "speed", "--out", "out"], catch_exceptions=False).stdout
    assert len(re.findall(r"^\| `(?:drop|tome)` \| 64 \|", shown, flags=re.M)) == 4


@pytest.fixture
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's tables with one small model."""
    first = (
        Published(TINY, 99.0, 0.05, top5=100.0, throughput=100, gain=0.0),
        Published(TINY, 90.0, 0.03, "HVT", 99.0, 40.0, throughput=140, gain=40.0),
        Published(TINY, 98.0, 0.03, PS, 99.0, 40.0, throughput=150, gain=50.0),
    )
    second = (
        Published(TINY, 99.0, 0.05, name="Digits"),
        Published(TINY, 98.0, 0.03, DPS, host_gmacs=0.05, name="DPS-Digits"),
        Published("swin_s3_tiny_224", 80.0, 4.7, name="Swin"),
    )
    tables = {"table1": first, "table2": second, "table3": (first[0], first[2])}
    monkeypatch.setattr(published, "printed", tables.get)
    monkeypatch.setattr("benchmarks.paper.text.printed", tables.get)
    monkeypatch.setattr("benchmarks.paper.picture.printed", tables.get)
    monkeypatch.setitem(published.BESIDE, "table1", ("tome",))
    assert all(row.method == BASELINE for row in (first[0], second[0]))


@pytest.mark.usefixtures("one_model")
def test_the_papers_table_without_weights(run: Run) -> None:
    rows, shown = run("paper", "table1", *QUICK)
    assert [(row.method, row.target_macs) for row in rows] == [
        *(("host", None), ("hvt", 0.6), ("ps", 0.6), ("drop", 0.6), ("tome", 0.6)),
    ]
    for row in rows[1:]:
        assert row.top1 is None
        assert row.macs_ratio is not None
        assert 0.5 < row.macs_ratio <= 0.6
        assert (row.images_per_second or 0) > 0
    assert f"| `hvt` | 0.6 (0.03 G) | 90.0 (-9.0) | 140 (1.40×) | {rows[1].macs_ratio:.3f} |" in shown
    assert Path("out/pictures/paper_table1.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("one_model")
def test_the_papers_table_with_weights_and_a_recovery(run: Run) -> None:
    weights = f"{TINY}={DIGITS_WEIGHTS}"
    words = ("paper", "table3", "--models", TINY, "--weights", weights, *DIGITS, *QUICK, "--recover", "1")
    rows, shown = run(*words, "--train", "digits:test")
    assert [(row.method, row.recovery_epochs) for row in rows] == [
        *(("host", None), ("ps", None), ("ps", 1), ("drop", None), ("drop", 1)),
    ]
    host, untuned = rows[0], rows[1]
    assert (untuned.settings, untuned.val_images, untuned.images) == ({"tune_epochs": 0}, 30, 12)
    assert untuned.lost == pytest.approx((host.top1 or 0) - (untuned.top1 or 0))
    assert (untuned.lost_low or 0) <= untuned.lost <= (untuned.lost_high or 0)
    assert shown.count("| `drop` |") == 2
    kept = {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")}
    assert len(kept) == 3
    again, _ = run(*words, "--train", "digits:test", "--resume")
    assert [row.top1 for row in again] == [row.top1 for row in rows]
    assert {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")} == kept


@pytest.mark.usefixtures("one_model")
def test_table_2_has_models_that_cannot_be_slimmed(run: Run) -> None:
    words = ("--weights", f"{TINY}={DIGITS_WEIGHTS}", "--val", "digits", "--limit", "30")
    rows, shown = run("paper", "table2", *words, *QUICK)
    assert [(row.model, row.method) for row in rows] == [
        *((TINY, "host"), (TINY, "dps"), (TINY, "predict"), (TINY, "merge"), ("swin_s3_tiny_224", "host")),
    ]
    swin = timm.create_model("swin_s3_tiny_224")
    assert rows[-1].parameters == sum(weight.numel() for weight in swin.parameters())
    assert (rows[-1].images_per_second or 0) > 0
    assert "| DPS-Digits | `digits_vit` | `dps` | 0.6 (0.03 G) | 98.0 (-1.0) |" in shown


@pytest.mark.usefixtures("one_model")
def test_throughput_times_each_network_once(run: Run) -> None:
    rows, _ = run("paper", "throughput", "--models", TINY, *QUICK)
    assert [row.method for row in rows] == ["host", "hvt", "ps", "tome", "dps", "predict", "merge"]
    assert {row.question for row in rows} == {"paper-throughput"}


def test_pictures_of_the_docs_are_commands(run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(runner.app, ["figures", "house", "--out", "house.png"], catch_exceptions=False)
    assert done.stdout == "house.png\n"  # no room without a place, no import back
    with Image.open("house.png") as picture:
        assert min(picture.size) > 800
    assert run  # in an empty folder


def test_exported_files_say_what_pytorch_says(run: Run) -> None:
    words = ("export", "parity", *WEIGHED, "--methods", "drop", "--target-macs", "0.7")
    rows, _ = run(*words)
    assert [(row.point or {})["runtime"] for row in rows] == ["onnx", "torch-export", "openvino"]
    for row in rows:
        assert (row.reason, row.val_images) == (None, 30)
        assert row.values is not None
        assert row.values["max_difference"] < 1e-3
        assert "onnxruntime" in row.versions


def test_peers_want_a_checkout(run: Run, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(
        runner.app, ["peers", "speed", "--model", "test_vit", "--tome", ".", "--methods", "tome"]
    )
    assert "holds no package tome" in str(wrong.exception)


def test_training_the_digits_model(run: Run) -> None:
    model = timm.create_model("digits_vit")
    words = ["train", "digits", "--out", "w.safetensors", "--epochs", "1", "--limit", "128"]
    done = CliRunner().invoke(runner.app, words, catch_exceptions=False)
    assert "held-out top-1" in done.stdout
    model.load_state_dict(ps.hosts.weights.read_weights(Path("w.safetensors")))  # type: ignore[attr-defined]
    assert run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["accuracy", *WEIGHED, "--methods", "merg"], "did you mean merge?"),
        (["ablations", "colours", *WEIGHED[:-2]], "There is no study 'colours'"),
        (["table", "prices"], "There is no question 'prices'"),
        (["paper", "table1", "--weights", "nothing"], "Weights are given as MODEL=FILE"),
        (["paper", "table1", "--also", "1.5"], "between 0 and 1"),
        (["paper", "table1", "--mode", "quick"], "There is no mode quick"),
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
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "results" / "README.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    found = []
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"python -m benchmarks([^`\n]*)", text):
            found.append((page.name, shlex.split(line, comments=True)))
    return found


def test_commands_of_the_docs_are_real() -> None:
    """Their names and options are those of the runner."""
    commands = commands_in_docs()
    assert sum(page == "paper.md" for page, _ in commands) >= 5
    for page, words in commands:
        app: Typer = runner.app
        names = [word for word in words if not word.startswith("-")]
        while names and names[0] != "NAME" and (group := sub_app(app, names[0])):
            app, names = group, names[1:]
        known = {command.name: command for command in app.registered_commands}
        if not names or names[0] == "NAME":
            continue
        assert names[0] in known, (page, words)
        done = CliRunner().invoke(runner.app, [*words[: words.index(names[0]) + 1], "--help"], env={"COLUMNS": "200"})
        assert all(word in done.stdout for word in words if word.startswith("--")), (page, words, done.stdout)


def sub_app(app: Typer, name: str) -> Typer | None:
    return next((group.typer_instance for group in app.registered_groups if group.name == name), None)


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "table", "speed"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert torch.get_num_threads() >= 1
    assert save_file
