"""The impact recursion against brute force over all paths of heads, and its properties."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.evidence.scores import impact, own_energy, path_moment, propagate

TOKENS, WIDTH = 6, 5


def random_maps(layers: int, heads: int, seed: int) -> list[Tensor]:
    """Attention maps (1, H, N, N) in float64 of layers t … L."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(layers, 1, heads, TOKENS, TOKENS, generator=generator, dtype=torch.float64) * 2
    return list(logits.softmax(-1))


def readouts() -> dict[str, Tensor]:
    """Readout vectors: the rows the head reads, each weighted; their outer products add up to R."""
    first, second, mean = torch.zeros(3, TOKENS, dtype=torch.float64)
    first[0], second[1], mean[:] = 1, 1, 1 / TOKENS
    return {"class": first[None], "class+distillation": torch.stack([first, second]), "mean": mean[None]}


def brute_force(maps: list[Tensor], masks: list[Tensor], rows: Tensor, z: Tensor) -> Tensor:
    """Eq. 6 to the letter: every path of heads above layer t, every head of layer t, one patch at a time."""
    own, above = maps[0][0], maps[1:]
    scores = torch.zeros(TOKENS, dtype=torch.float64)
    for path in itertools.product(range(own.shape[0]), repeat=len(above)):
        a = rows.clone()
        for layer in reversed(range(len(above))):
            a = a @ torch.diag(masks[layer].double()) @ above[layer][0, path[layer]]
        for head in range(own.shape[0]):
            u = own[head] @ z.abs()
            for i in range(TOKENS):
                scores[i] += torch.outer(a[:, i], u[i]).norm() ** 2
    return scores


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    seed=st.integers(0, 1000),
    readout=st.sampled_from(["class", "class+distillation", "mean"]),
    masked=st.booleans(),
)
def test_equals_brute_force(layers: int, heads: int, seed: int, readout: str, masked: bool) -> None:
    maps = random_maps(layers, heads, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    z = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    masks = [torch.rand(TOKENS, generator=generator) < 0.6 for _ in maps[1:]]
    masks = masks if masked else [torch.ones_like(mask) for mask in masks]
    for mask in masks:
        mask[:2] = True
    rows = readouts()[readout]
    kept = [attention * mask[:, None] for attention, mask in zip(maps[1:], masks, strict=True)]
    moment = path_moment(kept[::-1], (rows.T @ rows)[None])
    found = impact(moment.diagonal(dim1=1, dim2=2), maps[0], z[None])[0] * heads ** len(maps[1:])
    expected = brute_force(maps, masks, rows, z)
    assert float((found - expected).norm() / expected.norm()) < 1e-10


def test_sorted_slices_equal_masks() -> None:
    maps, order, counts = random_maps(4, 2, 0), [3, 0, 5, 1, 2, 4], [5, 3, 2]
    rows = torch.zeros(1, TOKENS, dtype=torch.float64)
    rows[0, 3] = 1
    masks = [torch.zeros(TOKENS, dtype=torch.bool).index_fill(0, torch.tensor(order[:n]), True) for n in counts]
    masked = [attention * mask[:, None] for attention, mask in zip(maps[1:], masks, strict=True)]
    full = path_moment(masked[::-1], (rows.T @ rows)[None])
    # Dropped: a block reads only what the one below kept, so its map has fewer columns as well as fewer rows.
    shaped, n_in = [], TOKENS
    for attention, n in zip(maps[1:], counts, strict=True):
        shaped.append(attention[:, :, order][:, :, :, order][:, :, :n, :n_in])
        n_in = n
    found = path_moment(shaped[::-1], torch.eye(2, dtype=torch.float64)[None] * torch.tensor([1.0, 0.0]))
    assert torch.allclose(found, full[:, order][:, :, order], atol=1e-12)


@given(heads=st.integers(1, 4), seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_moment_is_symmetric_positive_and_keeps_its_sum(heads: int, seed: int) -> None:
    maps = random_maps(3, heads, seed)
    rows = readouts()["class"]
    moment = path_moment(reversed(maps), (rows.T @ rows)[None])[0]
    assert torch.allclose(moment, moment.T)
    assert float(torch.linalg.eigvalsh(moment).min()) > -1e-12
    assert float(moment.sum()) == pytest.approx(1.0)  # H^(L-t) before the division by H per layer
    if heads == 1:
        assert int(torch.linalg.matrix_rank(moment, hermitian=True, atol=1e-10)) == 1


def test_one_step_and_own_energy_by_hand() -> None:
    attention = torch.tensor([[[[0.25, 0.75], [1.0, 0.0]]]], dtype=torch.float64)
    moment = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    assert torch.equal(propagate(moment, attention)[0], torch.tensor([[0.0625, 0.1875], [0.1875, 0.5625]]).double())
    z = torch.tensor([[[-4.0], [8.0]]], dtype=torch.float64)
    assert torch.equal(own_energy(attention, z), torch.tensor([[49.0, 16.0]]).double())
