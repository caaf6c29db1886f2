"""Host modules that others stand in for, brought back: a slim model as its host again, with the same parameters.

A module that stands in for a host's holds the host's parts under their own names and keeps the `shell` of the module it
replaced. It offers `host_block()`, or `host_embed()` for a patch embedding, which puts the parts into that shell.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

PARTS = ("_modules", "_parameters", "_buffers")
OF_SLIM_MODELS = ("plan", "save_pretrained")  # what they have beside their hosts' settings
HOOKS = (  # those of calls, and what torch notes beside them
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"),
)


@dataclass(frozen=True)
class Shell:
    """A module without its children, parameters and buffers: their names, its class and its settings."""

    kind: type[nn.Module]
    settings: Mapping[str, Any]
    names: Mapping[str, tuple[str, ...]]  # of the children, parameters and buffers


def shell(module: nn.Module) -> Shell:
    """All of a module but its parts."""
    names = {part: tuple(getattr(module, part)) for part in PARTS}
    return Shell(type(module), {name: own for name, own in vars(module).items() if name not in PARTS}, names)


def whole(shell: Shell, holder: nn.Module) -> nn.Module:
    """A module of a shell and the parts that `holder` has by now under the names the shell's module had."""
    module = shell.kind.__new__(shell.kind)
    # Hooks and the like lie in dicts and sets, which the new module should not share.
    settings = {name: copy.copy(own) if isinstance(own, (dict, set)) else own for name, own in shell.settings.items()}
    parts = {part: {name: getattr(holder, part).get(name) for name in names} for part, names in shell.names.items()}
    vars(module).update(settings | parts)
    module.training = holder.training
    return module


def recast(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A module of another class that has the settings and the parts of this one."""
    return whole(replace(shell(module), kind=kind), module)


def replaced(module: nn.Module, others: Mapping[str, nn.Module]) -> nn.Module:
    """A copy of a module that has other parts under some dotted names and shares everything else with it."""
    if "" in others:
        return others[""]
    own = recast(module, type(module))
    for name, child in module.named_children():
        below = {path.partition(".")[2]: other for path, other in others.items() if path.partition(".")[0] == name}
        if below:
            setattr(own, name, replaced(child, below))
    return own


def as_host(model: nn.Module) -> nn.Module:
    """The host of a slim model: another object with host blocks and patch embedding, and the same parameters."""
    others = {}
    for name, module in model.named_modules():
        own: Any = module
        if is_slim_block(own):
            others[name] = own.host_block()
        elif hasattr(own, "host_embed"):
            others[name] = own.host_embed()
    host = replaced(model, others)
    for own in OF_SLIM_MODELS:
        vars(host).pop(own, None)
    return host


def is_slim_block(block: nn.Module) -> bool:
    """Whether a module stands in for a host's block."""
    return hasattr(block, "host_block")


def host_parameters(model: nn.Module, blocks: Iterable[nn.Module]) -> int:
    """How many parameters a model has, those left out that slim blocks own beside their hosts': their steps'."""
    steps = [getattr(block, "step", None) for block in blocks if is_slim_block(block)]
    own = {id(weight) for step in steps if isinstance(step, nn.Module) for weight in step.parameters()}
    return sum(weight.numel() for weight in model.parameters() if id(weight) not in own)
