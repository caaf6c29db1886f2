"""What a slim model holds beside its host's parameters: by what its blocks choose, G where patches are predicted,
distances where they are matched. It is never part of the host's file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.hosts.weights import tensors_fingerprint

PREDICTOR, DISTANCE = "predictor", "distance"  # a block's children of these names
CHANNELS = 32  # of a distance, at most; docs/decisions.md


def make_distance(width: int, channels: int) -> nn.Linear:
    """A block's distance, as yet no one's: patches (…, d) are as far apart as the first c channels of what it makes of
    them, (…, c + 1), and the last is the logarithm of what they weigh."""
    return nn.Linear(width, channels + 1)


def distance_channels(info: HostInfo) -> int:
    """How many channels a host gets: features of all patches, each compared with all others, should cost no more than
    comparing keys of one half with the other half's would, (c + 1) d + c N ≤ d N / 4."""
    most = (info.patches * info.width // 4 - info.width) // (info.width + info.patches)
    return max(1, min(CHANNELS, most))


def is_chooser_key(name: str) -> bool:
    """Whether a weight's name belongs to a G or a distance."""
    return not {PREDICTOR, DISTANCE}.isdisjoint(name.split("."))


def chooser_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of some weights that blocks choose by."""
    return {name: tensor for name, tensor in weights.items() if is_chooser_key(name)}


def chooser_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """The same for the same G or distances, however their weights are ordered."""
    return tensors_fingerprint(dict(sorted(chooser_weights(weights).items())))
