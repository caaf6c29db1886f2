"""What replaced the options and the names of methods that the command line had before methods were one list."""

from collections.abc import Sequence

from patchslim.errors import MethodError

_PS = "it is a setting of the paper's method, --method ps --set"
_GONE = "the better variant stayed, so leave it out"
OPTIONS: dict[str, dict[str, str]] = {
    "slim": {
        "--select": "static is --method cover or drop, matched --method merge, predicted --method predict",
        "--removed": "drop is --method drop, merge --method cover, carry --method ps --set carry=true; "
        "where patches are predicted it is --method predict --set removed=drop",
        "--score": "impact is --method ps, or dps where patches are predicted; attention, random and radial are "
        "methods of their own, uniform is --method spread; drop and cover need no score",
        "--mode": "threshold is --method predict --set threshold=true",
        "--predictor": f"{_GONE}, or take --method dps for the paper's module",
        "--groups": _GONE,
        "--distance": _GONE,
        "--choosing-blocks": "it is --set blocks=K of the methods merge, cover and predict",
        "--tune-epochs": f"{_PS} tune_epochs=VALUE",
        "--step": f"{_PS} step=VALUE",
        "--learning-rate": f"{_PS} learning_rate=VALUE",
        "--cache-gib": "it is --memory",
        "--speed-batch-size": "it is --batch-size",
        "--speed-dtype": "it is --dtype",
        "--speed-mode": "every model is timed in its fastest mode, so leave it out",
    },
    "compare": {
        "--epochs": "it is a setting of each method that learns, such as --set power.epochs=20",
        "--readout-only": "it is a setting of each method that has it, such as --set tome.readout_only=true",
    },
}
METHODS = {
    "ps-static": "drop",
    "ps-merge": "cover",
    "ps-predicted": "predict",
    "ps-predicted-drop": "predict with --set predict.removed=drop",
    "ps-matched": "merge with --set merge.blocks=none",
    "impact": "ps with --set ps.tune_epochs=0",
}


def instead_of(command: str | None, option: str | None) -> str | None:
    """The sentence for an option that a command had; None where it never had it."""
    found = OPTIONS.get(command or "", {}).get(option or "")
    return None if found is None else f"The option {option} of `{command}` is gone: {found}."


def check_names(names: Sequence[str]) -> None:
    """Raise MethodError for a method's old name."""
    for name in names:
        if name in METHODS:
            raise MethodError(f"The method {name} has another name now: {METHODS[name]}.")
