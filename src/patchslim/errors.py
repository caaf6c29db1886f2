"""The one family of errors a user may cause.

Each message is one sentence that says what is wrong and what to do. The command line prints it and exits with 2;
anything else that escapes is a bug and keeps its traceback.
"""

from numbers import Integral, Real
from typing import Any

LONGEST_WORD, LONGEST_SENTENCE = 200, 300  # characters


def one_sentence(text: str) -> str:
    """A message on one line of at most 300 characters: values that it repeats may be long, or hold anything.

    Control characters become `?`. A long word keeps its start and its end, and so does the whole.
    """
    words = "".join(sign if sign.isprintable() or sign.isspace() else "?" for sign in text).split()
    return _shortened(" ".join(_shortened(word, LONGEST_WORD) for word in words), LONGEST_SENTENCE)


def _shortened(text: str, most: int) -> str:
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def plain_number(
    name: str,
    value: Any,
    kind: type[int] | type[float],
    least: float | None = None,
    error: "type[PatchslimError] | None" = None,
) -> Any:
    """A setting as a number of Python's own; an error, usually a BudgetError, when it is none or too small."""
    number = not isinstance(value, bool) and isinstance(value, Integral if kind is int else Real)
    if not number or (least is not None and not float(value) >= least):
        whole, low = "whole number" if kind is int else "number", "" if least is None else f" from {least:g} on"
        raise (error or BudgetError)(f"{name} has to be a {whole}{low}, not {value!r}.")
    return kind(value)


class PatchslimError(Exception):
    """Something in what was asked for is wrong; the message says what, and what to do, in one sentence."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_sentence(message))


class UnsupportedModel(PatchslimError):
    """The model has a part that patchslim can't reproduce exactly; the message names it."""


class DataError(PatchslimError):
    """The images can't be read as asked."""


class PlanError(PatchslimError):
    """The plan is malformed, or not for this model."""


class CheckpointError(PatchslimError):
    """The weights can't be loaded into the model."""


class BudgetError(PatchslimError):
    """The tolerance or MAC ratio can't be met; the message says what can."""


class MethodError(PatchslimError):
    """There is no such method or setting, or a method from outside failed."""


class RecoverError(PatchslimError):
    """The recovery can't be done as asked."""


class ExportError(PatchslimError):
    """The model can't be exported as asked, or the file does not say what the model says."""


class PatchslimWarning(UserWarning):
    """Something a user should know, said once; nothing is wrong."""


class RunError(PatchslimError):
    """The run folder can't be read, resumed or written."""


def first_words(error: BaseException) -> str:
    """What went wrong in someone else's code, as far as it fits in a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:240]
