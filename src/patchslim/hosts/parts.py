"""What may be read of a model's parts and what has to be called: hooks, adapters, masks, quantisers act in calls."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel

TRIED, SOME = 6, [0, 2, 3]  # tokens that an unknown part is tried on: all of them, and a few


def bare(module: nn.Module) -> bool:
    """Whether calling a module runs its class's `forward` and nothing else: no hook, no `forward` of its own."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and "forward" not in module.__dict__


def readable(layer: Any, kind: type[nn.Module]) -> bool:
    """Whether a layer's weights say all that it does, so that some of its rows may be taken instead of calling it.

    Weights of a class of their own, such as quantised or distributed ones, have their own ways of being multiplied.
    """
    return type(layer) is kind and bare(layer) and not hasattr(type(layer.weight), "__tensor_flatten__")


def idle(module: nn.Module) -> bool:
    """Whether a module gives what it is given."""
    does_nothing = isinstance(module, nn.Identity) or (
        isinstance(module, (nn.Dropout, DropPath)) and not module.training
    )
    return does_nothing and bare(module)


def through(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, without calling one that does nothing: at batch 1 the idle calls of a ViT cost a percent."""
    return x if idle(module) else module(x)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of a model with pruning masks or an old weight norm.

    Those keep a weight that they work out anew in every call; torch copies no such tensor that has a gradient.
    """
    worked_out = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, worked_out)


def acts_per_token(part: nn.Module, width: int) -> bool:
    """Whether what a part makes of a token (…, width) does not depend on the others. It is tried on a copy."""
    own = copied(part).eval()
    like = next((value for value in own.state_dict().values() if value.is_floating_point()), torch.empty(0))
    x = torch.randn(1, TRIED, width, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        with torch.no_grad():
            every, some = own(x)[:, SOME].float(), own(x[:, SOME]).float()
            return torch.allclose(every, some, rtol=1e-3, atol=1e-3 * float(every.abs().max()))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError):
        return False


def check_per_token(block: nn.Module, reads: Mapping[str, int], known: Callable[[nn.Module], bool], where: str) -> None:
    """Raise UnsupportedModel unless each part of a block, that reads so many channels, acts on every token by itself.

    Modules that nobody knows are tried.
    """
    for name, width in reads.items():
        part = block.get_submodule(name)
        unknown = next((own for own in part.modules() if not known(own)), None)
        if unknown is not None and not acts_per_token(part, width):
            kind = f"{type(unknown).__module__}.{type(unknown).__qualname__}"
            why = "what it makes of a token depends on the others, or it can't be tried"
            raise UnsupportedModel(
                f"This model can't be slimmed because of its {where} with {kind} in {name}: {why}; "
                "if it quantises, slim the model first."
            )


def like_weights(model: nn.Module, images: Tensor) -> Tensor:
    """Images (B, C, H, W) on the model's device and in its precision."""
    first = next(model.parameters())
    return images.to(first.device, first.dtype if first.is_floating_point() else images.dtype)


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Every part of a model in eval mode; afterwards each is as it was, frozen parts too."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within what `torch.compile`, DataParallel or DistributedDataParallel put around it."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(
            f"A model has to be an nn.Module, as timm.create_model gives, and this is of type {type(model).__name__}."
        )
    while True:
        inner: Any = getattr(model, "_orig_mod", None)  # of torch.compile
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
