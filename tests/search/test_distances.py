"""Distances between patches: against a Jacobian taken whole, and closed forms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.search import distances
from patchslim.search.distances import Moments, find_distances, gather, replacement, set_distance_
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.slim.chooser import make_distance
from patchslim.slim.merge import LEARNT_FLOOR
from small import make_host, make_images, read_by

KINDS = ["class", "registers", "mean with prefix", "distilled"]


def features_of(model: nn.Module, images: Tensor) -> tuple[Any, Features]:
    host = open_host(model)
    return host, Features(host, as_source(images), 2, 2**30)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_whole_jacobian(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every direction of the readout instead of random ones, block by block, by running the host's own blocks."""
    model, images = make_host(kind).requires_grad_(False), make_images(3)
    host, features = features_of(model, images)
    width = read_by(model, images[:1]).numel()

    def every(readout: Tensor, count: int, generator: torch.Generator) -> Tensor:
        shared: Tensor = torch.eye(width) / readout.norm(dim=1)[:, None, None]
        return shared

    monkeypatch.setattr(distances, "PROBES", width)
    monkeypatch.setattr(distances, "probes", every)
    found = gather(host, features, 0)
    prefix, info = host.info.prefix_tokens, host.info
    assert len(found) == (info.depth if info.reads_patches else info.depth - 1)
    for layer, moments in enumerate(found, start=1):
        form, spread = torch.zeros(info.width, info.width), torch.zeros(info.width, info.width)
        lean = torch.zeros(info.width)
        for image in images.split(1):
            x = host.embed(image)
            for block in host.blocks[: layer - 1]:
                x = block(x)

            def rest(tokens: Tensor, begin: int = layer - 1) -> Tensor:
                for block in host.blocks[begin:]:
                    tokens = block(tokens)
                return host.features(tokens).flatten()  # type: ignore[no-any-return]

            jacobian = torch.autograd.functional.jacobian(rest, x)[:, 0, prefix:]  # (F, N, d)
            jacobian = jacobian / rest(x).norm()
            weight = torch.ones(info.patches)
            if info.reads_class:
                incoming = host.math.read(host.blocks[layer - 1], x)
                row = host.math.class_attention(host.blocks[layer - 1], incoming, None)[0, prefix:]
                weight = (row * info.patches + LEARNT_FLOOR) ** 2
            patches = x[0, prefix:]
            away = patches[None, :, :] - patches[:, None, :]  # (N, N, d): from i to j
            matter = torch.einsum("fnd,nmd->fnm", jacobian, away).square().sum(dim=0).mean(dim=1)
            form += torch.einsum("fnc,fnd,n->cd", jacobian, jacobian, 1 / matter)
            rows = patches - patches.mean(dim=0)
            spread += rows.T @ rows
            lean += rows.T @ (matter / weight).log()
        for found_one, wanted in ((moments.form, form), (moments.spread, spread), (moments.lean, lean)):
            torch.testing.assert_close(found_one, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
        assert moments.patches == 3 * info.patches


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(0, 99))
def test_with_all_channels_it_is_the_quadratic_form(width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    roots = torch.randn(2, width, 9, generator=generator)
    form, spread = (root @ root.T for root in roots)
    moments = Moments(form, spread, torch.zeros(width), torch.randn(width, generator=generator), 9)
    distance = make_distance(width, width)
    set_distance_(distance, moments)
    features = distance.weight[:-1].detach()
    away = torch.randn(5, width, generator=generator)
    wanted = torch.einsum("nc,cd,nd->n", away, moments.form, away)
    found = (away @ features.T).square().sum(dim=1)
    ratio = found / wanted
    torch.testing.assert_close(ratio, ratio.mean().expand(5), rtol=1e-3, atol=0.0)
    spread = torch.einsum("ac,cd,ad->", features, moments.spread / 9, features)
    assert float(spread) == pytest.approx(1, rel=1e-3)
    assert float(distance(moments.total / 9).detach().abs().max()) == pytest.approx(0, abs=1e-4)


def test_few_channels_are_those_in_which_patches_differ_most() -> None:
    """Of a diagonal form and spread, the channels with the largest products."""
    form, spread = torch.tensor([4.0, 1.0, 9.0, 1.0]), torch.tensor([1.0, 9.0, 1.0, 1.0])  # products 4, 9, 9, 1
    distance = make_distance(4, 2)
    set_distance_(distance, Moments(form.diag(), spread.diag(), torch.zeros(4), torch.zeros(4), 1))
    squares = distance.weight[:-1].detach().square().sum(dim=0)
    torch.testing.assert_close(squares / squares[2], torch.tensor([0.0, 1 / 9, 1.0, 0.0]), rtol=1e-4, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99))
def test_the_weight_is_a_least_squares_fit(seed: int) -> None:
    """Gradients so made that log u is linear in the token; the slope is found again, but for the ridge."""
    generator = torch.Generator().manual_seed(seed)
    x, slope = torch.randn(6, 40, 3, generator=generator), torch.randn(3, generator=generator)
    grads = torch.randn(1, 6, 40, 3, generator=generator)
    wanted = (x @ slope).exp()
    grads = grads * (wanted / replacement(x, grads)).sqrt()[None, ..., None]
    torch.testing.assert_close(replacement(x, grads), wanted)
    moments = Moments.empty(3, torch.device("cpu"))
    weight = torch.rand(6, 1, generator=generator).expand(6, 40) + 0.5  # alike within an image: no matter
    moments.add_(x, grads, weight)
    distance = make_distance(3, 2)
    set_distance_(distance, moments)
    torch.testing.assert_close(distance.weight[-1].detach(), slope, rtol=0.02, atol=0.02)


def test_gradients_that_are_no_numbers_are_told() -> None:
    moments = Moments.empty(3, torch.device("cpu"))
    moments.lean[0] = torch.nan
    with pytest.raises(ps.PatchslimError, match="A gradient is not a finite number"):
        set_distance_(make_distance(3, 2), moments)


def test_they_are_found_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, features = features_of(make_host(), make_images(3))
    heard: list[Any] = []
    found = find_distances(host, features, Ledger(tmp_path), 0, heard.append)
    assert [event["event"] for event in heard] == ["distances"]
    monkeypatch.setattr(distances, "gather", lambda *args: pytest.fail("found again"))
    again = find_distances(host, features, Ledger(tmp_path), 0, heard.append)
    assert found.keys() == again.keys() == {1, 2, 3}
    for layer, distance in found.items():
        assert all(torch.equal(*pair) for pair in zip(distance.parameters(), again[layer].parameters(), strict=True))
        assert not any(parameter.requires_grad for parameter in distance.parameters())


def test_a_search_by_keys_has_none() -> None:
    model, images = make_host(), make_images(3)
    plan, weights = ps.search(model, images, ps.SearchConfig(select="matched", distance="keys", target_macs=0.6))
    assert plan.distance is None
    assert weights == {}
    plan, weights = ps.search(model, images, ps.SearchConfig(select="matched", target_macs=0.6))
    assert plan.distance is not None
    assert ps.apply(model, plan, weights).plan == plan


def test_distances_belong_to_matched_patches() -> None:
    with pytest.raises(ps.BudgetError, match="A distance is for patches that are matched"):
        ps.SearchConfig(distance="keys")
    wrong: Any = "far"
    with pytest.raises(ps.BudgetError, match="There is no distance 'far'"):
        ps.SearchConfig(select="matched", distance=wrong)
