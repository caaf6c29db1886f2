"""Fixtures for all test rooms."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: its kernels then run on a CPU, slowly

import pytest
import torch

from commands import Run, call
from small import KINDS

# Networks here are so small that a second thread costs more than it brings.
torch.set_num_threads(1)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of small host in turn."""
    return str(request.param)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call the command line in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run_in_folder(*words: str) -> tuple[int, str, str]:
        code = call(*words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_in_folder
