"""`patchslim compare` from a user's side."""

import json
from pathlib import Path

from commands import Run, image_folder, refused

COMPARE = (
    *("compare", "digits_vit", "--pretrained", "--data", "digits", "--val", "digits:test", "--device", "cpu"),
    *("--images", "16", "--limit", "60", "--batch-size", "8", "--bench-batch-size", "2", "--seconds", "0.01"),
    *("--target-macs", "0.6,0.25", "--out", "a"),
)


def test_a_table_in_every_form(run: Run, tmp_path: Path) -> None:
    learn = ("--recover", "1", "--train-images", "24")
    code, out, err = run(*COMPARE, *learn, "--methods", "tome,evit", "--json")
    assert code == 0, err
    table = json.loads(out)
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [
        *(("tome", 0.6), ("evit", 0.6), ("tome", 0.25), ("evit", 0.25)),
    ]
    assert "at least" in table["rows"][3]["reason"]
    assert table["base"]["untuned"]["images"] == 60
    assert set(table["files"]) == {"a/comparison.json", "a/table.md", "a/figure.png"}
    assert all((tmp_path / name).stat().st_size > 200 for name in table["files"])
    cells = {path.name: path.read_bytes() for path in (tmp_path / "a" / "cells").glob("*.json")}
    code, out, err = run(*COMPARE, *learn, "--methods", "tome,evit,hvt", "--resume")
    assert code == 0, err
    shown = out.splitlines()
    assert sum(line.startswith(("base ", "tome ", "evit ", "hvt ")) for line in shown) == 7 + 2  # and two reasons
    assert any(line.startswith("evit at 0.25: EViT takes at least") for line in shown)
    assert shown[-1] == "saved in a/comparison.json, a/table.md, a/figure.png"
    assert all((tmp_path / "a" / "cells" / name).read_bytes() == content for name, content in cells.items())


def test_mistakes_end_in_one_sentence(run: Run, tmp_path: Path) -> None:
    image_folder(tmp_path / "flat", 3)
    start = ("compare", "digits_vit", "--data", "digits", "--device", "cpu")
    whole = (*start, "--val", "digits:test", "--target-macs", "0.6")
    refused(run(*whole, "--methods", "nothing"), "There is no method 'nothing'; choose from ps-static")
    refused(run(*whole, "--methods", ","), "No method is named")
    refused(run(*start, "--val", "digits:test", "--methods", "tome"), "Missing option '--target-macs'")
    refused(run(*start, "--val", "digits:test", "--methods", "tome", "--target-macs", "x"), "x is not a MAC ratio")
    refused(run(*start, "--val", "digits:test", "--methods", "tome", "--target-macs", "1.5"), "between 0 and 1")
    refused(run(*start, "--val", "flat", "--methods", "tome", "--target-macs", "0.6"), "flat has no labels")
    refused(run(*whole, "--methods", "tome", "--dtype", "int4"), "There is no dtype int4")
    refused(run(*whole, "--methods", "tome", "--seconds", "0"), "more than 0")
    refused(run(*whole, "--methods", "tome", "--mode", "warp"), "There is no mode warp")
    refused(run(*whole, "--methods", "tome", "--out", "flat"), "flat is not empty and holds no comparison")
    refused(run("compare", "resnet18", *whole[2:], "--methods", "tome"), "ResNet can't be slimmed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flat"]
