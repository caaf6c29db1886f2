"""What a slim model can't do as its host does: refused in a sentence, never ignored."""

from collections.abc import Mapping
from typing import Any

import torch

from patchslim.errors import PlanError
from patchslim.hosts.projections import OF_BLOCKS
from patchslim.plan import SlimPlan

# Of the whole model, or of its loss: transformers hands the layers whatever its models are given.
HARMLESS = ("return_dict", "num_items_in_batch")
# While a graph is traced transformers makes masks that hide nothing. They are nobody's and go unused.
MASKS_OF_TRACES = ("mask", "attention_mask")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise PlanError for what a host's block is asked beside its tokens, unless it asks for nothing."""
    for name, value in options.items():
        if value is None or value is False or name in HARMLESS:
            continue
        if name in OF_BLOCKS:
            raise PlanError(
                "A slim model gives no hidden states or attentions of its blocks: they are of fewer tokens; "
                "ask the host for them."
            )
        if not (name in MASKS_OF_TRACES and torch.compiler.is_compiling()):
            raise PlanError(f"A slim model takes no {name}: what it attends to is in its plan; leave it out.")


def check_pool(model: Any, images: Any) -> None:
    """Raise PlanError when the model's pool reads patches and the plan leaves none; runs before the model does."""
    plan = getattr(model, "plan", None)
    if isinstance(plan, SlimPlan) and not plan.leaving and getattr(model, "global_pool", "token") not in ("token", ""):
        raise PlanError(
            f"The pool {model.global_pool!r} reads patches, and this plan keeps none to the end; "
            "change the host's pool before it is slimmed."
        )
