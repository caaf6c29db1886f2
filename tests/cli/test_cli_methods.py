"""`patchslim methods`: what there is to slim by, when to take it, and the settings of each."""

import json
from importlib.metadata import EntryPoint

import pytest

import patchslim as ps
from commands import SMALL, Run, refused, result
from patchslim.methods import base, names
from patchslim.methods.base import METHODS

OUTSIDE = EntryPoint("mine", "measure.comparing:Named", base.GROUP)


def test_every_method_has_a_line_and_all_of_it_is_json(run: Run) -> None:
    code, out, _ = run("methods")
    assert code == 0
    begin = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [word for word in begin if word in METHODS] == names()
    found = result(run, "methods")
    assert found["default"] == names()[0] == "merge"
    assert [method["name"] for method in found["methods"]] == names()
    for method in found["methods"]:
        assert method == result(run, "methods", method["name"])
        assert "Take it" in method["what"], method["name"]
        settings = vars(ps.methods.make(method["name"]))
        assert {key: own["default"] for key, own in method["settings"].items()} == settings
        assert all(own["what"] or own["type"] for own in method["settings"].values())


def test_one_method_says_what_when_and_its_settings(run: Run) -> None:
    code, out, _ = run("methods", "merge")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "merge, the default"
    assert any("Each image merges patches that say the same" in line for line in lines)
    assert any("Take it unless you need the plainest graph" in line for line in lines)
    (setting,) = (line for line in lines if "--set" in line)
    assert setting.split()[:2] == ["--set", "blocks=3"]
    assert "(whole number or none)" in setting
    assert "It has no settings." in run("methods", "drop")[1]
    shown = run("methods", "predict")[1]
    assert [line.split()[1] for line in shown.splitlines() if "--set" in line] == [
        *("removed=merge", "threshold=false", "blocks=none", "epochs=60")
    ]


def test_a_method_of_another_package_is_listed_as_such(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "METHODS", dict(METHODS))
    monkeypatch.setattr(base, "_packages", {})
    monkeypatch.setattr(base, "entry_points", lambda group: [OUTSIDE])
    assert run("methods", "mine")[1].startswith("mine, of the package measure.comparing")
    assert "mine" in result(run, "methods")["methods"][-1]["name"]
    refused(
        run("slim", *SMALL, "--method", "mine", "--set", "a=1"),
        "The method mine has no setting 'a'. Settings of mine: none.",
    )


@pytest.mark.parametrize(
    ("method", "setting", "told"),
    [
        ("drop", "blocks=2", "The method drop has no setting 'blocks'; merge, cover, predict, dps have it. "),
        ("merge", "carry=true", "The method merge has no setting 'carry'; ps, "),
        (
            "merge",
            "luck=1",
            "The method merge has no setting 'luck'. Settings of merge: blocks (whole number or none).",
        ),
        ("merge", "blocks=two", "The setting blocks of merge takes a whole number or none, not 'two'."),
        ("merge", "blocks=0", "blocks has to be at least 1, or none"),
        ("predict", "removed=burn", "The setting removed of predict takes merge or drop, not 'burn'."),
        ("predict", "threshold=maybe", "of predict takes true or false, not 'maybe'"),
        ("predict", "epochs=0", "epochs has to be at least 1, not 0"),
        ("ps", "step=0", "step has to be at least 1"),
        ("ps", "learning_rate=inf", "learning_rate a number above 0"),
        ("merge", "blocks", "--set takes KEY=VALUE such as blocks=2, and 'blocks' is not that."),
        ("merge", "=2", "--set takes KEY=VALUE"),
        ("merg", "blocks=2", "There is no method 'merg'; did you mean merge?"),
        ("qqq", "blocks=2", "There is no method 'qqq'; choose from merge, "),
        ("", "blocks=2", "There is no method ''; choose from merge, "),
    ],
)
def test_settings_that_are_none_are_told(run: Run, method: str, setting: str, told: str) -> None:
    refused(run("slim", *SMALL, "--method", method, "--set", setting), told)


def test_there_is_no_such_method(run: Run) -> None:
    refused(run("methods", "merg"), "There is no method 'merg'; did you mean merge?")
    refused(run("methods", "merg", "--json"), "did you mean merge?")
    assert json.loads(run("methods", "merge", "--json")[1])["package"] is None
