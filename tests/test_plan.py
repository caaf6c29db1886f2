"""Plans: what they accept and refuse, how they are written, and that static patches are prefixes of one order."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import patchslim as ps
from patchslim.plan import PLAN_VERSION, make_plan, order_of, static_plan, steps_by
from patchslim.steps import Step
from patchslim.steps.carry import Carry
from patchslim.steps.cover import Cover
from patchslim.steps.evit import EViT
from patchslim.steps.keep import Keep
from patchslim.steps.merge import Merge
from patchslim.steps.pool import Pool
from patchslim.steps.power import Power
from patchslim.steps.predict import Predict
from patchslim.steps.slice import Slice
from patchslim.steps.threshold import Threshold
from patchslim.steps.tome import ToMe
from small import PYRAMID, make_host, nested

HOST = make_host()
INFO = ps.inspect(HOST)
ORDER = list(reversed(range(16)))


@given(nested(), st.sampled_from(["slice", "carry"]))
def test_every_kept_set_is_a_prefix_of_the_order(kept: list[list[int]], step: Any) -> None:
    plan = static_plan(INFO, kept, step)
    assert plan.order is not None
    assert sorted(plan.order) == list(range(INFO.patches))
    assert plan.kept == [sorted(block) for block in kept]
    for block, count in zip(kept, plan.counts, strict=True):
        assert set(plan.order[:count]) == set(block)


def test_what_a_plan_says_of_its_blocks() -> None:
    """Counts, what enters, and which blocks choose, by hand."""
    steps = [Merge(n=12, channels=3), Keep(), ToMe(r=4), Slice(n=0)]
    plan = make_plan(INFO, steps)
    assert plan.counts == (12, 12, 8, 0)
    assert (plan.entering, plan.leaving, plan.choosing) == ([16, 12, 12, 8], 0, [1, 3])
    assert (plan.per_image, plan.rectangular, plan.exact) == (True, True, True)
    carried = make_plan(INFO, [Carry(n=12), Carry(n=5), Carry(n=5), Carry(n=0)], ORDER)
    assert carried.counts == (12, 5, 5, 0)
    assert (carried.entering, carried.leaving, carried.per_image) == ([16] * 4, 16, False)
    pooled = make_plan(INFO, [Pool(), Keep(), Pool(), Keep()])
    assert pooled.counts == (16, 7, 7, 3)
    assert (pooled.leaving, pooled.exact) == (3, False)
    assert not make_plan(INFO, [Threshold(n=9, above=0.0), Keep(), Keep(), Slice(n=0)]).rectangular


def test_steps_are_made_where_some_patches_go_and_others_stay() -> None:
    make = steps_by(INFO, lambda n, drop: Slice(n=n) if drop else Cover(n=n, channels=3))
    assert make([12, 9, 9, 5], [2]) == [Cover(n=12, channels=3), Slice(n=9), Keep(), Cover(n=5, channels=3)]
    assert make([16, 16, 1, 0], []) == [Keep(), Keep(), Cover(n=1, channels=3), Slice(n=0)]


def test_save_and_load(tmp_path: Path) -> None:
    plan = static_plan(INFO, PYRAMID, method="mine", provenance={"note": "a", "speed": {"asked": 1.5}})
    plan.save(tmp_path / "plan.json")
    again = ps.SlimPlan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.to_json() == plan.to_json() == (tmp_path / "plan.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert ps.full_plan(HOST).order is None
    assert "order" not in ps.full_plan(HOST).to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "a plan of version 99, this patchslim reads 5; upgrade patchslim"),
        ({"version": 4}, "a plan of version 4, this patchslim reads 5; make the plan anew with `patchslim slim`"),
        ({"version": "5"}, "a plan of version 5, this"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"steps": [{"kind": "keep"}]}, "it has 1 steps where the model has 4 blocks"),
        ({"order": [0, 1]}, "the order does not name each patch from 0 to 15 once"),
        ({"order": [0, *range(15)]}, "the order does not name each patch"),
        ({"order": ["0", *range(1, 16)]}, "order.0"),
        (
            {"order": None, "steps": [{"kind": "slice", "n": 3}] * 4},
            "block 1 takes patches in an order, and the plan has",
        ),
        ({"host": {}}, "host.name: Field required"),
        ({"host": json.loads(ps.full_plan(HOST).to_json())["host"] | {"patches": 10**12}}, "host.patches"),
        ({"average_macs": -1}, "average_macs"),
    ],
)
def test_a_bad_plan_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    data = json.loads(static_plan(INFO, PYRAMID).to_json()) | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ps.PlanError) as caught:
        ps.SlimPlan.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "not json", '{"steps": []}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ps.PlanError, match=r"plan\.json"):
        ps.SlimPlan.load(path)
    with pytest.raises(ps.PlanError, match="There is no plan"):
        ps.SlimPlan.load(tmp_path / "other.json")
    assert PLAN_VERSION == 5  # docs/files.md


MERGE, THRESHOLD = Merge(n=9, channels=3), Threshold(n=9, above=0.0)
BAD: list[tuple[list[Step], str]] = [
    ([Slice(n=8), Slice(n=9), Keep(), Keep()], "block 2 keeps 9 patches of 8 that come in"),
    ([Carry(n=8), Cover(n=17, channels=3), Keep(), Keep()], "block 2 keeps 17 patches of 16 that come in"),
    ([Keep(), Merge(n=0, channels=3), Keep(), Keep()], "block 2 keeps no patch to merge into or to choose"),
    ([Keep(), Cover(n=0, channels=3), Keep(), Keep()], "block 2 keeps no patch"),
    ([EViT(n=1), Keep(), Keep(), Keep()], "block 1 keeps no patch"),
    ([EViT(n=0), Keep(), Keep(), Keep()], "block 1 keeps no patch"),
    ([ToMe(r=9), Keep(), Keep(), Keep()], "block 1 merges 9 of 16 patches; at most half can"),
    ([Pool(), Pool(), Pool(), Pool()], "block 4 pools 1 patches; it takes at least 3"),
    ([MERGE, Slice(n=3), Keep(), Keep()], "block 2 takes patches in the plan's order, but block 1 chose others"),
    ([Merge(n=16, channels=3), Slice(n=3), Keep(), Keep()], "block 2 takes patches in the plan's order, but block 1"),
    (
        [Power(n=16), Keep(), Cover(n=3, channels=3), Keep()],
        "block 3 takes patches in the plan's order, but block 1 chose others",
    ),
    ([MERGE, Carry(n=9), Keep(), Keep()], "block 2 takes patches in the plan's order, but block 1 chose others"),
    (
        [Cover(n=9, channels=3), Carry(n=9), Keep(), Keep()],
        "block 2 takes no token that stands for several patches; block 1 merged",
    ),
    ([MERGE, Keep(), EViT(n=5), Keep()], "block 3 takes no token that stands for several patches; block 1 merged"),
    ([ToMe(r=3), Power(n=5), Keep(), Keep()], "block 2 takes no token that stands for several"),
    (
        [ToMe(r=3), Predict(n=5, selector="pool"), Keep(), Keep()],
        "block 2 asks where patches sit, and after block 1",
    ),
    ([Slice(n=9), THRESHOLD, Keep(), Slice(n=0)], "block 1 keeps a fixed number where others keep what they need"),
    ([Carry(n=16), THRESHOLD, Keep(), Slice(n=0)], "block 1 keeps a fixed number where others keep what they need"),
    ([THRESHOLD, Merge(n=9, channels=3), Keep(), Slice(n=0)], "block 2 keeps a fixed number where others keep what"),
    ([THRESHOLD, Keep(), Keep(), Keep()], "images end with different numbers of patches; let the last block keep none"),
]


@pytest.mark.parametrize(("steps", "words"), BAD)
def test_steps_that_can_not_follow_one_another_are_refused(steps: list[Step], words: str) -> None:
    with pytest.raises(ps.PlanError) as refused:
        make_plan(INFO, steps, ORDER)
    assert str(refused.value).startswith(f"These steps do not make a plan: {words}")


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([[0, 1], [0, 2], [0], []], "block 2 keeps patch 2, an earlier one does not"),
        ([[0, 16], [0], [0], []], "block 1 keeps patch 16, but patches are 0 to 15"),
        ([[0, -1], [0], [0], []], "block 1 keeps patch -1, but patches are 0 to 15"),
        ([[0, 0], [0], [0], []], "the patches of block 1 repeat"),
        ([[0], [0]], "it has 2 steps where the model has 4 blocks"),
    ],
)
def test_sets_that_are_not_nested_are_refused(kept: list[list[int]], words: str) -> None:
    with pytest.raises(ps.PlanError, match=words):
        static_plan(INFO, kept)


def test_the_order_goes_by_how_long_patches_stay() -> None:
    assert order_of([[5, 2, 3], [5, 3], [3]], 6) == [3, 5, 2, 0, 1, 4]


def test_a_plan_of_another_model_is_refused() -> None:
    plan = ps.full_plan(HOST)
    others: dict[str, dict[str, Any]] = {
        "depth": {"depth": 5},
        "patches": {"img_size": 40},
        "width": {"embed_dim": 48},
        "heads": {"num_heads": 4},
    }
    for field, settings in others.items():
        with pytest.raises(ps.PlanError, match=rf"\({field} \d+\) and does not fit VisionTransformer \({field} \d+\)"):
            ps.apply(make_host(**settings), plan)
    with pytest.raises(ps.PlanError, match="does not fit VisionTransformerDistilled"):
        ps.apply(make_host("distilled"), plan)


def test_a_mean_readout_needs_a_patch() -> None:
    info = ps.inspect(make_host("mean"))
    with pytest.raises(ps.PlanError, match="the mean readout needs at least one patch in the last block"):
        static_plan(info, [[0], [0], [0], []])


def test_a_plan_is_changed_only_into_another_plan() -> None:
    plan = static_plan(INFO, PYRAMID)
    assert plan.with_(method="mine").method == "mine"
    with pytest.raises(ValueError, match="2 steps"):
        plan.with_(steps=plan.steps[:2])
    with pytest.raises(ValueError, match="frozen"):
        plan.method = "mine"
