"""Messages are one line of at most 300 characters, whatever the values that they repeat hold."""

import pickle

import pytest

import patchslim as ps
from commands import Run, refused
from patchslim.errors import first_words, one_sentence


@pytest.mark.parametrize(
    "value", ["x" * 5000, "x " * 2500, "a\nb\r\nc\td", "\x1b[31mred\x1b[0m", "\u202egnp.exe", "\udcff", "a\x00b"]
)
def test_a_message_is_one_line(value: str) -> None:
    told = str(ps.BudgetError(f"The value {value} is no MAC ratio; try 0.6."))
    assert told.startswith("The value ")
    assert told.endswith(" is no MAC ratio; try 0.6.")
    assert told.isprintable()
    assert len(told) <= 300
    assert one_sentence(told) == told
    assert str(pickle.loads(pickle.dumps(ps.BudgetError(told)))) == told


def test_what_is_said_today_is_not_cut() -> None:
    told = "There is no file at " + "/folder" * 20 + "; give another."
    assert str(ps.DataError(told)) == told
    assert first_words(ValueError("\n  first \n second")) == "first"


def test_the_command_line_repeats_no_more_than_fits(run: Run) -> None:
    for words in (
        ("inspect", "x" * 5000),
        ("slimm" * 1000,),
        ("slim", "test_vit", "--data", "digits", "--seed", "9" * 5000),
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert len(err) <= 300 + len("patchslim: \n")
    refused(run("inspect", "a\nb\x1b[31m"), "called a b?[31m; ")
