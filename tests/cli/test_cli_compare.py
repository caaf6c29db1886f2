"""`patchslim compare` from a user's side."""

import json
from pathlib import Path

import pytest

from commands import Run, image_folder, refused, result
from patchslim.cli.compare import chosen_methods
from patchslim.methods import names

COMPARE = (
    *("compare", "digits_vit", "--pretrained", "--data", "digits", "--val", "digits:test", "--device", "cpu"),
    *("--images", "16", "--limit", "60", "--batch-size", "8", "--bench-batch-size", "2", "--seconds", "0.01"),
    *("--target-macs", "0.6,0.25", "--out", "a"),
)


def test_a_table_in_every_form(run: Run, tmp_path: Path) -> None:
    learn = ("--recover", "1", "--train-images", "24")
    table = result(run, *COMPARE, *learn, "--methods", "tome,evit")
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [
        *(("tome", 0.6), ("evit", 0.6), ("tome", 0.25), ("evit", 0.25)),
    ]
    assert "at least" in table["rows"][3]["reason"]
    assert table["base"]["untuned"]["images"] == 60
    assert all("recovered" in row for row in table["rows"] if row["reason"] is None)
    assert set(table["files"]) == {"a/comparison.json", "a/table.md", "a/figure.png"}
    assert all((tmp_path / name).stat().st_size > 200 for name in table["files"])
    assert json.loads((tmp_path / "a" / "comparison.json").read_text()) | {"files": table["files"]} == table
    cells = {path.name: path.read_bytes() for path in (tmp_path / "a" / "cells").glob("*.json")}
    code, out, err = run(*COMPARE, *learn, "--methods", "tome,evit,hvt", "--resume")
    assert code == 0, err
    shown = out.splitlines()
    assert sum(line.startswith(("base ", "tome ", "evit ", "hvt ")) for line in shown) == 7 + 2  # and two reasons
    assert any(line.startswith("evit at 0.25: EViT takes at least") for line in shown)
    assert shown[-1] == "saved in a/comparison.json, a/table.md, a/figure.png"
    assert all((tmp_path / "a" / "cells" / name).read_bytes() == content for name, content in cells.items())


def test_a_setting_makes_a_row_of_its_own_beside_the_usual_one(run: Run, tmp_path: Path) -> None:
    """Two commands into one folder: the second measures only its own row."""
    small = ("compare", "test_vit", "--img-size", "64", *COMPARE[3:])
    assert run(*small, "--methods", "tome")[0] == 0
    before = (tmp_path / "a" / "cells" / "tome@0.6.json").read_bytes()
    table = result(run, *small, "--methods", "tome", "--set", "tome.readout_only=true", "--resume")
    assert {row["method"] for row in table["rows"]} == {"tome,readout_only=True"}
    assert table["rows"][0]["detail"]["patches_per_block"][-1] == 0
    assert (tmp_path / "a" / "cells" / "tome@0.6.json").read_bytes() == before
    refused(run(*small, "--methods", "tome"), "already holds a comparison; go on with --resume")
    refused(
        run(*small, "--methods", "tome", "--batch-size", "4", "--resume"),
        "started with other settings (batch_size 8, now 4)",
    )


def test_settings_go_to_the_method_that_they_name() -> None:
    merge, drop, power = chosen_methods(
        "merge, drop,power,merge", ["merge.blocks=none", "power.epochs=3", "merge.blocks=2"]
    )
    assert (merge.name, drop.name, power.name) == ("merge", "drop", "power")
    assert (merge.blocks, power.epochs, power.readout_only) == (2, 3, False)
    assert [method.name for method in chosen_methods("drop,all", [])] == sorted(names(), key=lambda own: own != "drop")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--methods", "nothing"), "There is no method 'nothing'; choose from merge, "),
        (("--methods", ","), "No method is named"),
        (
            ("--methods", "ps-matched"),
            "The method ps-matched has another name now: merge with --set merge.blocks=none.",
        ),
        (("--set", "blocks=2"), "--set takes NAME.KEY=VALUE with one of tome for NAME, and not 'blocks=2'."),
        (("--set", "merge.blocks=2"), "--set takes NAME.KEY=VALUE with one of tome for NAME"),
        (("--set", "tome.blocks=2"), "The method tome has no setting 'blocks'; merge, "),
        (("--set", "tome.readout_only"), "--set takes KEY=VALUE"),
        (("--target-macs", "x"), "'x' is not a MAC ratio"),
        (("--target-macs", "1.5"), "between 0 and 1"),
        (("--target-macs", "0.6,nan"), "between 0 and 1"),
        (("--val", "flat"), "flat has no labels"),
        (("--val", "nowhere"), "nowhere doesn't exist"),
        (("--data", "nowhere"), "nowhere doesn't exist"),
        (("--dtype", "int4"), "There is no dtype 'int4'"),
        (("--seconds", "0"), "more than 0"),
        (("--mode", "warp"), "There is no mode 'warp'"),
        (("--mode", "graph"), "A CUDA graph needs a CUDA device"),
        (("--device", "quantum"), "--device cpu"),
        (("--recover", "-1"), "--recover"),
        (("--out", "flat"), "flat is not empty and holds no comparison"),
        (("--out", "flat/0.png"), "flat/0.png is a file"),
    ],
)
def test_mistakes_end_in_one_sentence(run: Run, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    image_folder(tmp_path / "flat", 3)
    whole = ("--data", "digits", "--val", "digits:test", "--target-macs", "0.6", "--methods", "tome", "--device", "cpu")
    refused(run("compare", "test_vit", *whole, *words), told)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.png", "1.png", "2.png", "flat"]


def test_what_is_missing_is_told(run: Run, tmp_path: Path) -> None:
    start = ("compare", "test_vit", "--data", "digits")
    refused(run(*start, "--val", "digits:test", "--methods", "tome"), "Missing option '--target-macs'")
    refused(run(*start, "--val", "digits:test", "--target-macs", "0.6"), "Missing option '--methods'")
    refused(run(*start, "--methods", "tome", "--target-macs", "0.6"), "Missing option '--val'")
    whole = ("--data", "digits", "--val", "digits:test", "--target-macs", "0.6", "--methods", "tome")
    refused(run("compare", "resnet18", *whole), "ResNet can't be slimmed")
    assert not list(tmp_path.iterdir())
