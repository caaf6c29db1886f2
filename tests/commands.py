"""What tests of the command line share; `conftest.py` has the fixture that runs it."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Run = Callable[..., tuple[int, str, str]]  # words → exit code, standard output, standard error

ON_CPU = ("--data", "digits", "--device", "cpu")
# timm's smallest ViT with 16 patches and random weights: what becomes of accuracy does not matter to most tests.
SMALL = ("test_vit", "--img-size", "64", *ON_CPU, "--images", "8", "--batch-size", "8")
QUICK = ("slim", *SMALL, "--target-macs", "0.7", "--method", "drop")


def call(*words: str) -> int:
    """A command's exit code; what it prints is the test's to catch."""
    from patchslim.cli.main import main  # only where it is asked for

    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["patchslim", *words])
        with pytest.raises(SystemExit) as end:
            main()
    for number, usual in signals.items():  # Ctrl-C is pytest's again
        signal.signal(number, usual)
    return int(end.value.code or 0)


def result(run: Run, *words: str) -> dict[str, Any]:
    """The one JSON object that a command prints; nothing else stands on standard output."""
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def refused(result: tuple[int, str, str], words: str) -> None:
    """Check for exit code 2, nothing on standard output, and one clear line at the end."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("patchslim: ")
    assert words in last, last
    assert "Traceback" not in err


def ended_by_ctrl_c(result: tuple[int, str, str], command: str = "") -> None:
    """Check for what Ctrl-C ends in: exit code 130, and one line, with how to go on where a command can."""
    code, out, err = result
    assert (code, out) == (130, ""), err
    advice = f"; `patchslim {command}` goes on where it was with the same command and --resume" if command else ""
    assert err.strip().splitlines()[-1] == f"patchslim: Interrupted{advice}."
    assert "Traceback" not in err


def image_folder(path: Path, count: int = 3) -> Path:
    """A flat folder of small pictures."""
    path.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (40, 30), (i * 40, 99, 10)).save(path / f"{i}.png")
    return path
