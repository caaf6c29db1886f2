"""A comparison: rows against measuring by hand, rows of their own, and paired intervals."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import patchslim as ps
from measure.comparing import IMAGES, QUICK, Named, labelled
from patchslim.measure import CompareConfig, SpeedConfig, compare, comparison, evaluate_pair
from patchslim.measure.comparison import label, timed_beside
from patchslim.measure.paired import from_hex, to_hex, with_intervals
from patchslim.methods import Fitted, Task
from small import make_host, make_images


@dataclass(frozen=True)
class Odd:
    """A setting that is no name of a file."""

    name: ClassVar[str] = "odd"
    file: str = "a/b"

    def fit(self, task: Task) -> Fitted:
        return ps.methods.ToMe().fit(task)


def test_rows_are_what_measuring_by_hand_gives() -> None:
    model = make_host()
    val = labelled(model)
    table = compare(model, IMAGES, val, ["tome", "merge"], [0.6, 0.8], QUICK)
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [
        *(("tome", 0.8), ("merge", 0.8), ("tome", 0.6), ("merge", 0.6)),
    ]
    for row in table["rows"]:
        slim: Any = ps.slim(model, IMAGES, row["method"], macs=row["target_macs"], batch_size=8)
        own, base, difference = evaluate_pair(slim, model, val)
        assert row["macs"] == ps.count_macs(slim)
        assert row["macs_ratio"] == row["macs"] / ps.count_macs(model) <= row["target_macs"]
        assert row["detail"]["patches_per_block"] == list(slim.plan.counts)
        assert (row["untuned"]["top1"], row["untuned"]["top5"]) == (own.top1, own.top5)
        assert (table["base"]["untuned"]["top1"], table["base"]["macs_ratio"]) == (base.top1, 1.0)
        assert row["untuned"]["against_base"] == pytest.approx(vars(difference))
        assert row["throughput"] > 0
        assert row["speedup"] == pytest.approx(row["throughput"] / row["base_throughput"])
    assert json.loads(json.dumps(table)) == table


def test_a_row_is_the_same_whatever_was_measured_before_it() -> None:
    """Methods that draw random numbers or share what is learnt."""
    model = make_host()
    val, methods = labelled(model), [ps.methods.SCOP(epochs=2), ps.methods.Power(epochs=2), "merge"]
    every = compare(model, IMAGES, val, methods, [0.8, 0.6], QUICK)["rows"]
    for method in methods:
        (alone,) = compare(model, IMAGES, val, [method], [0.6], QUICK)["rows"]
        (among,) = (row for row in every if (row["method"], row["target_macs"]) == (alone["method"], 0.6))
        assert (among["detail"], among["untuned"]["right"]) == (alone["detail"], alone["untuned"]["right"])


def merging(counts: Sequence[int]) -> int:
    """In how many blocks but the last, which computes none anyway, patches merge."""
    return sum(after < before for before, after in zip([16, *counts], counts[:-1], strict=False))


def test_two_settings_of_a_method_have_rows_of_their_own(tmp_path: Path) -> None:
    model, folder = make_host(), tmp_path / "a"
    methods = [ps.methods.Merge(), ps.methods.Merge(blocks=1), "merge", Odd(), Odd("c/d")]
    table = compare(model, IMAGES, labelled(model), methods, [0.7], QUICK, folder=folder)
    names = ["merge", "merge,blocks=1", "odd", "odd,file=c/d"]
    assert [row["method"] for row in table["rows"]] == names
    assert [merging(row["detail"]["patches_per_block"]) for row in table["rows"][:2]] == [2, 1]
    cells = {path.name for path in (folder / "cells").iterdir()}
    assert cells == {
        "base.json",
        "merge@0.7.json",
        "merge,blocks=1@0.7.json",
        "odd@0.7.json",
        "odd,file=c%2Fd@0.7.json",
    }


def test_a_label_has_the_settings_that_are_not_the_usual_ones() -> None:
    assert label(ps.methods.Merge(blocks=3)) == "merge"
    assert (
        label(ps.methods.Predict(blocks=None, removed="drop", threshold=True)) == "predict,removed=drop,threshold=True"
    )
    assert label(ps.methods.Attention(tune_epochs=0)) == "attention"
    assert label(Named()) == "mine"


def test_where_images_differ_they_are_what_is_timed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, timed = make_host(), list[torch.Tensor]()

    def watched(slim: nn.Module, base: nn.Module, batch: torch.Tensor, config: SpeedConfig) -> Any:
        timed.append(batch)
        return timed_beside(slim, base, batch, config)

    monkeypatch.setattr(comparison, "timed_beside", watched)
    val, method = labelled(model, 3), ps.methods.Predict(threshold=True, epochs=1)
    config = CompareConfig(speed=SpeedConfig(batch_size=5, seconds=0.01), batch_size=8)
    (row,) = compare(model, IMAGES, val, [method], [0.8], config)["rows"]
    images = make_images(3, seed=9)
    assert torch.equal(timed[-1], images[[0, 1, 2, 0, 1]])
    slim = ps.slim(model, IMAGES, method, macs=0.8, batch_size=8)
    assert row["macs"] == round(float(ps.image_macs(slim, images).double().mean()))
    compare(model, IMAGES, val, ["tome"], [0.8], config)
    assert not torch.equal(timed[-1], timed[0][[0, 1, 2, 0, 1]])  # noise anywhere else, of the same size
    assert timed[-1].shape == (5, 3, 32, 32)


def test_only_the_cells_asked_for() -> None:
    model, mine, other = make_host(), Named(), Named("other")
    only = {("mine", 0.8), ("other", 0.6)}
    table = compare(model, IMAGES, labelled(model), [mine, other], [0.6, 0.8], QUICK, only=only)
    assert [(row["method"], row["target_macs"]) for row in table["rows"]] == [("mine", 0.8), ("other", 0.6)]
    assert (mine.asked, other.asked) == (1, 1)


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


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_hits_come_back_from_text(bits: list[bool]) -> None:
    right = torch.tensor(bits)
    assert torch.equal(from_hex(to_hex(right), len(bits)), right)
    assert int(to_hex(right), 16) == sum(2**place for place, bit in enumerate(reversed(bits)) if bit)
