"""`patchslim report` and `patchslim view`: a page and a picture of runs, with the numbers that the runs have."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import patchslim as ps
from commands import ON_CPU, QUICK, Run, image_folder, refused, result
from patchslim.runs.store import put_metrics
from small import plan_for, slim_of


def cells(page: Path) -> list[list[str]]:
    """The words of the table, row by row, less its head."""
    rows = re.findall(r"<tr>(.*?)</tr>", page.read_text(encoding="utf-8"), flags=re.S)
    return [[unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row, flags=re.S)] for row in rows[1:]]


def test_a_page_of_two_runs(run: Run, tmp_path: Path) -> None:
    slimmed = result(run, *QUICK, "--out", "a & b")
    ps.save(slim_of()[1], tmp_path / "mine")  # from Python, where nothing was measured
    assert result(run, "report", "a & b", "mine") == {"page": "a & b/report.html", "runs": ["a & b", "mine"]}
    first, second = cells(tmp_path / "a & b" / "report.html")
    macs = [f"{slimmed['macs'] / 1e9:.4g}", f"{slimmed['macs_ratio']:.3f}"]
    assert first == ["a & b", "test_vit", "drop", *macs, "–", "–", "–"]
    host, slim = slim_of()
    assert second[3:5] == [f"{ps.count_macs(slim) / 1e9:.4g}", f"{ps.count_macs(slim) / ps.count_macs(host):.3f}"]
    text = (tmp_path / "a & b" / "report.html").read_text(encoding="utf-8")
    assert f"{1 - slimmed['macs_ratio']:.0%} fewer MACs by drop, chosen by 8 images." in text
    assert ", ".join(map(str, slimmed["patches_per_block"])) in text
    assert "None" not in text


def test_a_page_has_what_was_measured_last(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    put_metrics(tmp_path / "a", metrics | {"top1": 12.5})  # as the demo measures
    timed = result(run, "bench", "a", "--batch-size", "2", "--seconds", "0.01", "--device", "cpu")
    assert run("report", "a", "--out", "new/x.html")[1] == "new/x.html\n"
    speed = [f"{timed['throughput']:,.0f}", f"{timed['speedup']:.2f}"]
    assert cells(tmp_path / "new" / "x.html")[0][5:] == ["12.50", *speed]
    learn = ("--images", "16", "--batch-size", "8", "--epochs", "6", "--block-epochs", "2", *ON_CPU)
    assert result(run, "finetune", "a", *learn, "--learning-rate", "0.001")["changed"]
    run("report", "a", "--out", "new/x.html")
    assert cells(tmp_path / "new" / "x.html")[0][5:] == ["–", *speed]  # of weights that are others by now
    assert "chosen by 8 images, recovered." in (tmp_path / "new" / "x.html").read_text(encoding="utf-8")


def test_a_picture_of_what_a_run_computes(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--method", "merge", "--out", "a")[0] == 0
    folder = image_folder(tmp_path / "some", 2)
    words = ("--image", "some", "--image", str(folder / "0.png"))
    found = result(run, "view", "a", *words)
    slim: Any = ps.load(tmp_path / "a")
    assert (found["images"], found["picture"]) == (3, "a/view.png")
    assert found["patches_per_block"] == [float(count) for count in slim.plan.counts]
    with Image.open(tmp_path / "a" / "view.png") as picture:
        assert picture.width > picture.height
    assert "a/x/y.png: 3 images; patches per block " in run("view", "a", *words, "--out", "a/x/y.png")[1]
    run("report", "a")
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert page.count('<img src="data:image/png;base64,') == 1


def test_images_that_keep_different_numbers_are_counted_on_average(run: Run, tmp_path: Path) -> None:
    host, _ = slim_of()
    slim: Any = ps.apply(host, *plan_for(host, "threshold"))
    ps.save(slim, tmp_path / "a")
    image_folder(tmp_path / "some", 3)
    found = result(run, "view", "a", "--image", "some")
    source = ps.open_images("some", model=slim)
    tokens = ps.sources(slim, torch.cat([pixels for pixels, _ in source.batches(3)]))
    each = [[int(own.any(dim=1).sum()) for own in block] for block in tokens]
    assert found["patches_per_block"] == [round(sum(own) / 3, 1) for own in each]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report", "nowhere"), "There is no run folder at nowhere"),
        (("report", "a", "some"), "some holds no run"),
        (("report",), "Missing argument 'RUN"),
        (("report", "a", "--out", "some"), "A page ends in .html, and some does not"),
        (("view", "a"), "Missing option '--image'"),
        (("view", "a", "--image", "nowhere"), "nowhere doesn't exist"),
        (("view", "a", "--image", "some/broken.png"), "broken.png, is bad"),
        (("view", "pooled", "--image", "some"), "The tokens of hvt stand for no patches of their own"),
        (("view", "nowhere", "--image", "some"), "There is no run folder at nowhere"),
    ],
)
def test_mistakes_end_in_one_sentence(run: Run, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    ps.save(slim_of()[1], tmp_path / "a")
    assert run(*QUICK, "--method", "hvt", "--out", "pooled")[0] == 0
    (image_folder(tmp_path / "some", 1) / "broken.png").write_bytes(b"broken")
    before = sorted(tmp_path.rglob("*"))
    refused(run(*words), told)
    assert sorted(tmp_path.rglob("*")) == before
