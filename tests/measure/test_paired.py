"""Paired differences against a published example, brute force over the likelihood, and repeated draws."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patchslim.errors import DataError
from patchslim.measure import Paired, paired


def hits(only_first: int, only_second: int, images: int, both: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Booleans with these counts, spread out."""
    neither = images - only_first - only_second - both
    rows = [(True, False)] * only_first + [(False, True)] * only_second + [(True, True)] * both
    table = torch.tensor(rows + [(False, False)] * neither)
    table = table[torch.randperm(images, generator=torch.Generator().manual_seed(0))]
    return table[:, 0], table[:, 1]


def compared(only_first: int, only_second: int, images: int) -> Paired:
    return paired(*hits(only_first, only_second, images))


def test_a_published_example() -> None:
    """Response before and after therapy (Cavo et al. 2012) as Fagerland, Lydersen and Laake work it out: Tango's
    interval and the exact conditional McNemar test, to the digits that their package contingencytables prints."""
    found = compared(6, 16, 161)
    assert found.difference == pytest.approx(-6.21, abs=0.005)
    assert found.low == pytest.approx(-12.40, abs=0.005)
    assert found.high == pytest.approx(-0.54, abs=0.005)
    assert found.p_value == pytest.approx(0.052479, abs=5e-7)
    assert (found.only_first, found.only_second, found.images) == (6, 16, 161)


def most_likely(delta: float, b: int, c: int, n: int) -> tuple[float, float]:
    """(won, lost) that make the counts most likely among those that differ by delta, by search on a grid."""

    def log(count: int, p: float) -> float:
        return 0.0 if count == 0 else count * math.log(p) if p > 0 else -math.inf

    low, high = max(0.0, -delta), (1 - delta) / 2
    for _ in range(6):  # each grid ten times finer, around the best of the one before
        grid = [low + (high - low) * i / 40 for i in range(41)]
        best = max(grid, key=lambda q: log(b, q + delta) + log(c, q) + log(n - b - c, 1 - 2 * q - delta))
        step = (high - low) / 20
        low, high = max(low, best - step), min(high, best + step)
    return best + delta, best


@pytest.mark.parametrize("counts", [(6, 16, 161), (0, 0, 30), (0, 3, 30), (9, 0, 40), (20, 25, 60), (1, 0, 500)])
def test_the_ends_are_where_the_score_test_turns(counts: tuple[int, int, int]) -> None:
    """At either end the score statistic, from a likelihood maximised by search, is 1.96 deviations."""
    b, c, n = counts
    found = compared(b, c, n)
    for end in (found.low / 100, found.high / 100):
        won, lost = most_likely(end, b, c, n)
        deviation = math.sqrt(n * (won + lost - end**2))
        assert abs(b - c - n * end) / deviation == pytest.approx(1.959964, rel=2e-3)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (3, 9), (9, 3), (700, 640), (0, 2000)])
def test_the_p_value_is_the_exact_one(b: int, c: int) -> None:
    """By whole numbers, beyond what 2**n fits a float."""
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
    exact = min(2 * tail, 2 ** (b + c)) / 2 ** (b + c)
    assert compared(b, c, 2500).p_value == pytest.approx(exact, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("won", "lost", "images"), [(0.02, 0.02, 100), (0.05, 0.01, 200), (0.1, 0.12, 500), (0.004, 0.01, 1000)]
)
def test_ninety_five_of_a_hundred_intervals_hold_the_truth(won: float, lost: float, images: int) -> None:
    generator = torch.Generator().manual_seed(7)
    draws, held = 2000, 0
    for _ in range(draws):
        u = torch.rand(images, generator=generator)
        found = paired(u < won, (u >= won) & (u < won + lost))
        held += found.low <= 100 * (won - lost) <= found.high
    assert 0.935 < held / draws < 0.985


counts = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 300)).filter(any)


@given(counts)
def test_properties(drawn: tuple[int, int, int, int]) -> None:
    b, c, both, _ = drawn
    first, second = hits(b, c, sum(drawn), both)
    found, swapped = paired(first, second), paired(second, first)
    assert (swapped.difference, swapped.low, swapped.high) == (-found.difference, -found.high, -found.low)
    assert (swapped.only_first, swapped.only_second) == (found.only_second, found.only_first)
    assert swapped.p_value == found.p_value
    assert -100 <= found.low <= found.difference <= found.high <= 100
    assert found.low < found.high
    assert 0 < found.p_value <= 1
    # Where both are right or both wrong makes no difference.
    assert found == compared(b, c, sum(drawn))
    if found.p_value < 0.05:
        assert found.low > 0 or found.high < 0


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_a_model_against_itself(answers: list[bool]) -> None:
    right = torch.tensor(answers)
    found = paired(right, right)
    assert (found.difference, found.only_first, found.only_second, found.p_value) == (0, 0, 0, 1)
    assert found.low == -found.high
    assert found.high == pytest.approx(100 * 1.959964**2 / (len(right) + 1.959964**2))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (torch.ones(3, dtype=torch.bool), torch.ones(4, dtype=torch.bool), "(3,) and (4,)"),
        (torch.ones(0, dtype=torch.bool), torch.ones(0, dtype=torch.bool), "at least one"),
        (torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool), "one boolean per image"),
        (torch.ones(3), torch.ones(3, dtype=torch.bool), "torch.float32"),
    ],
)
def test_what_cant_be_paired(first: Any, second: Any, words: str) -> None:
    with pytest.raises(DataError) as error:
        paired(first, second)
    assert words in str(error.value)
