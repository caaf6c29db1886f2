"""`save_pretrained` of a slim transformers model: it writes the host, and says so."""

import warnings
from types import MethodType
from typing import Any

from torch import nn

from patchslim.errors import PatchslimWarning
from patchslim.hosts.shells import is_slim_block


def saving_the_host_(slim: Any) -> nn.Module:
    """Have a slim model's `save_pretrained` leave out what its steps own, which transformers has no place for."""
    blocks = [(name, block) for name, block in slim.named_modules() if is_slim_block(block)]
    own = {f"{name}.step.{key}" for name, block in blocks for key in block.step.state_dict()}
    slim._keys_to_ignore_on_save = {*(slim._keys_to_ignore_on_save or ()), *own}
    slim.save_pretrained = MethodType(save_pretrained, slim)  # copies of the model get one of their own
    return slim


def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
    """What the model's class does under this name, and a warning."""
    warnings.warn(
        "save_pretrained writes the host's weights, and the plan is not part of them: what is opened again computes "
        "every patch. patchslim.save(model, folder) keeps the plan.",
        PatchslimWarning,
        stacklevel=2,
    )
    return type(self).save_pretrained(self, save_directory, *args, **kwargs)
