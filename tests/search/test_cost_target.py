"""What is asked of a search: one limit, within its bounds, and the conditions under which time is measured."""

import json
import math
from typing import Any

import pytest

import patchslim as ps
from patchslim.search import Target
from patchslim.timing.stopwatch import Conditions


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({}, 0.01),  # the paper's
        ({"tolerance": 0.2}, 0.2),
        ({"tolerance": 0.0}, 0.0),
        ({"macs": 0.5}, None),
        ({"speedup": 1.5}, None),
    ],
)
def test_an_error_is_the_limit_unless_macs_or_time_are(asked: dict[str, Any], allowed: float | None) -> None:
    assert Target(**asked).allowed == allowed


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tolerance": -0.1}, "can't be -0.1; try 0.01"),
        ({"tolerance": math.nan}, "can't be nan"),
        ({"tolerance": math.inf}, "can't be inf"),
        ({"macs": 0.0}, "between 0 and 1, not at 0.0; try 0.6"),
        ({"macs": 1.0}, "between 0 and 1, not at 1.0"),
        ({"macs": math.nan}, "between 0 and 1, not at nan"),
        ({"speedup": 1.0}, "above 1, not 1.0; try 1.6"),
        ({"speedup": -2.0}, "above 1, not -2.0"),
        ({"speedup": math.inf}, "above 1, not inf"),
        ({"speedup": math.nan}, "above 1, not nan"),
        ({"tolerance": 0.1, "macs": 0.5}, "one of them"),
        ({"tolerance": 0.1, "speedup": 1.5}, "one of them"),
        ({"macs": 0.5, "speedup": 1.5}, "one of them"),
        ({"batch_size": 0}, "at least 1 image, not 0"),
        ({"dtype": "int4"}, "no dtype 'int4'; choose one of float32, bfloat16, float16"),
        ({"mode": "fast"}, "no mode 'fast' to time in; choose one of auto, eager, compiled, graph, compiled-graph"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_does(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.BudgetError, match=words):
        Target(**asked)


@pytest.mark.parametrize("asked", [{"macs": 1.2}, {"tolerance": -1.0}, {"speedup": 0.9}, {"macs": 0.5, "speedup": 2.0}])
def test_slim_refuses_it_before_anything_else(asked: dict[str, float]) -> None:
    no_images: Any = iter(())
    with pytest.raises(ps.BudgetError):
        ps.slim(None, no_images, **asked)  # type: ignore[arg-type]


def test_what_was_asked_is_written_down_and_asks_for_the_same() -> None:
    target = Target(speedup=1.5, batch_size=4, dtype="bfloat16", mode="eager")
    assert Target(**json.loads(json.dumps(target.as_dict()))) == target
    assert target.conditions == Conditions(4, "bfloat16", "eager")
