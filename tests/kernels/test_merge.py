"""Averages of patches, against slow loops."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.kernels.match import TINY, Match, match, take
from patchslim.kernels.merge import merge

IMAGES, PREFIX, WIDTH = 3, 2, 5


def anyhow(patches: int, n: int, seed: int) -> Match:
    """Any n stay, and each of the others joins any of them."""
    generator = torch.Generator().manual_seed(seed)
    gone = torch.ones(IMAGES, patches, dtype=torch.bool)
    for own in gone:
        own[torch.randperm(patches, generator=generator)[:n]] = False
    stays = (~gone).nonzero()[:, 1].view(IMAGES, n)
    joined = stays.gather(1, torch.randint(0, n, gone.shape, generator=generator))
    return Match(torch.where(gone, joined, torch.arange(patches)), n)


def drawn(patches: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens x (B, p + t, d), whole sizes (B, p + t) and weights (B, t)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(IMAGES, PREFIX + patches, WIDTH, generator=generator, dtype=dtype)
    size = torch.randint(1, 5, (IMAGES, PREFIX + patches), generator=generator).to(dtype)
    return x, size, torch.rand(IMAGES, patches, generator=generator).to(dtype) + 0.1


def slow(x: Tensor, size: Tensor, weight: Tensor, to: list[int], n: int) -> tuple[Tensor, list[float]]:
    """One image, token by token: x (t, d), size (t,), weight (t,)."""
    rows, sizes = [], []
    for place in range(n):
        group = [patch for patch, into in enumerate(to) if into == place]
        share = weight[group] / weight[group].sum()
        mean = share @ x[group]
        rows.append(mean / mean.norm() * (share @ x[group].norm(dim=1)))
        sizes.append(float(size[group].sum()))
    return torch.stack(rows), sizes


@settings(max_examples=60, deadline=None)
@given(data=st.data(), patches=st.integers(1, 12), seed=st.integers(0, 999), sized=st.booleans())
def test_it_is_the_slow_loop(data: st.DataObject, patches: int, seed: int, sized: bool) -> None:
    n = data.draw(st.integers(1, patches))
    weighed = data.draw(st.booleans())
    x, size, weight = drawn(patches, seed)
    found = anyhow(patches, n, seed)
    size = size if sized else torch.ones_like(size)
    merged = merge(x, size if sized else None, found, PREFIX, weight if weighed else None)
    assert torch.equal(merged.x[:, :PREFIX], x[:, :PREFIX])
    assert torch.equal(merged.size[:, :PREFIX].expand(IMAGES, -1), size[:, :PREFIX].to(merged.size))
    assert torch.equal(merged.size.sum(dim=1), size.sum(dim=1).to(merged.size))
    for image in range(IMAGES):
        own, counts = x[image, PREFIX:], size[image, PREFIX:]
        heavy = weight[image] if weighed else counts
        rows, sizes = slow(own, counts, heavy, found.to[image].tolist(), n)
        torch.testing.assert_close(merged.x[image, PREFIX:], rows)
        assert merged.size[image, PREFIX:].tolist() == sizes


def test_a_patch_that_nobody_joins_is_itself_to_the_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, size, weight = (own.to(dtype) for own in drawn(40, 1, torch.float32))
        found = anyhow(40, 30, 1)
        merged = merge(x, size.float(), found, PREFIX, weight.float() * 1000)
        joined = torch.zeros(IMAGES, 30).scatter_add(1, found.to, torch.ones(IMAGES, 40))
        rows = take(x[:, PREFIX:], found.keep)
        assert merged.x.dtype == dtype
        assert bool((joined == 1).any())
        assert torch.equal(merged.x[:, PREFIX:][joined == 1], rows[joined == 1])
        assert not torch.equal(merged.x[:, PREFIX:][joined > 1], rows[joined > 1])


def test_when_all_stay_nothing_changes() -> None:
    x, size, weight = drawn(7, 2, torch.float32)
    merged = merge(x, size, anyhow(7, 7, 2), PREFIX, weight)
    assert torch.equal(merged.x, x)
    assert torch.equal(merged.size, size)


def test_opposite_patches_and_weights_of_nothing_give_numbers() -> None:
    x = torch.ones(1, 4, WIDTH)
    x[:, 2] = -1
    found = Match(torch.tensor([[0, 0, 2, 2]]), 2)
    for weight in (torch.ones(1, 4), torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 1.0, TINY]])):
        assert bool(merge(x, None, found, 0, weight).x.isfinite().all())


def test_gradients_are_those_of_differences() -> None:
    x, size, weight = drawn(6, 3)
    found = anyhow(6, 3, 3)

    def tokens(own: Tensor) -> Tensor:
        return merge(own, size, found, PREFIX, weight).x

    assert torch.autograd.gradcheck(tokens, x.clone().requires_grad_())


def test_every_token_of_a_chosen_merge_gets_a_gradient() -> None:
    x, _, weight = drawn(12, 4, torch.float32)
    x.requires_grad_()
    found = match(x.detach()[:, PREFIX:], weight, 3)
    merge(x, None, found, PREFIX, weight).x.square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad.norm(dim=2) > 0).all())
