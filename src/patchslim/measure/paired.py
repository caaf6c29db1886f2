"""Two models on the same images: how far apart they are, and how sure that is; and so for the rows of a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from patchslim.errors import DataError

_Z = NormalDist().inv_cdf(0.975)  # 95 %, two-sided
_STEPS = 60  # halvings of an interval at most 2 long: more than a float can tell apart


@dataclass(frozen=True)
class Paired:
    """First minus second, in points, over images that both models answered."""

    difference: float
    low: float  # of the 95 % confidence interval, in points
    high: float
    images: int
    only_first: int  # images that only the first got right
    only_second: int
    p_value: float  # two-sided, that both are equally often right


def paired(first: Tensor, second: Tensor) -> Paired:
    """Compare what two models got right, image by image: booleans (images,), (images,) in the same order.

    The interval is Tango's (Statistics in Medicine 17, 1998): all differences that the score test does not reject at
    5 %. It needs nothing but the images on which the models differ, stays within ±100 points, and keeps a width where
    the models never differ (z² / (images + z²), about ±3.8 images), while Wald's shrinks to nothing.

    The p-value is that of the exact McNemar test, a sign test on the images on which the models differ; it is the more
    cautious of the two, so just above 0.05 the interval may already leave 0 out.
    """
    if first.dtype != torch.bool or second.dtype != torch.bool:
        raise DataError(f"Hits are booleans, one per image, not {first.dtype} and {second.dtype}; compare with labels.")
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise DataError(
            f"Hits of the shapes {tuple(first.shape)} and {tuple(second.shape)} can't be paired; "
            "give one boolean per image for the same images, at least one."
        )
    only_first, only_second, images = int((first & ~second).sum()), int((second & ~first).sum()), len(first)
    return Paired(
        difference=100 * (only_first - only_second) / images,
        low=-100 * _upper(only_second, only_first, images),
        high=100 * _upper(only_first, only_second, images),
        images=images,
        only_first=only_first,
        only_second=only_second,
        p_value=_sign_test(only_first, only_second),
    )


def with_intervals(base: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a comparison, the paired difference in top-1 added to each state that was measured: `against_base`, and
    `against_first` with the name of the `first`, the row of the highest top-1 at the same ratio and in the same state.
    """
    found = [dict(row) for row in rows]
    for state in ("untuned", "recovered"):
        for ratio in dict.fromkeys(row["target_macs"] for row in found):
            alike = [row for row in found if row["target_macs"] == ratio and row.get(state)]
            for row in alike:
                first = max(alike, key=lambda row: row[state]["top1"])
                row[state] = row[state] | {
                    "first": first["method"],
                    "against_first": _difference(row[state], first[state]),
                    "against_base": _difference(row[state], base["untuned"]),
                }
    return found


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return asdict(paired(*(from_hex(score["right"], score["images"]) for score in (one, other))))


def to_hex(right: Tensor) -> str:
    """Which images are right, four to a digit: booleans (images,), the first image in the highest bit."""
    bits = "".join("1" if hit else "0" for hit in right.tolist())
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def from_hex(text: str, images: int) -> Tensor:
    """And back: booleans (images,)."""
    return torch.tensor([bit == "1" for bit in f"{int(text, 16):0{images}b}"])


def _upper(b: int, c: int, images: int) -> float:
    """The largest difference that b images won and c lost don't contradict, as a proportion."""
    low, high = (b - c) / images, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (images * middle - (b - c)) ** 2 <= _Z**2 * _variance(middle, b, c, images):
            low = middle
        else:
            high = middle
    return high


def _variance(difference: float, b: int, c: int, images: int) -> float:
    """Variance of b − c if the true difference were this one (Tango 1998; lost is his q21, most likely then)."""
    linear = (2 * images - b + c) * difference - b - c
    product = c * difference * (1 - difference)
    lost = (math.sqrt(max(0.0, linear**2 + 8 * images * product)) - linear) / (4 * images)
    return max(0.0, images * (2 * lost + difference * (1 - difference)))


def _sign_test(b: int, c: int) -> float:
    """Exact two-sided probability of a split at least as uneven, if each side were as likely."""
    total = b + c
    logs = (math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(min(b, c) + 1))
    # By logarithms: 2**total is too large for a float from 1,024 images on.
    return min(1.0, 2 * math.fsum(math.exp(log - total * math.log(2)) for log in logs))
