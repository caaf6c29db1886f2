"""The command that tells whether an eager model waits for Python, on a small model."""

import json
import sys
from pathlib import Path

import pytest

import launches


def test_launching_takes_no_longer_than_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--model", "digits_vit", "--device", "cpu", "--dtype", "float32", "--batch-sizes", "1", "3"]
    monkeypatch.setattr(
        sys, "argv", ["launches.py", *words, "--calls", "2", "--out", str(tmp_path / "a" / "found.json")]
    )
    launches.main()
    found = json.loads((tmp_path / "a" / "found.json").read_text())
    rows = [(row["batch_size"], row["row"]) for row in found["rows"]]
    assert rows == [(size, name) for size in (1, 3) for name in ("host", "static drop", "matched merge")]
    assert all(0 < row["launched_ms"] <= row["done_ms"] for row in found["rows"])
    assert (found["device"], found["dtype"]) == ("cpu", "float32")
