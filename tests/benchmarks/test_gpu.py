"""The commands for a GPU, here on a CPU: parts keep to their limits, nothing is timed beside others, every part is a
real command."""

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from benchmarks import __main__ as runner
from benchmarks import gpu
from benchmarks.parts import Part, run
from benchmarks.rows import read_rows
from benchmarks.speed import made_ready, mark_of
from patchslim.errors import PatchslimError
from patchslim.timing import Contest

ROOT = Path(__file__).parents[2]
WAITS = """
import sys
from pathlib import Path
from benchmarks.speed import holding
Path("asks").touch()
with holding(Path(sys.argv[2]), alone=True):
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
# It starts another process, as compilers do, and both would go on for long.
ENDLESS = """
import subprocess, sys
from pathlib import Path
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("other").write_text(str(other.pid))
other.wait()
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def running(process: int) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_parts_have_limits_and_timings_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    parts = [
        Part("works", python(WORKS), 60),
        Part("endless", python(ENDLESS), 2),
        Part("unready", python("import time; time.sleep(600)"), 60, times=True, ready=1),
        Part("times", python(WAITS), 60, times=True),
    ]
    run(parts, tmp_path / "logs")
    shown = capsys.readouterr().err
    assert "works: exit code 3" in shown
    assert "endless: stopped after" in shown
    assert "unready: stopped, as its models were not ready, after" in shown
    assert "times: exit code 0" in shown
    assert (tmp_path / "seen").read_text() == "True"  # it waited for the part that works
    assert (tmp_path / "logs" / "works.log").read_text() == "made\n"
    end = time.monotonic() + 10
    while running(int((tmp_path / "other").read_text())) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(int((tmp_path / "other").read_text()))


class Broken(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of shape")


def test_a_model_that_fails_or_comes_late_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    contest, batch = Contest(["eager"]), torch.zeros(1, 3)
    models = {"host": nn.Identity(), "broken": Broken(), "slim": nn.Identity()}
    assert list(made_ready(contest, models, batch)) == ["host", "slim"]
    assert "broken: out of shape" in capsys.readouterr().err
    assert list(made_ready(contest, models, batch, last=-math.inf)) == ["host"]
    with pytest.raises(RuntimeError, match="out of shape"):
        made_ready(contest, {"host": Broken(), "slim": nn.Identity()}, batch)


def test_one_command_keeps_the_rows_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LARGE_CASES", [("test_vit", 64, 2, 0.6, False, False)])
    monkeypatch.setattr(gpu, "OURS", "drop")
    monkeypatch.setattr(gpu, "KERNELS", ["-c", "print('no GPU here')"])
    words = ["gpu", "large", "--device", "cpu", "--seconds", "0.01", "--limit", "120", "--out", str(tmp_path)]
    done = CliRunner().invoke(runner.app, words)
    logs = "".join(path.read_text() for path in tmp_path.glob("logs/*.log"))
    assert done.exit_code == 0, logs
    found = [(row.question, row.model, row.method, row.image_size, row.batch_size) for row in read_rows(tmp_path)]
    assert found == [("speed", "test_vit", name, 64, 2) for name in ("host", "drop")], logs
    assert "no GPU here" in logs
    assert not list((tmp_path / "logs").glob(mark_of(Path("turn"), 0).name[:-1] + "*"))  # marks are gone


def test_every_part_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of all parts are real; each timing has room to be ready, and whoever is left is stopped in time."""
    every: list[Part] = []

    def collect(parts: Sequence[Part], logs: Path) -> None:
        every.extend(parts)

    monkeypatch.setattr(gpu, "run", collect)
    given = ["--checkpoint", "w", "--data", "d"]
    for words in (["small"], ["large"], ["picture"], ["asked", *given], ["accuracy", *given, "--val", "v"]):
        tome = [] if words[0] == "asked" else ["--tome", "t"]
        assert CliRunner().invoke(runner.app, ["gpu", *words, *tome], catch_exceptions=False).exit_code == 0
    assert len({part.name for part in every}) == len(every)
    before = len(every)
    CliRunner().invoke(runner.app, ["gpu", "small", "--tome", "t", "--only", "base,-1-"], catch_exceptions=False)
    assert before < len(every) < 1.5 * before
    del every[before:]
    with pytest.raises(PatchslimError, match=r"No part's name holds 'ours-x'; they are deit_tiny"):
        CliRunner().invoke(runner.app, ["gpu", "small", "--only", "ours-x"], catch_exceptions=False)
    timings = [part for part in every if part.times]
    assert len(timings) >= 30
    for part in every:
        assert part.seconds <= 540
        start = list(part.words).index("benchmarks") + 1 if "benchmarks" in part.words else None
        if start is not None:
            done = CliRunner().invoke(runner.app, [*part.words[start:], "--help"], catch_exceptions=False)
            assert done.exit_code == 0, (part.words, done.output)
    assert all(part.ready <= 0.7 * part.seconds for part in timings)
    everything = " ".join(word for part in every for word in part.words)
    for word in ("merge:blocks=2,tome", "--tome t", "518", "448", "--searched", "--recover 30", "speedup"):
        assert word in everything
