"""Two models on the same images: how far apart they are, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

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
    _check(first, second)
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


def _check(first: Tensor, second: Tensor) -> None:
    if first.dtype != torch.bool or second.dtype != torch.bool:
        raise DataError(f"Hits are booleans, one per image, not {first.dtype} and {second.dtype}; compare with labels.")
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise DataError(
            f"Hits of the shapes {tuple(first.shape)} and {tuple(second.shape)} can't be paired; "
            "give one boolean per image for the same images, at least one."
        )


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
