"""Launches of kernels that find pairs of patches: two for what `match.match` says in many tensor operations, three for
`match.match_lighter`. The kernels are tested against these, which run where kernels can't."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from patchslim.kernels.attention_triton import LINE, dense, exact
from patchslim.kernels.available import FEW_ROWS, operator
from patchslim.kernels.pairs_programs import find_lighter, find_nearest, find_nearest_and_attend, rank_pairs

OWN = 32  # pairs whose rank one program finds, and patches that it ranks at once
# Ranks compare costs that are computed twice. Rounded once here and twice there, a patch would rank before itself, two
# would go to one place, and one place would stay empty.
EXACT_RANKS = {"enable_fp_fusion": False, "num_warps": 4}


class _Pairs(NamedTuple):
    """Sizes of a search for pairs, and room for what it finds."""

    movers: int  # patches that look for their nearest
    targets: int  # among so many
    side: int  # of a tile
    parts: int  # tiles along the targets
    tiles: int
    channels: int
    similarity: Tensor  # (B, parts, movers)
    nearest: Tensor  # likewise

    @property
    def stride(self) -> int:
        """From one image to the next in what is found."""
        return self.parts * self.movers


def _pairs(z: Tensor, width: int, any_two: bool = False) -> _Pairs:
    """For what patches are compared by, the first channels of (B, h, t, c): the nearest to each of one half, or to each
    patch."""
    batch, _, patches, _ = z.shape
    movers, targets = (patches, patches) if any_two else ((patches + 1) // 2, patches // 2)
    channels = _channels(width)
    side = _side(batch * patches, movers, channels * z.element_size())
    parts = triton.cdiv(targets, side)
    tiles = triton.cdiv(movers, side) * parts
    similarity = z.new_empty(batch, parts, movers, dtype=torch.float32)
    nearest = torch.empty_like(similarity, dtype=torch.int32)
    return _Pairs(movers, targets, side, parts, tiles, channels, similarity, nearest)


def _channels(width: int) -> int:
    """What a program holds of a line: matrix units want at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def _places(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """Room for the result."""
    return z.new_empty(z.shape[0], z.shape[2], dtype=torch.int32)


@operator("patchslim::pair", _places)
def pair(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """Where every patch goes when `n` stay: keys z (B, H, t, d_h), weight (B, t) in fp32 → (B, t) places among the n.

    Every even patch pairs with the odd one nearest to it by direction; pairs of least weight times distance become one.
    """
    z, weight, place = dense(z), dense(weight), _places(z, weight, n)
    own = _pairs(z, z.shape[3])
    with torch.cuda.device_of(z):  # a launch goes to the current device
        _launch_nearest(z, z.shape[3], own, False)
        _launch_rank(own, weight, None, place, n)
    return place


def _launch_nearest(z: Tensor, width: int, own: _Pairs, any_two: bool) -> None:
    """z (B, h, t, c), of whose channels the first ones count."""
    find_nearest[(z.shape[0], own.tiles)](
        z, own.similarity, own.nearest,
        *z.stride()[:3], own.stride, z.shape[1], own.movers, own.targets, own.parts,
        WIDTH=width, SIDE=own.side, CHANNELS=own.channels, ANY=any_two, EXACT=exact(z.dtype),
        num_warps=_warps(own.side),
    )  # fmt: skip


def _launch_rank(own: _Pairs, weight: Tensor, order: Tensor | None, place: Tensor, n: int) -> None:
    """weight, place (B, t); order likewise, or None for the even patches and the odd ones."""
    batch, patches = place.shape
    rank_pairs[(batch, triton.cdiv(own.movers, OWN))](
        own.similarity, own.nearest, weight, order, place,
        own.stride, weight.stride(0), place.stride(0), own.movers, own.targets, own.parts, patches - n,
        OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), ORDERED=order is not None, **EXACT_RANKS,
    )  # fmt: skip


def _lighter_places(z: Tensor, n: int) -> Tensor:
    """Room for the result."""
    return z.new_empty(z.shape[:2], dtype=torch.int32)


@operator("patchslim::pair_lighter", _lighter_places)
def pair_lighter(z: Tensor, n: int) -> Tensor:
    """`pair` by distance, z (B, t, c + 1), the last channel being the logarithm of what a patch weighs.

    Not the even patches may go but the half that weighs least beside the nearest.
    """
    z, place = dense(z), _lighter_places(z, n)
    rows = z[:, None]
    near = _pairs(rows, z.shape[2] - 1, any_two=True)
    with torch.cuda.device_of(z):  # a launch goes to the current device
        _launch_nearest(rows, z.shape[2] - 1, near, True)
        _launch_lighter(z, near, None, None, place, n, 0.0)
    return place


def _lighter_weighed(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Room for both results."""
    return z.new_empty(z.shape[:2], dtype=torch.int32), z.new_empty(z.shape[:2], dtype=torch.float32)


@operator("patchslim::pair_lighter_by_class", _lighter_weighed)
def pair_lighter_by_class(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """The same, where a patch weighs (importance + `floor`)² times what z says; importance comes along.

    It is the first token's attention to a patch, averaged over heads, mean 1. q (B, H, 1, d_h), k (B, H, p + t, d_h),
    z (B, t, c + 1), size (B or 1, p + t) → twice (B, t).
    """
    batch, heads, tokens, _ = k.shape
    q, k, z, size = dense(q), dense(k), dense(z), dense(size)
    place, importance = _lighter_weighed(q, k, z, size, scale, n, floor)
    rows, attended = z[:, None], k.new_empty(batch, heads, tokens, dtype=torch.float32)
    near = _pairs(rows, z.shape[2] - 1, any_two=True)
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _launch_nearest_and_attend(q, k, rows, z.shape[2] - 1, size, attended, scale, near)
        _launch_lighter(z, near, attended, importance, place, n, floor)
    return place, importance


def _launch_lighter(
    z: Tensor, near: _Pairs, attended: Tensor | None, importance: Tensor | None, place: Tensor, n: int, floor: float
) -> None:
    """Both halves, pairs between them, and ranks: z (B, t, c + 1), attended (B, H, p + t)."""
    batch, t, width = z.shape
    own = _pairs(z[:, None], width - 1)
    order, weight = torch.empty_like(place), torch.empty_like(place, dtype=torch.float32)
    heads, tokens = (1, t) if attended is None else attended.shape[1:]
    find_lighter[(batch, own.tiles)](
        z, near.similarity, near.nearest, attended, order, importance, weight, own.similarity, own.nearest,
        z.stride(0), z.stride(1), near.stride, heads * tokens, own.stride,
        t, heads, tokens, tokens - t, near.parts, own.movers, own.targets, own.parts, floor,
        WIDTH=width - 1, SIDE=own.side, CHANNELS=own.channels, PATCHES=triton.next_power_of_2(t), OWN=OWN,
        CLASSED=attended is not None, EXACT=exact(z.dtype), **EXACT_RANKS | {"num_warps": max(4, _warps(own.side))},
    )  # fmt: skip
    _launch_rank(own, weight, order, place, n)


def _launch_nearest_and_attend(
    q: Tensor, k: Tensor, z: Tensor, width: int, size: Tensor, attended: Tensor, scale: float, own: _Pairs
) -> None:
    """`_launch_nearest` of any two patches, z (B, 1, t, c), and the first token's attention beside it."""
    batch, heads, tokens, key_width = k.shape
    find_nearest_and_attend[(batch, heads + own.tiles)](
        q, k, z, size, attended, own.similarity, own.nearest,
        q.stride(0), q.stride(1), *k.stride()[:3], z.stride(0), z.stride(2), size.stride(0) if size.shape[0] > 1 else 0,
        own.stride, heads, own.movers, own.targets, own.parts, tokens, scale,
        KEY_WIDTH=key_width, KEY_CHANNELS=_channels(key_width), KEYS=triton.next_power_of_2(tokens),
        WIDTH=width, SIDE=own.side, CHANNELS=own.channels,
        EXACT=exact(z.dtype), num_warps=max(4, _warps(own.side)),
    )  # fmt: skip


def _side(tokens: int, movers: int, line: int) -> int:
    """Patches that one program compares with as many others, the fastest of a dozen on an H200 for keys: few for few
    tokens of a batch, so that there are many programs; else all of an image where lines of so many bytes fit."""
    if tokens <= FEW_ROWS:
        return 16
    fits = 128 if line <= LINE // 2 else 64 if line <= LINE else 32
    return min(fits, 128 if movers > 64 else 64)


def _warps(side: int) -> int:
    """Groups of threads for it."""
    return max(2, side // 16)
