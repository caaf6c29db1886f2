"""patchslim: faster vision transformers by not computing the patches that don't matter."""

from patchslim.data import open_images
from patchslim.errors import (
    BudgetError,
    CheckpointError,
    DataError,
    ExportError,
    PatchslimError,
    PlanError,
    RecoverError,
    RunError,
    UnsupportedModel,
)
from patchslim.export import export, read_metadata
from patchslim.hosts import HostInfo, inspect, open_hf
from patchslim.macs import count_macs
from patchslim.peers import compare
from patchslim.plan import SlimPlan
from patchslim.recover import RecoverConfig, finetune
from patchslim.search import SearchConfig, search, sweep
from patchslim.slim import apply, full_plan, load, masked_logits, save
from patchslim.version import __version__

from patchslim.api import slim  # isort: skip  (after patchslim.slim the package, whose name this verb takes)

__all__ = [
    "BudgetError",
    "CheckpointError",
    "DataError",
    "ExportError",
    "HostInfo",
    "PatchslimError",
    "PlanError",
    "RecoverConfig",
    "RecoverError",
    "RunError",
    "SearchConfig",
    "SlimPlan",
    "UnsupportedModel",
    "__version__",
    "apply",
    "compare",
    "count_macs",
    "export",
    "finetune",
    "full_plan",
    "inspect",
    "load",
    "masked_logits",
    "open_hf",
    "open_images",
    "read_metadata",
    "save",
    "search",
    "slim",
    "sweep",
]
