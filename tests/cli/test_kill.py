"""`kill -9` in the middle of a search, then `--resume`: the same plan, byte for byte."""

import os
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [
    *(sys.executable, "-c", "from patchslim.cli.main import main; main()"),
    *("slim", "digits_vit", "--pretrained", "--data", "digits", "--images", "32", "--batch-size", "16"),
    *("--score", "impact", "--tolerance", "0.01", "--step", "4", "--tune-epochs", "1", "--device", "cpu"),
]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def test_killed_and_resumed(tmp_path: Path) -> None:
    ledger = tmp_path / "killed" / "search" / "ledger.jsonl"
    process = subprocess.Popen([*COMMAND, "--out", "killed"], cwd=tmp_path, env=ONE_THREAD, stderr=subprocess.DEVNULL)
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None, "the search ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "plan.json").exists()
    for words in (["killed", "--resume"], ["whole"]):
        subprocess.run([*COMMAND, "--out", *words], cwd=tmp_path, env=ONE_THREAD, check=True, capture_output=True)
    for name in ("plan.json", "model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "search").exists()
