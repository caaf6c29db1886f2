"""The registry of methods: names, settings as text or values, and what a user is told of those that are not there."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import patchslim as ps
from patchslim.errors import MethodError
from patchslim.methods import DEFAULT, DPS, PS, Merge, Predict, ToMe, describe, make, names, settings_of
from patchslim.methods.base import METHODS

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


def refusal(name: str, settings: dict[str, Any] | None = None) -> str:
    """What making a method is refused with: one sentence."""
    with pytest.raises(MethodError) as refused:
        make(name, settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_names() -> None:
    assert names()[0] == DEFAULT == "merge"
    assert sorted(names()) == sorted(METHODS)
    assert {getattr(ps.methods, cls.__name__) for cls in METHODS.values()} == set(METHODS.values())
    assert all(cls.name == name for name, cls in METHODS.items())


def test_a_method_is_made_by_its_name() -> None:
    assert make("merge") == Merge() == Merge(blocks=3)
    assert make("tome", {"readout_only": True}) == ToMe(readout_only=True)
    with pytest.raises(FrozenInstanceError):
        make("merge").blocks = 2


@pytest.mark.parametrize(
    ("name", "key", "text", "value"),
    [
        ("merge", "blocks", "2", 2),
        ("merge", "blocks", "none", None),
        ("merge", "blocks", "None", None),
        ("merge", "blocks", None, None),
        ("predict", "threshold", "true", True),
        ("predict", "threshold", "false", False),
        ("predict", "removed", "drop", "drop"),
        ("ps", "learning_rate", "1e-4", 1e-4),
        ("ps", "step", 4, 4),
    ],
)
def test_settings_come_as_text_or_as_values(name: str, key: str, text: Any, value: Any) -> None:
    found = getattr(make(name, {key: text}), key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("merg", {}, "There is no method 'merg'; did you mean merge?"),
        ("dynamic_vit", {}, "There is no method 'dynamic_vit'; did you mean dynamicvit?"),
        ("xyz", {}, "There is no method 'xyz'; choose from merge, "),
        (
            "merge",
            {"tune_epochs": 1},
            "no setting 'tune_epochs'; attention, radial, random, spread, uniform, ps have",
        ),
        ("merge", {"carry": True}, "Settings of merge: blocks (whole number or none)."),
        ("tome", {"colour": "red"}, "The method tome has no setting 'colour'. Settings of tome: readout_only (true or"),
        ("drop", {"removed": "merge"}, "has no setting 'removed'; dps, predict have it. Settings of drop: none."),
        ("merge", {"blocks": "two"}, "The setting blocks of merge takes a whole number or none, not 'two'."),
        ("merge", {"blocks": 2.5}, "The setting blocks of merge takes a whole number or none, not 2.5."),
        ("merge", {"blocks": True}, "The setting blocks of merge takes a whole number or none, not True."),
        ("ps", {"step": "1.5"}, "The setting step of ps takes a whole number, not '1.5'."),
        ("ps", {"step": "none"}, "The setting step of ps takes a whole number, not 'none'."),
        ("ps", {"learning_rate": "fast"}, "The setting learning_rate of ps takes a number, not 'fast'."),
        ("predict", {"threshold": "perhaps"}, "The setting threshold of predict takes true or false, not 'perhaps'."),
        ("predict", {"removed": "burn"}, "The setting removed of predict takes merge or drop, not 'burn'."),
        ("merge", {"blocks": 0}, "blocks has to be at least 1, or none for any number, not 0."),
        ("cover", {"blocks": -1}, "blocks has to be at least 1, or none for any number, not -1."),
        ("dps", {"epochs": 0}, "epochs has to be at least 1, not 0."),
        ("scop", {"epochs": 0}, "epochs has to be at least 1, not 0."),
        ("ps", {"step": 0}, "step has to be at least 1, tune_epochs at least 0 and learning_rate a number above 0"),
        ("ps", {"tune_epochs": -1}, "not 10, -1 and 5e-05."),
        ("ps", {"learning_rate": "nan"}, "not 10, 3 and nan."),
    ],
)
def test_what_a_user_gets_wrong_is_said(name: str, settings: dict[str, Any], words: str) -> None:
    found = refusal(name, settings)
    if " have" in words or "choose from" in words:  # in whatever order
        found, words = (" ".join(sorted(re.findall(r"[\w']+", text))) for text in (found, words))
        assert set(words.split()) <= set(found.split())
    else:
        assert words in found


def test_what_a_method_says_of_itself() -> None:
    for name in names():
        found = describe(name)
        assert (found["name"], found["package"]) == (name, None)
        assert "\nTake it " in found["what"], name  # when to take it
        assert "\n\n" in found["what"], name  # what it does, in a paragraph of its own
        assert list(found["settings"]) == list(settings_of(name))
        assert {key: own["default"] for key, own in found["settings"].items()} == vars(make(name))
        assert all(own["what"] for own in found["settings"].values()), name
    assert describe("merge")["settings"]["blocks"]["type"] == "whole number or none"
    assert describe("predict")["settings"]["removed"]["type"] == "merge or drop"


def test_the_page_has_every_method_and_every_setting() -> None:
    """docs/methods.md: a section or a row for each; tables of settings have the defaults."""
    assert [name for name in names() if f"`{name}`" not in PAGE] == []
    for name in ("merge", "cover", "predict", "ps", "dps"):
        section = PAGE.split(f"### `{name}`")[1].split("\n#")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, flags=re.M))
        defaults = {key: str(own.default).lower() for key, own in settings_of(name).items()}
        said = {key: value.strip("`") for key, value in rows.items()}
        assert {key: "predict" if "in `predict`" in value else value for key, value in said.items()} == defaults


def test_presets_differ_from_what_they_are_presets_of() -> None:
    assert (Predict().removed, DPS().removed) == ("merge", "drop")
    assert (Predict().selector, Predict(threshold=True).selector, DPS().selector) == ("context", "mlp", "pool")
    assert (Predict().merges, Predict(threshold=True).merges, DPS().merges) == (True, False, False)
    assert isinstance(PS(carry=True), PS)
