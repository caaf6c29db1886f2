"""The command line as processes: what it imports, and how it ends on signals, closed outputs and poor encodings."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patchslim.cli.table import COMMANDS

COMMAND = [sys.executable, "-m", "patchslim"]
HEAVY = ("torch", "timm", "torchvision", "transformers", "numpy", "matplotlib", "sklearn")
# Runs several command lines in one process, and then tells what it has imported.
SEVERAL = """
import json, sys
from patchslim.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps([codes, sorted(sys.modules)]))
"""


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    asked = [["--help"], ["--version"], ["-h"], ["slimm"], ["slim"], ["slim", "test_vit", "--nonsense"]]
    asked += [["finetune", "a", "--data", "b", "--epochs", "many"], *([name, "--help"] for name in COMMANDS)]
    command = [sys.executable, "-c", SEVERAL, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, modules = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0, 0, 0, 2, 2, 2, 2] + [0] * len(COMMANDS)
    assert set(HEAVY) & set(modules) == set()


# Does something when a module is first imported: what a signal meets is then no matter of chance.
HOOK = """
import hashlib, os, signal, sys, threading
from patchslim.cli import signals
from patchslim.__main__ import main

def send():
    os.kill(os.getpid(), {number})

class Hook:
    def find_spec(name, path, target=None):
        if name == "patchslim.cli.app":
            {doing}

sys.meta_path.insert(0, Hook)
main()
"""
SWALLOWED = "try: send()\n            except BaseException: pass"
FOR_HOURS = "threading.Timer(0.1, send).start(); hashlib.pbkdf2_hmac('sha1', b'', b'', 2 * 10**9)"
LONG = f"signals.GRACE = 0.2; {FOR_HOURS}"
TWICE = f"signals.GRACE = 99; threading.Timer(0.9, send).start(); {FOR_HOURS}"
SLIM = "`patchslim slim` goes on where it was with the same command and --resume."


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize(
    ("words", "number", "doing", "told"),
    [
        (("--help",), signal.SIGINT, "send()", "Interrupted."),
        (("--version",), signal.SIGTERM, "send()", "Terminated."),
        (("slim",), signal.SIGINT, "send()", f"Interrupted; {SLIM}"),
        (("slim", "a"), signal.SIGTERM, "send()", f"Terminated; {SLIM}"),
        (("eval", "a"), signal.SIGINT, SWALLOWED, "Interrupted."),
        (("eval", "a"), signal.SIGTERM, LONG, "Terminated."),
    ],
)
def test_a_signal_ends_it_in_one_line_whatever_it_is_doing(
    words: tuple[str, ...], number: int, doing: str, told: str
) -> None:
    """Also where a library swallows the exception, or computes for hours without a look at signals."""
    command = [sys.executable, "-c", HOOK.format(doing=doing, number=int(number)), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"patchslim: {told}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_second_signal_ends_it_at_once() -> None:
    command = [sys.executable, "-c", HOOK.format(doing=TWICE, number=int(signal.SIGINT)), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (130, "patchslim: Interrupted.\n")


def test_no_encoding_loses_anything() -> None:
    for encoding in ("ascii", "cp1252"):
        env = os.environ | {"PYTHONIOENCODING": encoding}
        done = subprocess.run([*COMMAND, "slim", "--help"], capture_output=True, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"--target-macs R[,R" in done.stdout


def test_nobody_reads_on() -> None:
    """As after `| head`; and a disk that is full is told."""
    process = subprocess.Popen([*COMMAND, "slim", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 1
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == (
            "patchslim: A file can't be read or written (No space left on device); check the path and the space left.\n"
        )
