"""The vocabulary of slimming: one file per kind of step. Every module in this folder registers its own."""

from importlib import import_module
from pkgutil import iter_modules

from patchslim.steps.base import KINDS, Step, Work, read_step, register_step
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["KINDS", "Choice", "Seen", "Step", "Tokens", "Work", "read_step", "register_step"]
