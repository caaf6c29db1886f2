"""A comparison's rows after recovery, its empty cells, its folder, and what an interruption costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from measure.comparing import IMAGES, LEARN, QUICK, Broken, Named, labelled
from patchslim.cache import Cache
from patchslim.data import tensor_images
from patchslim.errors import BudgetError, MethodError, PatchslimError, RunError
from patchslim.measure import compare, evaluate
from small import make_host, make_images


def test_recovery_is_measured_beside() -> None:
    model = make_host()
    val = labelled(model)
    (row,) = compare(model, IMAGES, val, ["hvt"], [0.8], LEARN)["rows"]
    report = row["recovered"]["recovery"]
    assert report["after"]["loss"] <= report["before"]["loss"]
    again = ps.finetune(ps.slim(model, IMAGES, "hvt", macs=0.8), model, IMAGES, LEARN.recover)
    assert row["recovered"]["top1"] == evaluate(again, val).top1
    assert row["recovered"]["against_base"]["images"] == 48
    assert row["recovered"]["first"] == "hvt"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Broken.error, "The loss is not a finite number"),
        (MethodError("The method mine of the package other failed; tell its authors."), "The method mine of the "),
        (torch.OutOfMemoryError("out of memory"), "it does not fit in the memory of cpu"),
    ],
)
def test_a_method_that_fails_has_an_empty_cell_with_the_reason(error: Exception, reason: str) -> None:
    model, broken = make_host("mean"), Broken("broken")
    broken.error = error
    table = compare(model, IMAGES, labelled(model), [broken, "evit", "hvt"], [0.8], QUICK)
    own, evit, hvt = table["rows"]
    assert own["reason"].startswith(reason)
    assert "reads no class token" in evit["reason"]
    assert hvt["reason"] is None
    assert "untuned" not in own | evit


def test_a_ratio_out_of_reach_leaves_the_other_one_alone() -> None:
    model = make_host()
    rows = compare(model, IMAGES, labelled(model), ["merge", "tome"], [0.8, 0.02], QUICK)["rows"]
    reasons = {(row["method"], row["target_macs"]): row["reason"] for row in rows}
    assert reasons["merge", 0.8] is reasons["tome", 0.8] is None
    assert reasons["merge", 0.02].startswith("A MAC ratio of 0.02 can't be reached on")
    assert reasons["tome", 0.02].startswith("ToMe takes at least 0.")


def test_a_bug_is_no_empty_cell() -> None:
    model, method = make_host(), Broken("broken")
    method.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        compare(model, IMAGES, labelled(model), [method], [0.8], QUICK)


def test_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    model, folder = make_host(), tmp_path / "a"
    val, mine, broken = labelled(model), Named(), Broken("broken")
    broken.error = KeyboardInterrupt()
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


def test_an_interrupted_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same plan, and what the cache has is not found out again."""
    model, found, asked = make_host(), list[str](), list[Any]()
    val, put = labelled(model), Cache.put

    def stop(event: Any) -> None:
        found.append(event["event"])
        if found.count("candidate") == 5:
            raise KeyboardInterrupt

    def counted(self: Cache, key: Any, *given: Any) -> None:
        asked.append(key)
        put(self, key, *given)

    folder = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        compare(model, IMAGES, val, ["tome", "merge"], [0.6], QUICK, folder=folder, listen=stop)
    known = (folder / "working" / "searches" / "merge" / "cache.jsonl").read_text().count("\n")
    assert known >= 5
    monkeypatch.setattr(Cache, "put", counted)
    (alone,) = compare(model, IMAGES, val, ["merge"], [0.6], QUICK)["rows"]
    whole = len(asked)
    (row,) = compare(model, IMAGES, val, ["merge"], [0.6], QUICK, folder=folder, resume=True)["rows"]
    assert row["detail"] == alone["detail"]
    assert len(asked) - whole == whole - known


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    model = make_host()
    val = labelled(model)

    def at(folder: str, model: Any = model, config: Any = QUICK, resume: bool = False) -> None:
        compare(model, IMAGES, val, ["tome"], [0.8], config, folder=tmp_path / folder, resume=resume)

    at("a")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "already holds a comparison; go on with --resume"),
        ({"model": make_host(seed=4), "resume": True}, "started with other weights"),
        ({"config": LEARN, "resume": True}, "started with other settings"),
    ]
    for words, told in refused:
        with pytest.raises(RunError, match=told):
            at("a", **words)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("kept")
    with pytest.raises(RunError, match="not empty and holds no comparison"):
        at("b")
    (tmp_path / "c").write_text("a file")
    with pytest.raises(RunError, match="is a file"):
        at("c")
    assert (tmp_path / "b" / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_before_the_first_cell_leaves_nothing(there: bool, tmp_path: Path) -> None:
    model, folder = make_host(), tmp_path / "a"
    if there:
        folder.mkdir()
    with pytest.raises(PatchslimError, match="has no labels"):
        compare(model, IMAGES, tensor_images(make_images(4)), ["tome"], [0.8], QUICK, folder=folder)
    assert folder.exists() == there
    assert not list(tmp_path.glob("a/*"))


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    model = make_host()
    (tmp_path / "a").mkdir()
    compare(model, IMAGES, labelled(model), ["tome"], [0.8], QUICK, folder=tmp_path / "a")
    with (tmp_path / "a" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="Another process is working"):
            compare(model, IMAGES, labelled(model), ["tome"], [0.8], QUICK, folder=tmp_path / "a", resume=True)


def test_a_cell_that_has_changed_is_told(tmp_path: Path) -> None:
    """Also one of another comparison."""
    model = make_host()
    val = labelled(model)

    def at(name: str, ratios: list[float], config: Any = QUICK) -> Any:
        return compare(model, IMAGES, val, ["tome"], ratios, config, folder=tmp_path / name, resume=True)["rows"]

    rows = at("a", [0.8])
    at("b", [0.8], replace(QUICK, seed=1))
    cell = tmp_path / "a" / "cells" / "tome@0.8.json"
    good = cell.read_text()
    for bad in (
        good.replace('"method": "tome"', '"method": "evit"'),
        (tmp_path / "b" / "cells" / cell.name).read_text(),
    ):
        cell.write_text(bad)
        with pytest.raises(RunError, match=r"tome@0\.8\.json is not as it was written"):
            at("a", [0.8])
    cell.write_text(good)
    assert at("a", [0.8]) == rows


def test_a_comparison_that_was_killed_before_its_first_row_is_begun_anew(tmp_path: Path) -> None:
    model = make_host()
    (tmp_path / "cells").mkdir()
    (tmp_path / "started.json").write_text('{"model": "another"}')
    assert compare(model, IMAGES, labelled(model), ["tome"], [0.8], QUICK, folder=tmp_path)["rows"]


def test_a_ratio_that_is_no_share_costs_nothing(tmp_path: Path) -> None:
    model = make_host()
    with pytest.raises(BudgetError, match="between 0 and 1"):
        compare(model, IMAGES, labelled(model), ["tome"], [0.8, float("nan")], QUICK, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()
