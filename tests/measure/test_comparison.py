"""A comparison: rows against measuring by hand, empty cells, and what an interruption costs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.errors import PatchslimError, RecoverError, RunError
from patchslim.measure import evaluate, evaluate_pair
from patchslim.peers import Cell, CompareConfig, Job, PeerConfig, SpeedConfig, Unreachable, compare, make_methods
from patchslim.peers.hits import from_hex, to_hex
from patchslim.peers.table import with_intervals
from patchslim.recover import RecoverConfig
from peer_jobs import job_of
from small import make_host, make_images

IMAGES = tensor_images(make_images(16))
QUICK = CompareConfig(PeerConfig(epochs=1, batch_size=8), speed=SpeedConfig(batch_size=2, seconds=0.01))
LEARN = CompareConfig(
    QUICK.peers, RecoverConfig(epochs=1, block_epochs=0, batch_size=8, ema=0.0), QUICK.speed, eval_batch_size=16
)


def labelled(model: nn.Module, count: int = 48) -> Any:
    """Images whose label is mostly what the model says."""
    images = make_images(count, seed=9)
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    labels[::5] = 0
    return tensor_images(images, labels)


class Named:
    """A method that counts how often it is asked."""

    def __init__(self, name: str = "mine") -> None:
        self.name, self.asked = name, 0

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        self.asked += 1
        return make_methods(["tome"])[0].build(job, ratio)


class Broken(Named):
    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        raise self.error

    error: Exception = RecoverError("The loss is not a finite number.")


def test_rows_are_what_measuring_by_hand_gives() -> None:
    model = make_host()
    val = labelled(model)
    table = compare(model, IMAGES, val, ["tome", "ps-matched"], [0.6, 0.8], QUICK)
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [
        *(("tome", 0.8), ("ps-matched", 0.8), ("tome", 0.6), ("ps-matched", 0.6)),
    ]
    cell = make_methods(["tome"])[0].build(job_of(model), 0.6)
    assert isinstance(cell, Cell)
    own, base, difference = evaluate_pair(cell.module, model, val)
    row = table["rows"][2]
    assert row["macs"] == ps.count_macs(cell.module)
    assert row["macs_ratio"] == row["macs"] / ps.count_macs(model) <= 0.6
    assert (row["untuned"]["top1"], row["untuned"]["top5"]) == (own.top1, own.top5)
    assert (table["base"]["untuned"]["top1"], table["base"]["macs_ratio"]) == (base.top1, 1.0)
    assert row["untuned"]["against_base"]["low"] == pytest.approx(difference.low)
    assert row["untuned"]["against_base"]["difference"] == pytest.approx(difference.difference)
    assert row["throughput"] > 0
    assert row["speedup"] == pytest.approx(row["throughput"] / row["base_throughput"])
    assert json.loads(json.dumps(table)) == table


def test_only_the_cells_asked_for() -> None:
    model, mine, other = make_host(), Named(), Named("other")
    only = {("mine", 0.8), ("other", 0.6)}
    table = compare(model, IMAGES, labelled(model), [mine, other], [0.6, 0.8], QUICK, only=only)
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [("mine", 0.8), ("other", 0.6)]
    assert (mine.asked, other.asked) == (1, 1)


def test_the_papers_dynamic_variant() -> None:
    cell = make_methods(["dps"])[0].build(job_of(make_host()), 0.7)
    assert isinstance(cell, Cell)
    plan = cell.module.plan
    assert isinstance(plan, ps.SlimPlan)
    assert plan.predictor is not None
    assert (plan.select, plan.removed, plan.predictor.kind) == ("predicted", "drop", "pool")
    assert plan.provenance["settings"]["score"] == "impact"


def test_the_first_of_each_ratio() -> None:
    def row(method: str, ratio: float, right: str) -> dict[str, Any]:
        hits = from_hex(right, 8)
        score = {"top1": float(hits.double().mean() * 100), "images": 8, "right": right}
        return {"method": method, "target_macs": ratio, "untuned": score}

    base = {"untuned": {"images": 8, "right": "ff"}}
    empty = {"method": "d", "target_macs": 0.5, "reason": "no"}
    rows = with_intervals(base, [row("a", 0.5, "f0"), row("b", 0.5, "fc"), empty, row("a", 0.3, "80")])
    assert [own["untuned"]["first"] for own in rows if own.get("untuned")] == ["b", "b", "a"]
    assert rows[0]["untuned"]["against_first"]["difference"] == -25.0
    assert rows[0]["untuned"]["against_base"]["difference"] == -50.0
    assert rows[1]["untuned"]["against_first"]["difference"] == 0.0
    assert rows[2] == empty


def test_recovery_is_measured_beside() -> None:
    model = make_host()
    val = labelled(model)
    table = compare(model, IMAGES, val, ["hvt"], [0.8], LEARN)
    (row,) = table["rows"]
    assert set(row["recovered"]) >= {"top1", "right", "recovery", "against_base"}
    assert row["recovered"]["recovery"]["after"]["loss"] <= row["recovered"]["recovery"]["before"]["loss"]
    cell = make_methods(["hvt"])[0].build(job_of(model), 0.8)
    assert isinstance(cell, Cell)
    again = ps.finetune(cell.module, model, IMAGES, LEARN.recover)
    assert row["recovered"]["top1"] == evaluate(again, val).top1


def test_what_can_not_be_reached_is_an_empty_cell(tmp_path: Path) -> None:
    model = make_host("mean")
    table = compare(
        model, IMAGES, labelled(model), ["evit", Broken("broken"), "hvt"], [0.8], QUICK, folder=tmp_path / "a"
    )
    evit, broken, hvt = table["rows"]
    assert "reads no class token" in evit["reason"]
    assert broken["reason"] == "The loss is not a finite number"
    assert hvt["reason"] is None
    assert "untuned" not in evit
    memory = Broken("broken")
    memory.error = torch.OutOfMemoryError("out of memory")
    (row,) = compare(model, IMAGES, labelled(model), [memory], [0.8], QUICK)["rows"]
    assert row["reason"] == "it does not fit in the memory of cpu"


def test_a_bug_is_no_empty_cell() -> None:
    model, method = make_host(), Broken("broken")
    method.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        compare(model, IMAGES, labelled(model), [method], [0.8], QUICK)


def test_resume_skips_what_is_done(tmp_path: Path) -> None:
    model, folder = make_host(), tmp_path / "a"
    val, mine, broken = labelled(model), Named(), Broken("broken")
    broken.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        compare(model, IMAGES, val, [mine, broken], [0.8, 0.6], QUICK, folder=folder)
    assert mine.asked == 2
    kept = {path.name: path.read_bytes() for path in (folder / "cells").glob("*.json")}
    assert set(kept) == {"base.json", "mine@0.8.json", "mine@0.6.json"}
    again, whole = Named(), Named("broken")
    table = compare(model, IMAGES, val, [again, whole], [0.8, 0.6], QUICK, folder=folder, resume=True)
    assert (again.asked, whole.asked) == (0, 2)
    assert {name: (folder / "cells" / name).read_bytes() for name in kept} == kept
    assert [row["method"] for row in table["rows"]] == ["mine", "broken"] * 2
    assert json.loads((folder / "comparison.json").read_text()) == table
    assert not (folder / "working").exists()
    more = compare(model, IMAGES, val, [again, Named("other")], [0.8], QUICK, folder=folder, resume=True)
    assert [row["method"] for row in more["rows"]] == ["mine", "other"]


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    model, val, found = make_host(), labelled(make_host()), []

    def stop(event: Any) -> None:
        found.append(event["event"])
        if found.count("candidate") == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(model, IMAGES, val, ["tome", "ps-matched"], [0.6], QUICK, folder=tmp_path / "a", listen=stop)
    assert (tmp_path / "a" / "working" / "searches" / "ps-matched").exists()
    whole = compare(model, IMAGES, val, ["ps-matched"], [0.6], QUICK)
    resumed = compare(model, IMAGES, val, ["ps-matched"], [0.6], QUICK, folder=tmp_path / "a", resume=True)
    assert resumed["rows"][0]["detail"] == whole["rows"][0]["detail"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    model = make_host()
    val = labelled(model)
    compare(model, IMAGES, val, ["tome"], [0.8], QUICK, folder=tmp_path / "a")
    with pytest.raises(RunError, match="already holds a comparison; go on with --resume"):
        compare(model, IMAGES, val, ["tome"], [0.8], QUICK, folder=tmp_path / "a")
    with pytest.raises(RunError, match="started with other weights"):
        compare(make_host(seed=4), IMAGES, val, ["tome"], [0.8], QUICK, folder=tmp_path / "a", resume=True)
    with pytest.raises(RunError, match="started with other settings"):
        compare(model, IMAGES, val, ["tome"], [0.8], LEARN, folder=tmp_path / "a", resume=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("kept")
    with pytest.raises(RunError, match="not empty and holds no comparison"):
        compare(model, IMAGES, val, ["tome"], [0.8], QUICK, folder=tmp_path / "b")
    (tmp_path / "c").write_text("a file")
    with pytest.raises(RunError, match="is no folder"):
        compare(model, IMAGES, val, ["tome"], [0.8], QUICK, folder=tmp_path / "c")


def test_a_failure_before_the_first_cell_leaves_nothing(tmp_path: Path) -> None:
    model = make_host()
    unlabelled = tensor_images(make_images(4))
    with pytest.raises(PatchslimError, match="has no labels"):
        compare(model, IMAGES, unlabelled, ["tome"], [0.8], QUICK, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_hits_come_back_from_text(bits: list[bool]) -> None:
    right = torch.tensor(bits)
    assert torch.equal(from_hex(to_hex(right), len(bits)), right)
