"""The kinds of G: what each one reads, and what rows that only fill up change."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import patchslim as ps
from patchslim.plan import build_plan
from patchslim.slim.predictor import ContextPredictor, MlpPredictor, Predictor, hidden_width, make_predictor
from small import make_host, make_images, per_image_plan, relative

INFO = ps.inspect(make_host())
KINDS_OF_G: tuple[Any, ...] = ("context", "mlp", "pool")


def made(kind: Any, seed: int = 0) -> Predictor:
    torch.manual_seed(seed)
    predictor = make_predictor(INFO, kind, 4)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter)
    return predictor.double().requires_grad_(False)


def rows(count: int, images: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(images, count, INFO.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_context_is_the_loop_over_patches_with_their_average() -> None:
    predictor = made("context")
    assert isinstance(predictor, ContextPredictor)
    y = rows(7)
    for image, found in zip(y, predictor(y), strict=True):
        mean = sum(image) / len(image)
        for patch, said in zip(image, found, strict=True):
            inner = predictor.fc1.weight @ patch + predictor.fc1.bias + predictor.context.weight @ mean
            expected = predictor.fc2.weight @ torch.nn.functional.gelu(inner) + predictor.fc2.bias
            assert float(said) == pytest.approx(float(expected), rel=1e-9)


def test_context_with_and_without_places_says_the_same_on_full_rows() -> None:
    predictor, y = made("context"), rows(16)
    assert torch.allclose(predictor(y), predictor(y, torch.arange(16).expand(3, -1)), atol=1e-12)
    some = torch.stack([torch.randperm(16)[:9] for _ in range(3)])
    assert torch.allclose(predictor(y[:, :9]), predictor(y[:, :9], some), atol=1e-12)


def test_without_its_context_it_is_the_plain_one() -> None:
    predictor, plain = made("context"), made("mlp")
    assert isinstance(predictor, ContextPredictor)
    torch.nn.init.zeros_(predictor.context.weight)
    plain.load_state_dict({name: part for name, part in predictor.state_dict().items() if "context" not in name})
    assert torch.allclose(predictor(rows(9)), plain(rows(9)), atol=1e-12)
    assert type(plain) is MlpPredictor


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
    predictor, longest = made(kind), max(counts)
    y = rows(longest, len(counts), seed)  # what fills up is anything
    place = torch.full((len(counts), longest), INFO.patches)
    for image, count in enumerate(counts):
        place[image, :count] = torch.randperm(INFO.patches, generator=torch.Generator().manual_seed(seed))[:count]
    together = predictor(y, place)
    for image, count in enumerate(counts):
        alone = predictor(y[image : image + 1, :count], place[image : image + 1, :count])
        assert torch.allclose(together[image, :count], alone[0], atol=1e-9)


def test_an_image_without_patches_is_no_trouble() -> None:
    found = made("context")(rows(3, 2), torch.tensor([[1, 2, 3], [INFO.patches] * 3]))
    assert bool(torch.isfinite(found).all())


def test_context_is_the_kind_that_is_made_unless_another_is_asked_for() -> None:
    assert ps.SearchConfig(select="predicted").predictor == "context"
    assert hidden_width(INFO, "context") == hidden_width(INFO, "mlp") == INFO.width // 12
    types = {kind: type(make_predictor(INFO, kind, 4)).__name__ for kind in KINDS_OF_G}
    assert types == {"context": "ContextPredictor", "mlp": "MlpPredictor", "pool": "PoolPredictor"}


def test_context_does_not_need_to_know_where_patches_sit() -> None:
    """A slim model of such a plan carries no places along, and each image chooses its own patches."""
    model = make_host()
    plan, weights = per_image_plan(model, "predicted", "drop", kind="context")
    slim: Any = ps.apply(model, plan, weights)
    kept = {tuple(image.any(dim=0).nonzero()[:, 0].tolist()) for image in slim.sources(make_images(6))[1]}
    assert len(kept) > 1


def test_predicted_patches_that_merge_keep_at_least_half_per_block() -> None:
    spec = per_image_plan(make_host(), "predicted", "merge", kind="context")[0].predictor
    fields: dict[str, Any] = {"select": "predicted", "predictor": spec}
    for counts in ([16, 7, 4, 0], [7, 7, 7, 0], [13, 9, 3, 0]):
        with pytest.raises(ps.PlanError, match="at least half"):
            build_plan(INFO, **fields, removed="merge", patches_per_block=counts)
        assert build_plan(INFO, **fields, removed="drop", patches_per_block=counts).counts == tuple(counts)
    for counts in ([8, 4, 2, 0], [15, 7, 3, 0]):
        plan = build_plan(INFO, **fields, removed="merge", patches_per_block=counts)
        assert [plan.in_pairs(block) for block in (1, 2, 3, 4)] == [True, True, True, False]
    plan = build_plan(INFO, **fields, removed="merge", patches_per_block=[16, 3, 2, 0], drops=[2])
    assert [plan.in_pairs(block) for block in (1, 2, 3, 4)] == [True, False, True, False]
