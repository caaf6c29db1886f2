"""The paper's numbers are copied right, as far as they check themselves, and ask for the right cells."""

import pytest

from benchmarks.paper.commands import timed_cells
from benchmarks.paper.harness import counted_macs
from benchmarks.paper.published import (
    BASELINE,
    FILE,
    METHODS,
    TABLES,
    Published,
    beside,
    cells_of,
    models_of,
    printed,
)
from benchmarks.rows import Row
from benchmarks.table import COLUMNS
from patchslim.errors import DataError
from patchslim.files import read_json

TI, S, B = (f"deit_{size}_patch16_224" for size in ("tiny", "small", "base"))
TABLE1, TABLE2, TABLE3 = map(printed, TABLES)
AT_ODDS = {tuple(pair) for pair in read_json(FILE, DataError, "file")["at_odds"]}
OURS = {("ps:tune_epochs=0", 0.538), ("drop", 0.538), ("dps", 0.462), ("predict", 0.462)}


def base_of(row: Published) -> Published:
    return next(own for own in TABLE1 if own.model == row.model and own.method == BASELINE)


def words(model: str, table: str, also: tuple[float, ...] = ()) -> list[tuple[str, float]]:
    return [(str(cell.chosen), cell.ratio) for cell in cells_of(table, model, also)]


@pytest.mark.parametrize("row", TABLE1, ids=lambda row: f"{row.model} {row.method}")
def test_reductions_and_gains_are_those_of_the_columns_beside(row: Published) -> None:
    base = base_of(row)
    low, high = ((row.gmacs + sign * 0.05) / (base.gmacs - sign * 0.05) for sign in (-1, 1))  # printed digits
    assert (low <= row.ratio <= high) == ((row.model, row.method) not in AT_ODDS)
    assert row.throughput is not None
    assert base.throughput is not None
    assert row.gain == pytest.approx(100 * (row.throughput / base.throughput - 1), abs=0.5)


def test_the_tables_agree_where_they_overlap() -> None:
    first = {(row.model, row.method): row for row in TABLE1}
    for row in TABLE3:
        if (row.model, row.method) in first:
            other = first[row.model, row.method]
            assert (row.top1, row.top5, row.gmacs, row.ratio) == (other.top1, other.top5, other.gmacs, other.ratio)
    plain = {row.model: row for row in TABLE2 if row.method == BASELINE}
    for model in {row.model for row in TABLE1} & plain.keys():
        assert plain[model].top1 == first[model, BASELINE].top1
        assert plain[model].gmacs == pytest.approx(first[model, BASELINE].gmacs, abs=0.11)
    assert all(row.host_gmacs == plain[row.model].gmacs for row in TABLE2 if row.method != BASELINE)


@pytest.mark.parametrize("row", [row for row in TABLE2 if row.method == BASELINE], ids=lambda row: row.name)
def test_timms_models_are_the_papers(row: Published) -> None:
    """By their MACs, where the paper's are those of the model's authors and timm has the very model."""
    macs = counted_macs(row.model) / 1e9
    if row.model.startswith(("deit", "swin", "tnt", "lvvit_s")):
        assert macs == pytest.approx(row.gmacs, abs=0.1)
    elif row.model.startswith("pvt_v2"):
        assert row.note
        assert macs == pytest.approx(row.gmacs, abs=0.5)
    elif row.model.startswith("t2t"):  # the paper prints some 0.4 G more than T2T-ViT's authors do
        assert macs == pytest.approx(row.gmacs - 0.4, abs=0.1)
    else:
        assert row.model == "lvvit_m"
        assert macs == pytest.approx(12.68, abs=0.01)


def test_cells_of_the_tables() -> None:
    paper = [("scop", 0.616), ("power", 0.616), ("hvt", 0.538)]
    today = {(name, ratio) for name in ("merge", "tome", "evit", "dynamicvit") for ratio in (0.538, 0.462)}
    found = words(TI, "table1")
    assert found[:3] == paper  # the paper's order
    assert len(found) == len(set(found))
    assert set(found) == {*paper, *OURS, *today}
    every = {*(name for name, _ in (*paper, *OURS, *today)), "vtp"}
    assert set(words(TI, "table1", (0.55,))) - set(found) == {(name, 0.55) for name in every}
    assert set(words("lvvit_s", "table2")) == {
        *(("ps:tune_epochs=0", 0.712), ("drop", 0.712), ("merge", 0.712)),
        *(("dps", 0.682), ("predict", 0.682), ("merge", 0.682)),
    }
    assert words("swin_tiny_patch4_window7_224", "table2") == []
    assert (
        words(TI, "table3") == words(S, "table3") == [(name, 0.564) for name in ("uniform", "ps:tune_epochs=0", "drop")]
    )


def test_every_row_of_the_paper_has_a_cell_and_stands_beside_it() -> None:
    for table in TABLES:
        for row in (row for row in printed(table) if row.method != BASELINE):
            cells = words(row.model, table)
            assert {(name, row.ratio) for name in METHODS[row.method]} <= set(cells)
            for cell in cells_of(table, row.model):
                if str(cell.chosen) in METHODS[row.method] and cell.ratio == row.ratio:
                    known = {"method": cell.chosen.name, "settings": cell.chosen.settings, "target_macs": cell.ratio}
                    assert beside((table,), made(row.model, **known)) == row


def test_networks_that_are_one_are_timed_once() -> None:
    assert {str(cell.chosen) for cell in timed_cells(TI)} == {str(cell.chosen) for cell in cells_of("table1", TI)} - {
        "drop"
    }
    assert {cell.ratio for cell in timed_cells("lvvit_m")} == {0.537, 0.519}


def made(model: str, **fields: object) -> Row:
    head = {"question": "paper-table1", "model": model, "method": "host", "device": "d", "versions": {}}
    return Row.model_validate(head | {"command": "c", "date": "d"} | fields)


def test_published_numbers_stand_beside_ours() -> None:
    columns = COLUMNS["paper-table1"]
    row = made(TI, method="ps", settings={"tune_epochs": 0}, target_macs=0.538, macs_ratio=0.537)
    shown = {name: column(row) for name, column in columns.items()}
    assert shown["MACs, published"] == "0.538 (0.7 G)"
    assert shown["top-1, published"] == "72.0 (-0.2)"
    assert shown["images/s, published (V100)"] == "3,576 (1.41×)"
    assert shown["MACs"] == "0.537"
    assert columns["top-1, published"](made(TI)) == "72.2"
    assert columns["top-1, published"](made(TI, method="ps", target_macs=0.538)) == "–"  # tuned: not the paper's row
    slim = made("lvvit_s", method="dps", target_macs=0.682)
    assert COLUMNS["paper-table2"]["the paper's"](slim) == "DPS-LV-ViT-S"
    assert models_of("table1") == [TI, S, B, "t2t_vit_14"]
