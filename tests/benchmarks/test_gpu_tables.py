"""The tables of speed on a GPU in the docs are those that the raw files give."""

from collections.abc import Callable
from pathlib import Path

import pytest

import gpu_tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("table", "pages"),
    [
        (lambda: gpu_tables.speed_table("gpu_speed_h200_*.json"), ("README.md", "docs/results.md")),
        (lambda: gpu_tables.speed_table("gpu_speed_batch1_h200_*.json"), ("docs/results.md",)),
        (gpu_tables.steps_table, ("docs/results.md",)),
        (gpu_tables.peer_table, ("docs/results.md",)),
        (gpu_tables.quantised_table, ("docs/results.md",)),
    ],
)
def test_docs_have_them(table: Callable[[], None], pages: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    table()
    told = capsys.readouterr().out.strip()
    assert len(told.splitlines()) > 2  # more than a head
    for page in pages:
        assert told in (ROOT / page).read_text()
