"""The demo does what it promises, twice: at least 40 % fewer MACs for at most one point on digits nobody trained on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import patchslim as ps
from patchslim.cli.showcase import Run, remove_old_demo, show
from patchslim.hosts import HostInfo
from small import make_host

# A tenth of the demo's images to choose by: it keeps its promises with them, in a third of the time.
FEWER = """
from importlib import import_module
import_module("patchslim.cli.showcase").CALIBRATION_IMAGES = 48
import_module("patchslim.cli.main").main()
"""


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FEWER, "demo", "--out", "demo", "--json"]
    one = os.environ | {"OMP_NUM_THREADS": "1"}  # other tests run beside it
    done = subprocess.run(command, cwd=tmp_path, env=one, check=True, capture_output=True, text=True)
    merged = json.loads(done.stdout)
    plain = merged.pop("drop")
    assert merged.keys() == plain.keys()
    assert (merged["method"], plain["method"]) == ("merge", "drop")
    assert (merged["run"], plain["run"]) == ("demo", "demo/drop")
    assert (merged["picture"], plain["picture"]) == ("demo/merged_patches.png", "demo/kept_patches.png")
    for run in (merged, plain):
        check_run(run, tmp_path)
    remove_old_demo(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def check_run(run: dict[str, Any], folder: Path) -> None:
    """What holds for both runs."""
    slim: Any = ps.load(folder / run["run"])
    assert slim.plan.method == run["method"]
    assert run["macs_ratio"] <= 0.55
    assert run["host_top1"] > 98
    assert run["host_top1"] - run["top1"] <= 1.0
    assert run["images"] == 500
    assert run["speedup"] == pytest.approx(run["throughput"] / run["baseline_throughput"])
    assert run["ideal_speedup"] == pytest.approx(1 / run["macs_ratio"])
    assert ps.count_macs(slim) == run["macs"]
    with Image.open(folder / run["picture"]) as picture:
        assert picture.width > 400
    metrics = json.loads((folder / run["run"] / "metrics.json").read_text())
    assert metrics == {name: value for name, value in run.items() if name not in ("run", "picture")}


def metrics_of(info: HostInfo, method: str, top1: float, macs: int, patches: int) -> dict[str, Any]:
    """Metrics as a measured run has them."""
    speed = {"throughput": 150.0, "baseline_throughput": 100.0, "speedup": 1.5}
    cost = {"macs": macs, "host_macs": 4_000_000, "macs_ratio": macs / 4_000_000}
    counts = {"patches_per_block": [patches] * info.depth}
    return {"method": method, "host_top1": 99.0, "top1": top1} | speed | cost | counts


def test_the_table_compares_both_runs_with_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    info = ps.inspect(make_host())
    slim: Any = None  # the table is about metrics only
    one = Run(Path("d"), Path("d/a.png"), slim, metrics_of(info, "merge", 98.5, 2_000_000, 9))
    two = Run(Path("d/m"), Path("d/b.png"), slim, metrics_of(info, "drop", 99.2, 1_000_000, 7))
    show((one, two), info)
    lines = capsys.readouterr().out.splitlines()
    (head,) = (line for line in lines if line.startswith("┃"))
    assert [cell.strip() for cell in head.split("┃")[1:-1]] == ["", "host", "merge", "drop"]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        ["top-1, unseen digits", "99.0 %", "98.5 % (-0.5 points)", "99.2 % (+0.2 points)"],
        ["MACs per image", "4.0 M", "2.0 M (-50.0%)", "1.0 M (-75.0%)"],
        ["images/s, batch 64", "100", "150 (1.50×)", "150 (1.50×)"],
        *([f"tokens in block {block}", "17", "10", "8"] for block in range(1, info.depth + 1)),
    ]
    assert lines[-2:] == ["run folder: d   picture: d/a.png", "run folder: d/m   picture: d/b.png"]


def test_only_an_old_demo_makes_room(tmp_path: Path) -> None:
    texts = {"demo": '{"demo": true}', "mine": '{"demo": false}', "odd": "no json", "list": "[]"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        remove_old_demo(tmp_path / name)
    (tmp_path / "unfinished" / "search").mkdir(parents=True)
    (tmp_path / "unfinished" / "search" / "started.json").write_text('{"demo": true}')
    remove_old_demo(tmp_path / "unfinished")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "mine", "odd"]
