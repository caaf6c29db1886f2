"""What a plan predicts of its speed, read from its provenance and compared with the same thing only."""

from typing import Any

import pytest

from patchslim.measure.bench import Forecast, forecast
from small import PYRAMID, make_host, plan_of

TOLD: dict[str, Any] = {
    "asked": 1.6,
    "predicted": 1.58,
    "device": "cpu",
    "batch_size": 32,
    "dtype": "float32",
    "modes": ["eager"],
    "threads": 2,
}
ROW = {"batch_size": 32, "dtype": "float32", "autocast": False}


def of(told: Any) -> Forecast | None:
    plan = plan_of(make_host(), PYRAMID)
    return forecast(plan.with_(provenance={} if told is None else {"speed": told}))


def test_a_prediction_is_read() -> None:
    found = of(TOLD)
    assert found is not None
    assert (found.asked, found.predicted, found.batch_size) == (1.6, 1.58, 32)


@pytest.mark.parametrize(
    "told",
    [None, 3, [], "fast", {}, TOLD | {"batch_size": "many"}, TOLD | {"predicted": float("nan")}, TOLD | {"modes": []}],
)
def test_none_or_a_damaged_one_is_none(told: Any) -> None:
    assert of(told) is None


@pytest.mark.parametrize(
    ("device", "modes", "change"),
    [
        ("NVIDIA H200", ["eager"], {}),
        ("cpu", ["eager", "compiled"], {}),
        ("cpu", ["eager"], {"batch_size": 16}),
        ("cpu", ["eager"], {"dtype": "bfloat16"}),
        ("cpu", ["eager"], {"autocast": True}),
    ],
)
def test_it_holds_for_the_same_thing_only(device: str, modes: list[str], change: dict[str, Any]) -> None:
    found = of(TOLD)
    assert found is not None
    assert found.holds_for(ROW, "cpu", ["eager"])
    assert not found.holds_for(ROW | change, device, modes)
