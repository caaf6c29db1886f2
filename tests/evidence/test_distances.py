"""Distances between patches: against a Jacobian taken whole, and closed forms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.cache import Cache
from patchslim.data import as_source
from patchslim.evidence import distances
from patchslim.evidence.distances import Moments, find_distances, gather, replacement, set_distance_
from patchslim.evidence.features import Features
from patchslim.hosts import Host, open_host
from patchslim.steps.merge import make_distance
from small import make_host, make_images, read_by

KINDS = ["class", "registers", "mean with prefix", "distilled"]


def features_of(model: nn.Module, images: Tensor) -> tuple[Host, Features]:
    host = open_host(model)
    return host, Features(host, as_source(images), 2, 2**30)


def entering(host: Host, image: Tensor, layer: int) -> Tensor:
    """Z_{l-1} by running the host's own blocks."""
    x = host.embed(image)
    for block in host.blocks[: layer - 1]:
        x = block(x)
    return x


def whole_jacobian(host: Host, x: Tensor, layer: int) -> Tensor:
    """Derivatives of the readout, over its length, in the patches x = Z_{l-1} that enter a block: (F, N, d)."""

    def readout(tokens: Tensor) -> Tensor:
        for block in host.blocks[layer - 1 :]:
            tokens = block(tokens)
        read: Tensor = host.features(tokens).flatten()
        return read

    jacobian: Tensor = torch.autograd.functional.jacobian(readout, x)
    along: Tensor = jacobian[:, 0, host.info.prefix_tokens :] / readout(x).norm()
    return along


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_whole_jacobian(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every direction of the readout instead of random ones, image by image."""
    model, images = make_host(kind).requires_grad_(False), make_images(3)
    host, features = features_of(model, images)
    width, info = read_by(model, images[:1]).numel(), host.info

    def every(readout: Tensor, count: int, generator: torch.Generator) -> Tensor:
        shared: Tensor = torch.eye(width) / readout.norm(dim=1)[:, None, None]
        return shared

    monkeypatch.setattr(distances, "PROBES", width)
    monkeypatch.setattr(distances, "probes", every)
    found = gather(host, features, 0)
    assert len(found) == (info.depth if info.reads_patches else info.depth - 1)
    for layer, moments in enumerate(found, start=1):
        form, spread = torch.zeros(2, info.width, info.width)
        lean = torch.zeros(info.width)
        for image in images.split(1):
            x = entering(host, image, layer)
            jacobian, patches = whole_jacobian(host, x, layer), x[0, info.prefix_tokens :]
            away = patches[None, :, :] - patches[:, None, :]  # (N, N, d): from i to j
            matter = torch.einsum("fnd,nmd->fnm", jacobian, away).square().sum(dim=0).mean(dim=1)
            form += torch.einsum("fnc,fnd,n->cd", jacobian, jacobian, 1 / matter)
            rows = patches - patches.mean(dim=0)
            spread += rows.T @ rows
            lean += rows.T @ matter.sqrt().log()
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
    """Gradients so made that log √u is linear in the token; the slope is found again, but for the ridge."""
    generator = torch.Generator().manual_seed(seed)
    x, slope = torch.randn(6, 40, 3, generator=generator), torch.randn(3, generator=generator)
    grads = torch.randn(1, 6, 40, 3, generator=generator)
    wanted = (2 * x @ slope).exp()
    grads = grads * (wanted / replacement(x, grads)).sqrt()[None, ..., None]
    torch.testing.assert_close(replacement(x, grads), wanted)
    moments = Moments.empty(3, torch.device("cpu"))
    scale = torch.rand(6, 1, 1, generator=generator) + 0.5  # an image that matters more as a whole: no matter
    moments.add_(x, grads * scale)
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
    found = find_distances(host, features, Cache(tmp_path), 0, heard.append)
    assert [event["event"] for event in heard] == ["distances"]
    monkeypatch.setattr(distances, "gather", lambda *args: pytest.fail("found again"))
    again = find_distances(host, features, Cache(tmp_path), 0, heard.append)
    assert found.keys() == again.keys() == {1, 2, 3}
    for layer, distance in found.items():
        assert all(torch.equal(*pair) for pair in zip(distance.parameters(), again[layer].parameters(), strict=True))
        assert not any(parameter.requires_grad for parameter in distance.parameters())
