"""The one command for a GPU, here on a CPU: its parts keep to their limits, and nothing is timed beside others."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as runner
from benchmarks import gpu
from benchmarks.gpu import Part, run
from benchmarks.rows import read_rows
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS

ROOT = Path(__file__).parents[2]
WAITS = """
from pathlib import Path
from benchmarks.speed import holding
Path("asks").touch()
with holding(Path("turn"), alone=True):
    Path("seen").write_text(str(Path("done").exists()))
"""
WORKS = """
import time
from pathlib import Path
while not Path("asks").exists():
    time.sleep(0.05)
time.sleep(1)  # a timing that does not wait would be through by now
Path("done").touch()
print("made")
raise SystemExit(3)
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_parts_have_limits_and_timings_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    parts = [
        Part("works", python(WORKS), 60),
        Part("endless", python("import time; time.sleep(600)"), 1),
        Part("times", python(WAITS), 60, times=True),
    ]
    run(parts, tmp_path, tmp_path / "turn")
    shown = capsys.readouterr().err
    assert "works: exit code 3" in shown
    assert "endless: stopped" in shown
    assert "times: exit code 0" in shown
    assert (tmp_path / "seen").read_text() == "True"  # it waited for the part that works
    assert (tmp_path / "works.log").read_text() == "made\n"


def test_one_command_keeps_the_rows_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SEARCHED", "uniform")
    monkeypatch.setattr(gpu, "TIMED", "drop")
    monkeypatch.setattr(gpu, "LARGE", ("--model", "test_vit", "--img-size", "64", "--batch-sizes", "2"))
    monkeypatch.setattr(gpu, "KERNELS", ["-c", "print('no GPU here')"])
    words = ["gpu", "--checkpoint", str(DIGITS_WEIGHTS), "--model", "digits_vit", "--images", "12", "--device", "cpu"]
    words += ["--data", "digits:test", "--val", "digits:test", "--recover", "0", "--seconds", "0.01"]
    done = CliRunner().invoke(runner.app, [*words, "--out", str(tmp_path)])
    logs = "".join(path.read_text() for path in tmp_path.glob("logs/*.log"))
    assert done.exit_code == 0, logs
    found = {(row.question, row.model, row.method, row.batch_size) for row in read_rows(tmp_path)}
    timed = {("speed", "digits_vit", 256), ("speed", "digits_vit", 1), ("speed", "test_vit", 2)}
    speeds = {(question, model, name, size) for question, model, size in timed for name in ("host", "drop")}
    assert found == {("accuracy", "digits_vit", name, None) for name in ("host", "uniform")} | speeds, logs
