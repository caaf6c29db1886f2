"""Steps as JSON: the same step comes back, and what is none is refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.plan import SlimPlan
from patchslim.steps import KINDS, Step, read_step, register_step
from small import make_host
from step_plans import STEPS, mixes

HOST = make_host()


@pytest.mark.parametrize("name", STEPS)
def test_the_same_step_comes_back(name: str) -> None:
    step = STEPS[name](9)
    text = json.dumps(step.model_dump())
    assert read_step(json.loads(text)) == step
    assert read_step(step) is step
    assert type(read_step(json.loads(text))) is KINDS[step.kind]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_same_plan_comes_back_with_the_same_bytes(data: st.DataObject) -> None:
    plan, _ = data.draw(mixes(HOST, list(STEPS)))
    again = SlimPlan.model_validate(json.loads(plan.to_json()))
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert len(plan.to_json().splitlines()) < 60  # a line for each block, not for each number


BAD: list[tuple[Any, str]] = [
    ({"kind": "burn"}, "steps.1: there is no step 'burn'; known are carry, cover, dynamicvit"),
    ({"n": 3}, "steps.1: there is no step None"),
    (["slice", 3], "steps.1: there is no step None"),
    ({"kind": ["slice"]}, "steps.1: there is no step"),
    ({"kind": "slice"}, "steps.1.n: Field required"),
    ({"kind": "slice", "n": "3"}, "steps.1.n: Input should be a valid integer"),
    ({"kind": "slice", "n": 3.5}, "steps.1.n: Input should be a valid integer"),
    ({"kind": "slice", "n": True}, "steps.1.n: Input should be a valid integer"),
    ({"kind": "slice", "n": -1}, "steps.1.n: Input should be greater than or equal to 0"),
    ({"kind": "slice", "n": 3, "colour": "red"}, "unknown key 'steps.1.colour'"),
    ({"kind": "keep", "n": 3}, "unknown key 'steps.1.n'"),
    ({"kind": "merge", "n": 9}, "steps.1.channels: Field required"),
    ({"kind": "merge", "n": 9, "channels": 0}, "steps.1.channels"),
    ({"kind": "merge", "n": 9, "channels": 3, "drop": "yes"}, "steps.1.drop"),
    ({"kind": "predict", "n": 9, "selector": "oracle"}, "steps.1.selector: Input should be 'context', 'mlp' or 'pool'"),
    ({"kind": "threshold", "n": 9, "above": float("nan")}, "steps.1.above"),
    ({"kind": "threshold", "n": 9, "least": 0}, "steps.1.least"),
    ({"kind": "tome", "r": 0}, "steps.1.r: Input should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("step", "words"), BAD)
def test_what_is_no_step_is_refused_in_one_sentence(tmp_path: Path, step: Any, words: str) -> None:
    data = json.loads(ps.full_plan(HOST).to_json())
    data["steps"][1] = step
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ps.PlanError) as refused:
        SlimPlan.load(path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_kind_from_elsewhere_is_read_like_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchslim.steps.base.KINDS", dict(KINDS))

    @register_step
    class Third(Step):
        kind: str = "third"
        share: float = 0.5

    found = read_step({"kind": "third", "share": 0.25})
    assert isinstance(found, Third)
    assert found.share == 0.25
    with pytest.raises(ValueError, match=r"known are .*, third, threshold"):
        read_step({"kind": "fourth"})
