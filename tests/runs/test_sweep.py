"""Several MAC ratios out of one search: a run each, the same as searched alone, resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.cli.slim import read_ratios
from patchslim.data import tensor_images
from patchslim.errors import BudgetError, RunError
from patchslim.runs import check_sweep_folder, make_sweep, run_name
from patchslim.runs.sweep import SWEEP
from patchslim.search import SearchConfig
from patchslim.slim.store import PLAN, SEARCH
from small import make_host, make_images

RATIOS = [0.8, 0.6]
STARTED = {"model": "small", "settings": {}, "weights": "w", "images": "i"}
WAYS: list[dict[str, Any]] = [
    {},
    {"removed": "drop"},
    {"select": "matched"},
    {"select": "predicted", "predictor_epochs": 2},
]


@pytest.mark.parametrize("way", WAYS)
def test_a_sweep_finds_what_single_searches_find(way: dict[str, Any]) -> None:
    model, images = make_host(), make_images(4)
    config = SearchConfig(**way)
    found = {ratio: plan for ratio, plan, _ in ps.sweep(model, images, config, RATIOS)}
    assert list(found) == sorted(RATIOS, reverse=True)
    for ratio, plan in found.items():
        alone, _ = ps.search(model, images, SearchConfig(**way, target_macs=ratio))
        assert plan.to_json() == alone.to_json()
        assert plan.provenance["macs_ratio"] <= ratio


def test_every_ratio_gets_a_run_of_its_own(tmp_path: Path) -> None:
    model, images = make_host(), make_images(4)
    folder = tmp_path / "sweep"
    metrics = make_sweep(model, tensor_images(images), SearchConfig(), RATIOS, folder, STARTED)
    assert not (folder / SEARCH).exists()
    assert set(json.loads((folder / SWEEP).read_text())["runs"]) == {run_name(ratio) for ratio in RATIOS}
    for ratio in RATIOS:
        slim = ps.load(folder / run_name(ratio))
        assert metrics[ratio]["macs"] == ps.count_macs(slim)
        with torch.no_grad():
            assert torch.isfinite(slim(images)).all()


def test_an_interrupted_sweep_goes_on_to_the_same_plans(tmp_path: Path) -> None:
    model, source = make_host(), tensor_images(make_images(4))
    config = SearchConfig(select="matched")
    whole = tmp_path / "whole"
    make_sweep(model, source, config, RATIOS, whole, STARTED)
    seen = 0

    def stop(event: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 12:
            raise KeyboardInterrupt

    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        make_sweep(model, source, config, RATIOS, folder, STARTED, stop)
    assert (folder / SEARCH).exists()
    with pytest.raises(RunError, match="--resume"):
        check_sweep_folder(folder, resume=False)
    check_sweep_folder(folder, resume=True)
    make_sweep(model, source, config, RATIOS, folder, STARTED)
    for ratio in RATIOS:
        name = Path(run_name(ratio)) / PLAN
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_other_settings_are_refused_on_resume_and_a_finished_sweep_is_left_alone(tmp_path: Path) -> None:
    model, source = make_host(), tensor_images(make_images(4))
    folder = tmp_path / "sweep"
    first = make_sweep(model, source, SearchConfig(), RATIOS, folder, STARTED)
    with pytest.raises(RunError, match="already holds a sweep"):
        check_sweep_folder(folder, resume=False)
    before = (folder / run_name(0.8) / PLAN).stat().st_mtime_ns
    again = make_sweep(model, source, SearchConfig(), RATIOS, folder, STARTED)
    assert (folder / run_name(0.8) / PLAN).stat().st_mtime_ns == before
    assert {ratio: found["macs"] for ratio, found in again.items()} == {r: found["macs"] for r, found in first.items()}
    with pytest.raises(RunError, match="other weights"):
        make_sweep(model, source, SearchConfig(), RATIOS, folder, STARTED | {"weights": "others"})


def test_nothing_is_left_behind_by_a_ratio_out_of_reach(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    with pytest.raises(BudgetError, match=r"0\.001"):
        make_sweep(
            make_host(), tensor_images(make_images(2)), SearchConfig(target_macs=0.001), [0.001], folder, STARTED
        )
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "ratios"), [(None, []), ("0.6", [0.6]), ("0.5,0.7, 0.6", [0.7, 0.6, 0.5]), ("0.5,0.5", [0.5])]
)
def test_ratios_are_read_with_commas_between(text: str | None, ratios: list[float]) -> None:
    assert read_ratios(text) == ratios


@pytest.mark.parametrize("text", ["", "abc", "0.5;0.6", "0.5,"])
def test_what_is_not_a_ratio_is_told(text: str) -> None:
    with pytest.raises(BudgetError, match="not a MAC ratio"):
        read_ratios(text)
