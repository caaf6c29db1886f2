"""The command behind the paper's figures: raw files, going on with them, pictures from them, and what is missing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import paper_figures
from figures import one_block
from figures.draw import FIGURES, draw
from figures.rows import Rows
from figures.tables import markdown
from patchslim.errors import RunError
from patchslim.measure import paired
from patchslim.peers.hits import from_hex

ROOT = Path(__file__).parents[2]
DIGITS = ("--model", "digits_vit", "--pretrained", "--data", "digits", "--images", "8", "--val", "digits:test")
SMALL = (*DIGITS, "--limit", "30", "--rates", "0.5", "0.9", "--at", "2", "--random-seeds", "0", "1")


def table_of(folder: Path, figure: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"figure_{figure}_digits_vit.json").read_text())
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All five figures of the small ViT for digits."""
    folder = tmp_path_factory.mktemp("figures")
    paper_figures.main([*SMALL, "--tolerances", "0.05", "--ratio", "0.6", "--out", str(folder)])
    return folder


def test_every_figure_has_its_rows_and_its_picture(measured: Path) -> None:
    rows = {figure: len(table_of(measured, figure)["rows"]) for figure in paper_figures.FIGURES}
    assert rows == {"sim": 1 + 3 * 6, "eps": 3, "even": 5, "layers": 6 * 2 * 2, "acc": 6 * 2 * 2}
    for figure in paper_figures.FIGURES:
        table = table_of(measured, figure)
        assert table["command"].startswith("python benchmarks/paper_figures.py --model digits_vit")
        assert str(measured) not in json.dumps(table)
        assert (measured / f"figure_{figure}_digits_vit.png").read_bytes().startswith(b"\x89PNG")
    even = {row["mode"]: row for row in table_of(measured, "even")["rows"]}
    assert all(row["macs_ratio"] <= 0.6 for row in even.values() if "ε" not in row["mode"])
    assert len(set(even["uniform"]["patches_per_block"][:-1])) == 1


def test_the_last_block_of_a_class_token_has_nothing_to_lose(measured: Path) -> None:
    table = table_of(measured, "layers")
    last = [row for row in table["rows"] if row["layer"] == 6]
    assert {row["right"] for row in last} == {table["base_right"]}


def test_pictures_show_the_rows(measured: Path) -> None:
    table = table_of(measured, "layers")
    axes = {axes.get_title(): axes for axes in FIGURES["layers"](table).axes}
    lines = {line.get_label(): line for line in axes["pruned in this block and all later ones"].get_lines()}
    assert set(lines) == {"50 % pruned", "90 % pruned", "host"}
    wanted = [row["top1"] for row in table["rows"] if row["removed"] == "drop" and row["rate"] == 0.9]
    assert lines["90 % pruned"].get_ydata().tolist() == wanted
    drawn = FIGURES["acc"](table_of(measured, "acc")).axes
    assert len(drawn) == 2  # a block, two readings
    assert "random, 2 seeds" in [line.get_label() for line in drawn[0].get_lines()]


def test_a_picture_is_drawn_from_the_raw_file_alone(measured: Path, tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "elsewhere.json"
    copy.write_text((measured / "figure_eps_digits_vit.json").read_text())
    paper_figures.main(["--draw", str(copy)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "elsewhere.png")
    assert (tmp_path / "elsewhere.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_has_the_numbers_of_the_raw_file(measured: Path, capsys: Any) -> None:
    paper_figures.main(["--table", *(str(measured / f"figure_{name}_digits_vit.json") for name in ("sim", "acc"))])
    shown = capsys.readouterr().out
    assert f"{table_of(measured, 'sim')['rows'][3]['mean']:.3f}" in shown
    table = table_of(measured, "acc")
    half = [row for row in table["rows"] if row["removed"] == "drop" and row["rate"] == 0.5]
    hits = {(row["score"], row["seed"]): from_hex(row["right"], table["images"]) for row in half}
    wanted = paired(hits["impact", 0], hits["random", 1]).difference
    assert f"| 2 | this block and all later ones | random, seed 1 | {wanted:.2f} (" in shown
    mean = torch.stack([hits["random", seed] for seed in (0, 1)]).double().mean() * 100
    assert f"| 2 | this block and all later ones | random | {mean:.2f} |" in shown
    assert all(markdown(measured / f"figure_{name}_digits_vit.json") for name in ("eps", "even", "layers"))


def test_going_on_measures_only_what_is_missing(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(measured / "figure_acc_digits_vit.json", tmp_path)
    asked: list[tuple[int, list[float]]] = []
    real = one_block.hits_of

    def watched(work: Any, layer: int, cuts: Any, orders: Any) -> Any:
        asked.append((layer, [cut.rate for cut in cuts]))
        return real(work, layer, cuts, orders)

    monkeypatch.setattr(one_block, "hits_of", watched)
    words = [*SMALL, "--figures", "acc", "--scores", "radial", "--removed", "drop", "--out", str(tmp_path)]
    before = table_of(tmp_path, "acc")["rows"]
    paper_figures.main([*words, "--resume"])
    assert asked == []
    paper_figures.main([*words, "--resume", "--rates", "0.5", "0.7"])
    assert asked == [(2, [0.7])]
    after = table_of(tmp_path, "acc")["rows"]
    assert after[:-1] == before
    assert after[-1]["rate"] == 0.7


@pytest.mark.parametrize("extra", [[], ["--resume", "--seed", "1"], ["--resume", "--limit", "20"]])
def test_another_measurement_is_refused(measured: Path, capsys: Any, extra: list[str]) -> None:
    before = (measured / "figure_sim_digits_vit.json").read_bytes()
    with pytest.raises(SystemExit) as end:
        paper_figures.main([*SMALL, "--figures", "sim", "--out", str(measured), *extra])
    assert end.value.code == 2
    assert "choose another --out or --tag" in capsys.readouterr().err
    assert (measured / "figure_sim_digits_vit.json").read_bytes() == before


def test_without_weights_what_can_be_counted_is(tmp_path: Path, capsys: Any) -> None:
    paper_figures.main(["--model", "digits_vit", "--rates", "0.5", "--at", "2", "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert "--checkpoint" in said
    assert "sim: nothing to measure" in said
    assert {path.name.split("_")[1] for path in tmp_path.glob("*.json")} == {"even", "layers", "acc"}
    rows = table_of(tmp_path, "layers")["rows"]
    assert {row["top1"] for row in rows} == {None}
    assert [row["macs_ratio"] for row in rows if row["removed"] == "drop"] == sorted(
        row["macs_ratio"] for row in rows if row["removed"] == "drop"
    )
    assert [row["mode"] for row in table_of(tmp_path, "even")["rows"]] == ["uniform"]
    assert len(list(tmp_path.glob("*.png"))) == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--at", "7"], "blocks 1 to 6"),
        (["--rates", "1.0"], "between 0 and 1"),
        (["--draw", "pyproject.toml"], "is not JSON"),
        (["--table", "nowhere.json"], "no figure at"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], complaint: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        paper_figures.main([*DIGITS, *words])
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_rows_are_on_disk_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "figure.json"
    rows = Rows(path, ("a",), {"seed": 0}, lambda: {"figure": "sim"})
    rows.add({"a": 1, "b": 2})
    assert json.loads(path.read_text())["rows"] == [{"a": 1, "b": 2}]
    again = Rows(path, ("a",), {"seed": 0}, dict, resume=True)
    assert again.done({"a": 1})
    assert not again.done({"a": 2})
    with pytest.raises(RunError, match="other seed"):
        Rows(path, ("a",), {"seed": 1}, dict, resume=True)


def test_what_is_no_figure_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"rows": [{}]}')
    with pytest.raises(RunError, match="no raw file of a figure"):
        draw(tmp_path / "other.json")


def test_the_docs_show_the_raw_files() -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    shown = [line for path in (ROOT / "results").glob("figure_*.json") for line in markdown(path) if line]
    assert shown
    assert [line for line in shown if line not in page] == []
