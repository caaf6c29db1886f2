"""Runs on paper: whether the files of a run make a model, and whether that is the model at hand, before anything large
is made or written."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import CheckpointError, PatchslimError, RunError, UnsupportedModel, first_words
from patchslim.hosts import open_host, rebuild_host, spec_of
from patchslim.hosts.alike import difference
from patchslim.hosts.weights import DTYPES, Slots, cast_, check_fit, not_finite, slots_of
from patchslim.plan import SlimPlan
from patchslim.slimmed import assembled_, frozen_keys, own_keys
from patchslim.slimmed.assemble import fingerprint

KEEP_INSTEAD = "keep its plan (plan.save) and its state dict instead"


def on_paper(spec: Mapping[str, Any], plan: SlimPlan, slots: Slots, source: str) -> nn.Module:
    """The slim model that settings, a plan and host weights like these make, without memory for a single number.

    An error says which of them do not go together; `source` is where the weights are.
    """
    with torch.device("meta"):
        host = rebuild_host(spec, most_blocks=len(slots))
        check_fit(host, slots, source)
        try:
            opened = open_host(cast_(host, slots))
            plan.check_fits(opened.info)
            return assembled_(opened, plan)
        except PatchslimError:
            raise
        except Exception as error:  # settings that pass alone may make nothing together
            raise RunError(f"The host's settings and the plan make no model: {first_words(error)}.") from None


def check_steps(slim: nn.Module, slots: Slots, source: str) -> None:
    """Raise CheckpointError where what steps own has another shape than theirs."""
    own = slots_of(slim.state_dict())
    for name in own.keys() & slots.keys():
        if own[name].shape != slots[name].shape:
            raise CheckpointError(
                f"{source} has {name} of shape {slots[name].shape} where the plan makes it {own[name].shape}."
            )


def described(slim: Any, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], SlimPlan]:
    """A slim model's host settings and plan, from which a load makes it again; RunError where it would make another.

    The plan has the fingerprint of what the steps own now: they may have been cast since it was made.
    """
    _check_plain(weights)
    try:
        spec = dict(spec_of(slim))
    except UnsupportedModel as error:
        raise RunError(f"{str(error).rstrip('.')}; {KEEP_INSTEAD}.") from None
    plan: SlimPlan = slim.plan
    if plan.weights:
        frozen = fingerprint({name: weights[name].cpu() for name in frozen_keys(slim)})
        plan = plan.model_copy(update={"weights": frozen})
    own = own_keys(slim)
    host = {name: slot for name, slot in slots_of(weights).items() if name not in own}
    try:
        found = difference(slim, on_paper(spec, plan, host, "This model"))
    except PatchslimError as error:
        found = str(error).rstrip(".")
    if found is not None:
        raise RunError(f"This model is not what its plan and its host make ({found}), so it can't be saved.")
    return spec, plan


def _check_plain(weights: Mapping[str, Any]) -> None:
    """Raise RunError for weights that no file of plain numbers can hold, or that no load would take."""
    places: dict[Any, str] = {}
    for name, tensor in weights.items():
        if type(tensor) is not Tensor or tensor.dtype not in DTYPES.values() or tensor.layout != torch.strided:
            raise RunError(f"{name} is no plain tensor, so this model can't be saved as a run; {KEEP_INSTEAD}.")
        if tensor.is_meta:
            raise RunError(f"{name} has no numbers: it is on the meta device; load weights before saving.")
        other = places.setdefault((tensor.device, tensor.data_ptr()), name) if tensor.numel() else name
        if other != name:
            raise RunError(
                f"{other} and {name} are the same weights, and a run would make two of them; "
                "give each part its own (copy.deepcopy) before saving."
            )
    broken = not_finite(weights)
    if broken is not None:
        raise RunError(f"{broken} has NaN or infinite numbers, and no run with such weights is loaded again.")
