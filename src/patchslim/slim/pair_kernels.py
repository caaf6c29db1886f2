"""Launches of kernels that find pairs of patches: what `merge.match` and `merge.match_lighter` say in many tensor
operations, in two launches and in three. These are what they are tested against, and what runs where they can't."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from patchslim.hosts.fast import FEW_ROWS, operator
from patchslim.hosts.kernels import LINE, dense, exact
from patchslim.slim.pair_programs import find_lighter, find_nearest, look, rank_by_class, rank_pairs

OWN = 32  # pairs whose rank one program finds, and patches that it ranks at once
# Ranks compare costs that are computed twice. Rounded once here and twice there, a patch would rank before itself, two
# would go to one place, and one place would stay empty.
EXACT_RANKS = {"enable_fp_fusion": False, "num_warps": 4}


class _Pairs(NamedTuple):
    """Sizes of a search for pairs, and room for what it finds."""

    movers: int  # patches that look for their nearest
    hosts: int  # among so many
    side: int  # of a tile
    parts: int  # tiles along the hosts
    tiles: int
    channels: int
    alike: Tensor  # (B, parts, movers)
    nearest: Tensor  # likewise

    @property
    def stride(self) -> int:
        """From one image to the next in what is found."""
        return self.parts * self.movers


def _pairs(z: Tensor, width: int, anyone: bool = False) -> _Pairs:
    """For what patches are compared by, the first channels of (B, h, t, c): the nearest to each of one half, or to each
    patch."""
    batch, _, patches, _ = z.shape
    movers, hosts = (patches, patches) if anyone else ((patches + 1) // 2, patches // 2)
    channels = _channels(width)
    side = _side(batch * patches, movers, channels * z.element_size())
    parts = triton.cdiv(hosts, side)
    alike = z.new_empty(batch, parts, movers, dtype=torch.float32)
    tiles = triton.cdiv(movers, side) * parts
    return _Pairs(movers, hosts, side, parts, tiles, channels, alike, torch.empty_like(alike, dtype=torch.int32))


def _channels(width: int) -> int:
    """What a program holds of a line: matrix units want at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def _places(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """Room for the result."""
    return z.new_empty(z.shape[0], z.shape[2], dtype=torch.int32)


@operator("patchslim::pair", _places)
def pair(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """Where every patch goes when `n` stay: keys z (B, H, t, d_h), weight (B, t) in fp32 → (B, t) places among the n.
    Every even patch and the odd one nearest to it by direction; those pairs of least weight times distance become
    one."""
    z, weight, place = dense(z), dense(weight), _places(z, weight, n)
    own = _pairs(z, z.shape[3])
    with torch.cuda.device_of(z):  # a launch goes to the current device
        _launch_nearest(z, z.shape[3], own, False)
        _launch_rank(own, weight, None, place, n)
    return place


def _launch_nearest(z: Tensor, width: int, own: _Pairs, anyone: bool) -> None:
    """z (B, h, t, c), of whose channels the first ones count."""
    find_nearest[(z.shape[0], own.tiles)](
        z, own.alike, own.nearest,
        *z.stride()[:3], own.stride, z.shape[1], own.movers, own.hosts, own.parts,
        WIDTH=width, SIDE=own.side, CHANNELS=own.channels, ANY=anyone, EXACT=exact(z.dtype),
        num_warps=_warps(own.side),
    )  # fmt: skip


def _launch_rank(own: _Pairs, weight: Tensor, order: Tensor | None, place: Tensor, n: int) -> None:
    """weight, place (B, t); order likewise, or None for the even patches and the odd ones."""
    batch, patches = place.shape
    rank_pairs[(batch, triton.cdiv(own.movers, OWN))](
        own.alike, own.nearest, weight, order, place,
        own.stride, weight.stride(0), place.stride(0), own.movers, own.hosts, own.parts, patches - n,
        OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), ORDERED=order is not None, **EXACT_RANKS,
    )  # fmt: skip


def _weighed(
    q: Tensor, k: Tensor, size: Tensor, scale: float, prefix: int, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Room for both results."""
    shape = k.shape[0], k.shape[2] - prefix
    return k.new_empty(shape, dtype=torch.int32), k.new_empty(shape, dtype=torch.float32)


@operator("patchslim::pair_by_class", _weighed)
def pair_by_class(
    q: Tensor, k: Tensor, size: Tensor, scale: float, prefix: int, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """The same, where a patch weighs its importance plus `floor`; importance comes along: the first token's attention
    to it, averaged over heads, mean 1. q (B, H, 1, d_h), k (B, H, p + t, d_h), size (B or 1, p + t) → twice (B, t)."""
    batch, heads, tokens, width = k.shape
    q, k, size, t = dense(q), dense(k), dense(size), tokens - prefix
    place, importance = _weighed(q, k, size, scale, prefix, n, floor)
    z, heed = k[:, :, prefix:], k.new_empty(batch, heads, tokens, dtype=torch.float32)
    own = _pairs(z, width)
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _launch_look(q, k, z, width, size, heed, scale, own, False)
        rank_by_class[(batch, triton.cdiv(own.movers, OWN))](
            own.alike, own.nearest, heed, importance, place,
            own.stride, heads * tokens, t, heads, tokens, prefix, own.movers, own.hosts, own.parts, t - n, floor,
            OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), **EXACT_RANKS,
        )  # fmt: skip
    return place, importance


def _lighter_places(z: Tensor, n: int) -> Tensor:
    """Room for the result."""
    return z.new_empty(z.shape[:2], dtype=torch.int32)


@operator("patchslim::pair_lighter", _lighter_places)
def pair_lighter(z: Tensor, n: int) -> Tensor:
    """`pair` by distance, z (B, t, c + 1), the last channel being the logarithm of what a patch weighs; not the even
    patches may go but the half that weighs least beside the nearest."""
    z, place = dense(z), _lighter_places(z, n)
    rows = z[:, None]
    near = _pairs(rows, z.shape[2] - 1, anyone=True)
    with torch.cuda.device_of(z):  # a launch goes to the current device
        _launch_nearest(rows, z.shape[2] - 1, near, True)
        _launch_lighter(z, near, None, None, place, n, 0.0)
    return place


def _weighed_lighter(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Room for both results."""
    return z.new_empty(z.shape[:2], dtype=torch.int32), z.new_empty(z.shape[:2], dtype=torch.float32)


@operator("patchslim::pair_lighter_by_class", _weighed_lighter)
def pair_lighter_by_class(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """The same, where a patch weighs (importance + `floor`)² times what z says; arguments and importance as in
    `pair_by_class`."""
    batch, heads, tokens, _ = k.shape
    q, k, z, size = dense(q), dense(k), dense(z), dense(size)
    place, importance = _weighed_lighter(q, k, z, size, scale, n, floor)
    rows, heed = z[:, None], k.new_empty(batch, heads, tokens, dtype=torch.float32)
    near = _pairs(rows, z.shape[2] - 1, anyone=True)
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _launch_look(q, k, rows, z.shape[2] - 1, size, heed, scale, near, True)
        _launch_lighter(z, near, heed, importance, place, n, floor)
    return place, importance


def _launch_lighter(
    z: Tensor, near: _Pairs, heed: Tensor | None, importance: Tensor | None, place: Tensor, n: int, floor: float
) -> None:
    """Both halves, pairs between them, and ranks: z (B, t, c + 1), heed (B, H, p + t)."""
    batch, t, width = z.shape
    own = _pairs(z[:, None], width - 1)
    order, weight = torch.empty_like(place), torch.empty_like(place, dtype=torch.float32)
    heads, tokens = (1, t) if heed is None else heed.shape[1:]
    find_lighter[(batch, own.tiles)](
        z, near.alike, near.nearest, heed, order, importance, weight, own.alike, own.nearest,
        z.stride(0), z.stride(1), near.stride, heads * tokens, own.stride,
        t, heads, tokens, tokens - t, near.parts, own.movers, own.hosts, own.parts, floor,
        WIDTH=width - 1, SIDE=own.side, CHANNELS=own.channels, PATCHES=triton.next_power_of_2(t), OWN=OWN,
        CLASSED=heed is not None, EXACT=exact(z.dtype), **EXACT_RANKS | {"num_warps": max(4, _warps(own.side))},
    )  # fmt: skip
    _launch_rank(own, weight, order, place, n)


def _launch_look(
    q: Tensor, k: Tensor, z: Tensor, width: int, size: Tensor, heed: Tensor, scale: float, own: _Pairs, anyone: bool
) -> None:
    """`_launch_nearest`, and the first token's attention beside it."""
    batch, heads, tokens, key_width = k.shape
    look[(batch, heads + own.tiles)](
        q, k, z, size, heed, own.alike, own.nearest,
        q.stride(0), q.stride(1), *k.stride()[:3], *z.stride()[:3], size.stride(0) if size.shape[0] > 1 else 0,
        own.stride, heads, z.shape[1], own.movers, own.hosts, own.parts, tokens, scale,
        KEY_WIDTH=key_width, KEY_CHANNELS=_channels(key_width), KEYS=triton.next_power_of_2(tokens),
        WIDTH=width, SIDE=own.side, CHANNELS=own.channels, ANY=anyone,
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
