"""The demo does what it promises: at least 40 % fewer MACs for at most one point on digits nobody trained on."""

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

import patchslim as ps
from patchslim.cli.demo import remove_old_demo


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from patchslim.cli.main import main; main()", "demo", "--out", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    metrics = json.loads(done.stdout)
    assert metrics["macs_ratio"] <= 0.6
    assert metrics["host_top1"] > 98
    assert metrics["host_top1"] - metrics["top1"] <= 1.0
    assert metrics["images"] == 500
    with Image.open(tmp_path / "demo" / "kept_patches.png") as picture:
        assert picture.width > 400
    slim = ps.load(tmp_path / "demo")
    assert ps.count_macs(slim) == metrics["macs"]


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
