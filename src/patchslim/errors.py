"""The one family of errors a user may cause.

Each message is one sentence that says what is wrong and what to do. The command line prints it and exits with 2;
anything else that escapes is a bug and keeps its traceback.
"""


class PatchslimError(Exception):
    """Something in what was asked for is wrong; the message says what, and what to do."""


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
