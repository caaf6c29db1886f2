"""patchslim: faster vision transformers by not computing the patches that don't matter."""

from patchslim import methods
from patchslim.data import open_images
from patchslim.errors import (
    BudgetError,
    CheckpointError,
    DataError,
    ExportError,
    MethodError,
    PatchslimError,
    PlanError,
    RecoverError,
    RunError,
    UnsupportedModel,
)
from patchslim.export import export, read_metadata
from patchslim.hosts import HostInfo, inspect, open_hf
from patchslim.macs import count_macs
from patchslim.measure import compare
from patchslim.plan import SlimPlan
from patchslim.recover import RecoverConfig, finetune
from patchslim.runs.store import load, save
from patchslim.slimmed import apply, full_plan, image_macs, masked_logits, sources
from patchslim.version import __version__

from patchslim.api import slim  # isort: skip  (after patchslim.slim the package, whose name this verb takes)

__all__ = [
    "BudgetError",
    "CheckpointError",
    "DataError",
    "ExportError",
    "HostInfo",
    "MethodError",
    "PatchslimError",
    "PlanError",
    "RecoverConfig",
    "RecoverError",
    "RunError",
    "SlimPlan",
    "UnsupportedModel",
    "__version__",
    "apply",
    "compare",
    "count_macs",
    "export",
    "finetune",
    "full_plan",
    "image_macs",
    "inspect",
    "load",
    "masked_logits",
    "methods",
    "open_hf",
    "open_images",
    "read_metadata",
    "save",
    "slim",
    "sources",
]
