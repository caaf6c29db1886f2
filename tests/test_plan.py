"""Plans: what they accept, how they are written, and that order makes every kept set a prefix."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import patchslim as ps
from patchslim.plan import make_plan
from small import make_host, nested

HOST = make_host()
INFO = ps.inspect(HOST)


@given(nested())
def test_every_kept_set_is_a_prefix_of_the_order(kept: list[list[int]]) -> None:
    plan = make_plan(INFO, kept)
    assert sorted(plan.order) == list(range(INFO.patches))
    for block, count in zip(kept, plan.counts, strict=True):
        assert set(plan.order[:count]) == set(block)


@given(nested(), st.sampled_from(["drop", "carry"]))
def test_json_gives_the_same_plan_and_the_same_bytes(kept: list[list[int]], removed: Any) -> None:
    plan = make_plan(INFO, kept, removed, {"note": "a"})
    again = ps.SlimPlan.model_validate(json.loads(plan.to_json()))
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_save_and_load(tmp_path: Path) -> None:
    plan = ps.full_plan(HOST)
    plan.save(tmp_path / "plan.json")
    assert ps.SlimPlan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "version 99"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"kept": [[0, 1], [0, 2], [0], []]}, "not nested: block 2 keeps patch 2"),
        ({"kept": [[0, 16], [0], [0], []]}, "patches are 0 to 15"),
        ({"kept": [[1, 0], [0], [0], []]}, "ascending"),
        ({"kept": [[0, 0], [0], [0], []]}, "ascending"),
        ({"kept": [[0]]}, "1 blocks where the model has 4"),
        ({"kept": [["0"], [], [], []]}, "kept.0.0"),
        ({"removed": "burn"}, "removed"),
        ({"host": {}}, "host"),
        ({"host": json.loads(ps.full_plan(HOST).to_json())["host"] | {"patches": 10**12}}, "patches"),
    ],
)
def test_a_bad_plan_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    data = json.loads(ps.full_plan(HOST).to_json()) | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ps.PlanError, match=words) as caught:
        ps.SlimPlan.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "not json", '{"kept": []}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ps.PlanError):
        ps.SlimPlan.load(path)
    with pytest.raises(ps.PlanError, match="There is no plan"):
        ps.SlimPlan.load(tmp_path / "other.json")


def test_a_plan_of_another_model_is_refused() -> None:
    plan = ps.full_plan(HOST)
    for other in (make_host(depth=5), make_host(img_size=40), make_host("registers"), make_host("distilled")):
        with pytest.raises(ps.PlanError, match="does not fit"):
            ps.apply(other, plan)


def test_a_mean_readout_needs_a_patch() -> None:
    info = ps.inspect(make_host("mean"))
    with pytest.raises(ps.PlanError, match="at least one patch"):
        make_plan(info, [[0], [0], [0], []])
