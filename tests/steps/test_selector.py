"""The kinds of G: what each one reads, and what rows that only fill up change."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import patchslim as ps
from patchslim.steps.selector import ContextSelector, MlpSelector, Selector, hidden_width, make_selector
from small import make_host, make_images, predicting, relative

INFO = ps.inspect(make_host())
KINDS_OF_G: tuple[Any, ...] = ("context", "mlp", "pool")


def made(kind: Any, seed: int = 0) -> Selector:
    torch.manual_seed(seed)
    selector = make_selector(INFO, kind, 4)
    for parameter in selector.parameters():
        torch.nn.init.normal_(parameter)
    return selector.double().requires_grad_(False)


def rows(count: int, images: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(images, count, INFO.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_context_is_the_loop_over_patches_with_their_average() -> None:
    selector = made("context")
    assert isinstance(selector, ContextSelector)
    y = rows(7)
    for image, found in zip(y, selector(y), strict=True):
        mean = sum(image) / len(image)
        for patch, said in zip(image, found, strict=True):
            inner = selector.fc1.weight @ patch + selector.fc1.bias + selector.context.weight @ mean
            expected = selector.fc2.weight @ torch.nn.functional.gelu(inner) + selector.fc2.bias
            assert float(said) == pytest.approx(float(expected), rel=1e-9)


def test_the_papers_is_the_loop_over_positions() -> None:
    """Channels pooled, a linear layer over all positions, softplus; positions that are empty are zeros."""
    selector, y = made("pool"), rows(5, 1)
    place = torch.tensor([[3, 0, 14, 9, 7]])
    pooled = {int(position): float(patch.mean()) for position, patch in zip(place[0], y[0], strict=True)}
    linear = selector.get_submodule("fc")
    weight, bias = linear.get_parameter("weight"), linear.get_parameter("bias")
    for position, said in zip(place[0].tolist(), selector(y, place)[0].tolist(), strict=True):
        inner = sum(float(weight[position, other]) * mean for other, mean in pooled.items()) + float(bias[position])
        assert said == pytest.approx(math.log(math.log1p(math.exp(inner))), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS_OF_G)
def test_it_begins_around_a_score(kind: Any) -> None:
    selector = made(kind)
    for name, parameter in selector.named_parameters():
        if name in ("fc.weight", "fc2.weight"):
            torch.nn.init.zeros_(parameter)
    selector.start_at_(-2.5)
    found = selector(rows(16), torch.arange(16).expand(3, -1))
    torch.testing.assert_close(found, torch.full((3, 16), -2.5, dtype=torch.float64))


def test_context_with_and_without_places_says_the_same_on_full_rows() -> None:
    selector, y = made("context"), rows(16)
    assert torch.allclose(selector(y), selector(y, torch.arange(16).expand(3, -1)), atol=1e-12)
    some = torch.stack([torch.randperm(16)[:9] for _ in range(3)])
    assert torch.allclose(selector(y[:, :9]), selector(y[:, :9], some), atol=1e-12)


def test_without_its_context_it_is_the_plain_one() -> None:
    selector, plain = made("context"), made("mlp")
    assert isinstance(selector, ContextSelector)
    torch.nn.init.zeros_(selector.context.weight)
    plain.load_state_dict({name: part for name, part in selector.state_dict().items() if "context" not in name})
    assert torch.allclose(selector(rows(9)), plain(rows(9)), atol=1e-12)
    assert type(plain) is MlpSelector


def test_a_patch_is_told_what_the_others_are_like() -> None:
    y = rows(9)
    other = y.clone()
    other[:, 5:] += 1
    assert relative(made("context")(other)[:, :5], made("context")(y)[:, :5]) > 1e-2
    assert torch.equal(made("mlp")(other)[:, :5], made("mlp")(y)[:, :5])


@pytest.mark.parametrize("kind", KINDS_OF_G)
@settings(max_examples=15, deadline=None)
@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_rows_that_only_fill_up_change_nothing(kind: Any, counts: list[int], seed: int) -> None:
    selector, longest = made(kind), max(counts)
    y = rows(longest, len(counts), seed)  # what fills up is anything
    place = torch.full((len(counts), longest), INFO.patches)
    for image, count in enumerate(counts):
        place[image, :count] = torch.randperm(INFO.patches, generator=torch.Generator().manual_seed(seed))[:count]
    together = selector(y, place)
    for image, count in enumerate(counts):
        alone = selector(y[image : image + 1, :count], place[image : image + 1, :count])
        assert torch.allclose(together[image, :count], alone[0], atol=1e-9)


def test_an_image_without_patches_is_no_trouble() -> None:
    found = made("context")(rows(3, 2), torch.tensor([[1, 2, 3], [INFO.patches] * 3]))
    assert bool(torch.isfinite(found).all())


def test_kinds_and_their_widths() -> None:
    assert hidden_width(INFO, "context") == hidden_width(INFO, "mlp") == INFO.width // 12
    assert hidden_width(INFO, "pool") == 0
    types = {kind: type(make_selector(INFO, kind, 4)).__name__ for kind in KINDS_OF_G}
    assert types == {"context": "ContextSelector", "mlp": "MlpSelector", "pool": "PoolSelector"}


def test_context_does_not_need_to_know_where_patches_sit() -> None:
    """A slim model of such a plan carries no places along, and each image chooses its own patches."""
    model = make_host()
    plan, weights = predicting(model, selector="context")
    slim = ps.apply(model, plan, weights)
    assert not any(step.tracks for step in plan.steps)
    kept = {tuple(image.any(dim=0).nonzero()[:, 0].tolist()) for image in ps.sources(slim, make_images(6))[1]}
    assert len(kept) > 1
