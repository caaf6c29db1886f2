"""The one verb that does it all."""

from __future__ import annotations

from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.search import SearchConfig, search
from patchslim.slim import apply


def slim(model: nn.Module, images: ImageSource | Tensor, config: SearchConfig | None = None) -> nn.Module:
    """A slim model from a pretrained one and unlabelled images; the given model is left as it was."""
    plan, tuned = search(model, images, config)
    return apply(model, plan, tuned)
