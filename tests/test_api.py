"""What `ps.slim` is given: numbers that are none, methods that are none, models that are slim or no models."""

from typing import Any

import numpy as np
import pytest

import patchslim as ps
from small import make_host, make_images

HOST, IMAGES = make_host(), make_images(4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"macs": "0.6"}, "macs has to be a number, not '0.6'."),
        ({"macs": float("nan")}, "The MAC ratio has to lie between 0 and 1, not at nan; try 0.6."),
        ({"speedup": "2"}, "speedup has to be a number, not '2'."),
        ({"tolerance": True}, "tolerance has to be a number, not True."),
        ({"batch_size": "8"}, "batch_size has to be a whole number from 1 on, not '8'."),
        ({"batch_size": 2.5}, "batch_size has to be a whole number from 1 on, not 2.5."),
        ({"batch_size": 0}, "batch_size has to be a whole number from 1 on, not 0."),
        ({"seed": -1}, "seed has to be a whole number from 0 on, not -1."),
        ({"memory_gib": float("nan")}, "memory_gib has to be a number from 0 on, not nan."),
    ],
)
def test_numbers_that_are_none(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ps.BudgetError) as error:
        ps.slim(HOST, IMAGES, **options)
    assert str(error.value) == told


def test_numbers_of_numpy_will_do() -> None:
    how: dict[str, Any] = {"macs": np.float32(0.7), "batch_size": np.int64(4)}
    assert ps.count_macs(ps.slim(HOST, IMAGES, "drop", **how)) <= 0.7 * ps.count_macs(HOST)


@pytest.mark.parametrize("method", [None, 3, ps.methods.Drop])
def test_methods_that_are_none(method: Any) -> None:
    with pytest.raises(ps.MethodError, match="A method is a name, or an object such as"):
        ps.slim(HOST, IMAGES, method, macs=0.7)


def test_what_is_slim_already_or_no_model() -> None:
    slim = ps.apply(HOST, ps.full_plan(HOST))
    attempts: tuple[Any, ...] = (ps.full_plan, lambda model: ps.slim(model, IMAGES, macs=0.7))
    for attempt in attempts:
        with pytest.raises(ps.UnsupportedModel, match="is slim already"):
            attempt(slim)
        for none in ("deit_tiny_patch16_224", None):
            with pytest.raises(ps.UnsupportedModel, match=f"this is of type {type(none).__name__}"):
                attempt(none)
    assert ps.inspect(slim).depth == ps.inspect(HOST).depth  # of the host within


def test_settings_that_would_do_nothing() -> None:
    made: Any = ps.methods.make
    for name, settings in (
        ("ps", {"tune_epochs": 0, "learning_rate": 0.1}),
        ("uniform", {"step": 4}),
        ("predict", {"threshold": True, "removed": "merge"}),
    ):
        with pytest.raises(ps.MethodError, match=f"of {name} would do nothing, because"):
            made(name, settings)
    assert made("ps", {"learning_rate": 0.1}).learning_rate == 0.1
    with pytest.raises(ps.RecoverError, match="batch_size has to be a whole number, not"):
        ps.RecoverConfig(batch_size=2.5)  # type: ignore[arg-type]
