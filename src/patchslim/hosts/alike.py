"""Whether a model is what its settings make: compared part by part with one that was built from them."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

PLAIN = (bool, int, float, str, tuple, type(None))
# Not of the network: how it is trained, which kernels it takes, where it came from.
UNTOLD = {
    *("training", "grad_checkpointing", "gradient_checkpointing", "_gradient_checkpointing_func", "fused_attn"),
    *("weight_init_mode", "fix_init", "distilled_training", "name_or_path", "loss_type"),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
HARMLESS = ("patchslim.", "transformers.")  # their own hooks look at what passes; a load sets them again


def difference(model: nn.Module, again: nn.Module) -> str | None:
    """The first thing in which a model differs from one that was built anew, in words; numbers of weights may.

    Looked at are parts, their classes and plain settings, hooks, and shapes and precision of tensors.
    """
    parts, others = (dict(own.named_modules(remove_duplicate=False)) for own in (model, again))
    for name in [*parts, *others]:
        if name not in others:
            return f"{name} is a part more"
        if name not in parts:
            return f"{name} is missing"
        found = _differs(parts[name], others[name])
        if found is not None:
            return f"{name or 'it'} {found}"
    return None


def _differs(module: nn.Module, other: nn.Module) -> str | None:
    """The same of one module, its children left out, as a predicate."""
    if type(module) is not type(other):
        return f"is a {type(module).__name__} instead of a {type(other).__name__}"
    for name, value in _plain(other):
        own = vars(module).get(name)
        if not _equal(own, value):
            return f"has {name} {own} instead of {value}"
    if any(_foreign_hooks(module)):
        return "has a hook"
    replaced = {name for name, own in vars(module).items() if _is_function(own)} - set(vars(other)) - UNTOLD
    if replaced:
        return f"has a {min(replaced)} of its own"
    (own_tensors, other_tensors) = (dict(_tensors(each)) for each in (module, other))
    for name in [*own_tensors, *other_tensors]:
        here, there = own_tensors.get(name), other_tensors.get(name)
        if here != there:
            return f"has {name} {_words(here)} instead of {_words(there)}"
    return None


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    public = ((name, own) for name, own in vars(module).items() if not name.startswith("_") and name not in UNTOLD)
    return ((name, own) for name, own in public if isinstance(own, PLAIN))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)  # rates are read off single-precision tables
    return bool(one == other)


def _foreign_hooks(module: nn.Module) -> Iterator[Any]:
    hooks = (hook for name in HOOKS for hook in getattr(module, name, OrderedDict()).values())
    return (hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith(HARMLESS))


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module | type)


def _tensors(module: nn.Module) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What a module's own tensors are, less their numbers."""
    held: Mapping[str, Tensor | None] = {**module._parameters, **module._buffers}
    for name, tensor in held.items():
        if tensor is not None:
            kind = nn.Parameter if name in module._parameters else type(tensor)
            yield name, (kind, tuple(tensor.shape), tensor.dtype, name in module._non_persistent_buffers_set)


def _words(tensor: tuple[Any, ...] | None) -> str:
    return "nothing" if tensor is None else f"{tensor[1]} of {str(tensor[2]).removeprefix('torch.')}"
