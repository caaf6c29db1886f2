"""patchslim: faster vision transformers by not computing the patches that don't matter.

A name is imported from its module when it is first asked for, so that `patchslim --help` need not wait for torch.
"""

# ruff: noqa: I001  (several names of a module stand together)
from importlib import import_module

from patchslim.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:  # the names as type checkers and editors see them; a test compares them with the table below
    from typing import Any

    from patchslim import methods as methods
    from patchslim.api import slim as slim
    from patchslim.data import open_images as open_images
    from patchslim.errors import (
        BudgetError as BudgetError,
        CheckpointError as CheckpointError,
        DataError as DataError,
        ExportError as ExportError,
        MethodError as MethodError,
        PatchslimError as PatchslimError,
        PlanError as PlanError,
        RecoverError as RecoverError,
        RunError as RunError,
        UnsupportedModel as UnsupportedModel,
    )
    from patchslim.exports import export as export, read_metadata as read_metadata
    from patchslim.hosts import HostInfo as HostInfo, inspect as inspect, open_hf as open_hf
    from patchslim.macs import count_macs as count_macs
    from patchslim.measure import compare as compare
    from patchslim.plan import SlimPlan as SlimPlan
    from patchslim.recover import RecoverConfig as RecoverConfig, finetune as finetune
    from patchslim.runs.store import load as load, save as save
    from patchslim.slimmed import (
        apply as apply,
        full_plan as full_plan,
        image_macs as image_macs,
        masked_logits as masked_logits,
        sources as sources,
    )

_NAMES = {
    "api": ("slim",),
    "data": ("open_images",),
    "errors": (
        *("BudgetError", "CheckpointError", "DataError", "ExportError", "MethodError", "PatchslimError", "PlanError"),
        *("RecoverError", "RunError", "UnsupportedModel"),
    ),
    "exports": ("export", "read_metadata"),
    "hosts": ("HostInfo", "inspect", "open_hf"),
    "macs": ("count_macs",),
    "measure": ("compare",),
    "plan": ("SlimPlan",),
    "recover": ("RecoverConfig", "finetune"),
    "runs.store": ("load", "save"),
    "slimmed": ("apply", "full_plan", "image_macs", "masked_logits", "sources"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(["__version__", "methods", *_HOMES])


def __getattr__(name: str) -> "Any":
    if name == "methods":  # the one public name that is a module
        return import_module("patchslim.methods")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"patchslim.{_HOMES[name]}"), name)
    globals()[name] = found  # the next time it is not asked for here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
