"""Which patches go and what they join, against slow loops that follow the rule word by word."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.kernels.match import MOST, TINY, Match, all_into_first, apart, match, take, unrounded, weigh
from patchslim.kernels.merge import merge

IMAGES = 3


def drawn(patches: int, seed: int, channels: int = 4) -> tuple[Tensor, Tensor]:
    """Features (B, t, c) and weights (B, t). No two distances or costs are alike."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(IMAGES, patches, channels, generator=generator)
    return z, torch.randn(IMAGES, patches, generator=generator).exp()


def gridded(patches: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same in few whole numbers: there are copies and ties, and every distance and cost is exact in fp32."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randint(0, 3, (IMAGES, patches, 2), generator=generator).float()
    return z, torch.randint(1, 4, (IMAGES, patches), generator=generator).float()


def far(z: Tensor, i: int, j: int) -> float:
    return float((z[i].double() - z[j].double()).square().sum())


def hosts_of(found: Match, image: int) -> dict[int, int]:
    """Which patch joins which."""
    keep = found.keep[image].tolist()
    gone = found.gone[image].nonzero()[:, 0].tolist()
    return {patch: keep[int(found.to[image, patch])] for patch in gone}


def slow_rounds(z: Tensor, weight: list[float], r: int) -> list[set[int]]:
    """What goes in each of two rounds, of one image: z (t, c)."""
    patches, now = range(len(weight)), list(weight)
    gone: set[int] = set()
    rounds = []
    for count in (r - r // 2, r // 2):
        costs = []
        for i in patches:
            others = [j for j in patches if j not in gone and (-weight[j], j) < (-weight[i], i)]
            if i not in gone and others:
                parent = min(others, key=lambda j: (far(z, i, j), j))
                costs.append((now[i] * max(far(z, i, parent), TINY), i, parent))
        going = sorted(costs)[:count]
        for _, i, parent in going:
            now[parent] += weight[i]
        rounds.append({i for _, i, _ in going})
        gone |= rounds[-1]
    return rounds


def check(found: Match, z: Tensor, n: int) -> None:
    """What holds whatever the weights: numbers, places in order, and that each joins the nearest that stays."""
    t = z.shape[1]
    assert found.n == n
    assert found.to.shape == found.gone.shape == (len(z), t)
    assert found.keep.shape == (len(z), n)
    assert (found.gone.sum(dim=1) == t - n).all()
    for image, own in enumerate(z):
        keep = found.keep[image].tolist()
        assert keep == sorted(set(range(t)) - set(found.gone[image].nonzero()[:, 0].tolist()))
        assert found.to[image, keep].tolist() == list(range(n))
        for patch, into in hosts_of(found, image).items():
            assert far(own, patch, into) == pytest.approx(min(far(own, patch, j) for j in keep), rel=1e-4, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), patches=st.integers(1, 17), seed=st.integers(0, 9999))
def test_what_goes_is_what_the_slow_loop_lets_go(data: st.DataObject, patches: int, seed: int) -> None:
    z, weight = drawn(patches, seed)
    n = data.draw(st.integers(1, patches))
    found = match(z, weight, n)
    check(found, z, n)
    for image in range(IMAGES):
        first, second = slow_rounds(z[image], weight[image].tolist(), patches - n)
        assert set(hosts_of(found, image)) == first | second


@settings(max_examples=60, deadline=None)
@given(data=st.data(), patches=st.integers(1, 17), seed=st.integers(0, 9999))
def test_with_copies_and_ties_the_rule_still_holds(data: st.DataObject, patches: int, seed: int) -> None:
    """Of costs that are the same either may go; but none goes that costs more than one that stays."""
    z, weight = gridded(patches, seed)
    n = data.draw(st.integers(1, patches))
    found = match(z, weight, n)
    check(found, z, n)
    assert torch.equal(found.to, match(z, weight, n).to)
    for image in range(IMAGES):
        kinds = {tuple(row) for row in z[image].tolist()}
        stays = {tuple(row) for row in z[image][found.keep[image]].tolist()}
        if n >= len(kinds):  # of those that are alike one stays, before any goes that is like no other
            assert stays == kinds
        assert all(far(z[image], *pair) == 0 for pair in hosts_of(found, image).items()) or n < len(kinds)


def test_one_alone_stays_the_heaviest_and_all_may_stay() -> None:
    z, weight = drawn(9, 1)
    assert torch.equal(match(z, weight, 1).keep[:, 0], weight.argmax(dim=1))
    found = match(z, weight, 9)
    assert not found.gone.any()
    assert torch.equal(found.to, torch.arange(9).expand(IMAGES, -1))
    same = torch.ones(IMAGES, 9)
    assert match(torch.zeros(IMAGES, 9, 4), same, 1).keep.tolist() == [[0]] * IMAGES  # of equal ones the first


def test_a_patch_of_great_weight_stays_and_the_scale_of_weights_does_not_matter() -> None:
    z, weight = drawn(16, 2)
    weight[:, 4] = 1e6
    for n in (1, 5, 12):
        found = match(z, weight, n)
        assert not found.gone[:, 4].any()
        assert torch.equal(found.to, match(z, weight / 1024, n).to)


def test_a_copy_goes_first_and_the_lighter_one_of_the_two() -> None:
    z, weight = drawn(16, 3)
    z[:, 6] = z[:, 3]
    weight[:, 6] = 8 * weight[:, 3]
    assert hosts_of(match(z, weight, 15), 0) == {3: 6}


def test_what_others_rely_on_weighs_more_in_the_second_round() -> None:
    """A patch that would go by its own weight stays once others rely on it."""
    places = torch.tensor([0.0, 0.0, 0.0, 9.0, 20.0])
    weight = torch.tensor([1.2, 1.0, 0.9, 1.5, 9.0])  # 0 alone would cost 97, 3 costs 182; with 1 and 2, 0 costs 251
    found = match(places[None, :, None], weight[None], 2)
    assert hosts_of(found, 0) == {1: 0, 2: 0, 3: 0}


def test_each_joins_the_nearest_that_stays_not_what_it_was_nearest_to_when_it_went() -> None:
    places = torch.tensor([0.0, 1.0, 2.1, 9.0])
    weight = torch.tensor([5.0, 0.2, 0.1, 9.0])  # 2 is nearest to 1; that goes in the second round
    assert hosts_of(match(places[None, :, None], weight[None], 2), 0) == {1: 0, 2: 0}


@settings(max_examples=40, deadline=None)
@given(data=st.data(), patches=st.integers(2, 17), seed=st.integers(0, 9999))
def test_all_into_first_is_the_slow_loop(data: st.DataObject, patches: int, seed: int) -> None:
    z, _ = drawn(patches, seed)
    n = data.draw(st.integers(1, patches))
    found = all_into_first(z, n)
    check(found, z, n)
    for image in range(IMAGES):
        own = z[image]
        wanted = {i: int((own[i] - own[:n]).double().square().sum(dim=1).argmin()) for i in range(n, patches)}
        assert hosts_of(found, image) == wanted


def test_weights_are_learnt_ones_times_sizes_and_bounded() -> None:
    log, size = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(weigh(log, None), log.exp())
    torch.testing.assert_close(weigh(log, size), log.exp() * size)
    bounds = weigh(torch.tensor([[-99.0, 99.0, 999.0]]), size)
    torch.testing.assert_close(bounds, torch.tensor([[1 / MOST, MOST, MOST]]))


def test_an_image_of_no_numbers_leaves_the_others_alone() -> None:
    """As many stay as say that they do: what is averaged goes to no place of another image."""
    z, weight = drawn(12, 6)
    x = torch.cat([z, z], dim=2)
    for broken in (torch.nan, torch.inf):
        for which in (slice(3, 4), slice(None)):
            other = z.clone()
            other[1, which] = broken
            for n in range(1, 13):
                found, usual = match(other, weight, n), match(z, weight, n)
                assert (found.gone.sum(dim=1) == 12 - n).all()
                assert int(found.to.min()) >= 0
                assert int(found.to.max()) < n
                assert torch.equal(found.to[[0, 2]], usual.to[[0, 2]])
                merged = merge(x, None, found, 0, weight).x
                assert torch.equal(merged[[0, 2]], merge(x, None, usual, 0, weight).x[[0, 2]])
                assert int(all_into_first(other, n).to.max()) < n


def test_apart_is_the_squared_distance_and_rows_are_each_images_own() -> None:
    z, _ = drawn(7, 5)
    torch.testing.assert_close(apart(z), torch.cdist(z, z).square(), atol=1e-5, rtol=1e-4)
    index = torch.tensor([[1, 1], [0, 6], [5, 2]])
    for rows in (z, z[..., 0]):
        assert torch.equal(take(rows, index), torch.stack([row[own] for row, own in zip(rows, index, strict=True)]))


def test_autocast_rounds_neither_distances_nor_averages() -> None:
    generator = torch.Generator().manual_seed(0)
    z, x = torch.randn(2, 12, 5, generator=generator), torch.randn(2, 13, 8, generator=generator)
    distance = torch.nn.Linear(8, 6)

    def computed() -> list[Tensor]:
        found = match(z, z[..., 0].exp(), 5)
        first, merged = all_into_first(z, 5), merge(x, None, found, prefix=1)
        every = [found.root, first.root, merged.x, merged.size]
        return [*every, unrounded(z.device, apart, z), unrounded(x.device, distance, x)]

    wanted = computed()
    with torch.autocast("cpu", torch.bfloat16):
        assert distance(x).dtype == torch.bfloat16
        assert all(torch.equal(*pair) for pair in zip(computed(), wanted, strict=True))
