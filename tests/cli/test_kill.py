"""`kill -9`, SIGTERM or Ctrl-C amid a search, a comparison or a recovery, then `--resume`: the same bytes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import patchslim as ps
from commands import ON_CPU, Run
from patchslim.cli.signals import WORDS

DIGITS = ("digits_vit", "--pretrained", *ON_CPU, "--images", "16", "--batch-size", "8")
SEARCHES = {
    "ps": ("--tolerance", "0.01", "--set", "step=4", "--set", "tune_epochs=1"),  # its cache has tuned blocks
    "merge": ("--target-macs", "0.6"),  # its cache has distances, then candidates
}
COMPARE = ("compare", *DIGITS, "--val", "digits:test", "--limit", "20", "--bench-batch-size", "1", "--seconds", "0.01")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals")


def kill(folder: Path, words: tuple[str, ...], reached: Callable[[], bool], how: signal.Signals = KILL) -> None:
    """Run a command in a process of its own until something is reached, and end that process."""
    command = [sys.executable, "-c", "from patchslim.cli.main import main; main()", *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=one_thread, stderr=subprocess.PIPE, text=True)
    try:
        while not reached():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(how)
        told = process.communicate(timeout=20)[1].splitlines()
    finally:
        process.kill()
    if how in WORDS:
        assert process.returncode == 128 + how
        assert told[-1].startswith(f"patchslim: {WORDS[how]}; `patchslim {words[0]}` goes on where it was")
        assert not any("Traceback" in line for line in told)


def lines(path: Path) -> int:
    """How many are in a file by now."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("method", "entries", "how"), [("ps", 2, KILL), ("merge", 12, signal.SIGTERM)])
def test_a_search(run: Run, tmp_path: Path, method: str, entries: int, how: signal.Signals) -> None:
    command = ("slim", *DIGITS, "--method", method, *SEARCHES[method], "--out")
    cache = tmp_path / "killed" / "search" / "cache.jsonl"
    kill(tmp_path, (*command, "killed"), lambda: lines(cache) >= entries, how)
    assert not (tmp_path / "killed" / "plan.json").exists()
    for words in (("killed", "--resume"), ("whole",)):
        assert run(*command, *words)[0] == 0
    weights = "model.safetensors" if method == "ps" else "steps.safetensors"
    for name in ("plan.json", weights):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "search").exists()


def test_a_comparison(run: Run, tmp_path: Path) -> None:
    """The finished row stays as it is; the search of the other goes on."""
    command = (*COMPARE, "--methods", "tome,merge", "--target-macs", "0.6", "--out", "killed")
    cell = tmp_path / "killed" / "cells" / "tome@0.6.json"
    cache = tmp_path / "killed" / "working" / "searches" / "merge" / "cache.jsonl"
    kill(tmp_path, command, lambda: lines(cache) >= 12, signal.SIGINT)
    before = cell.read_bytes()
    code, out, err = run(*command, "--resume")
    assert code == 0, err
    assert cell.read_bytes() == before
    assert sum(line.startswith(("base ", "tome ", "merge ")) for line in out.splitlines()) == 3
    assert not (tmp_path / "killed" / "working").exists()


def test_a_recovery(run: Run, tmp_path: Path) -> None:
    assert run("slim", *DIGITS, "--method", "uniform", "--target-macs", "0.4", "--out", "a")[0] == 0
    learn = ("--images", "40", "--batch-size", "16", "--epochs", "4", "--block-epochs", "1")
    command = ("finetune", "a", *ON_CPU, *learn, "--out")
    state = tmp_path / "killed" / "recovery" / "state.json"
    kill(
        tmp_path,
        (*command, "killed"),
        lambda: state.exists() and '"distillation",\n  "numbers": {' in state.read_text(),
    )
    assert ps.inspect(ps.load(tmp_path / "killed")).depth == 6  # it is whole as it was
    for words in (("killed", "--resume"), ("whole",)):
        assert run(*command, *words)[0] == 0
    one, other = (tmp_path / name / "model.safetensors" for name in ("killed", "whole"))
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes() != (tmp_path / "a" / "model.safetensors").read_bytes()
    assert not (tmp_path / "killed" / "recovery").exists()
