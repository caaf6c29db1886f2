"""Models made for their speed alone, by every method: within the MACs asked for, and close to them."""

import pytest
import timm
import torch
from torch import nn

import patchslim as ps
from benchmarks.drawn import drawn_model, drawn_plan
from benchmarks.inputs import read_methods
from patchslim import methods
from patchslim.errors import BudgetError
from patchslim.search.schedule import removing

COARSE = {"hvt": 0.1}  # poolings come in steps
WORDS = [*methods.names(), "merge:blocks=none", "ps:carry=true", "predict:removed=drop", "tome:readout_only=true"]


@pytest.fixture(scope="module")
def host() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("test_vit", img_size=128, num_classes=7, depth=8)
    return model.eval()


@pytest.mark.parametrize("word", WORDS)
def test_drawn_models_have_the_macs_asked_for(word: str, host: nn.Module) -> None:
    (chosen,), images = read_methods(word), torch.randn(2, 3, 128, 128)
    for ratio in (0.75, 0.5):
        slim = drawn_model(host, chosen, ratio)
        assert ratio - COARSE.get(chosen.name, 0.03) < ps.count_macs(slim) / ps.count_macs(host) <= ratio
        with torch.no_grad():
            assert slim(images).shape == (2, 7)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_few_blocks_are_as_many_as_asked_for(blocks: int) -> None:
    """Patches join in so many blocks, and the earlier the fewer MACs are left."""
    with torch.device("meta"):
        deep = ps.inspect(timm.create_model("deit_tiny_patch16_224"))
    (chosen,) = read_methods(f"cover:blocks={blocks}")
    first = []
    for ratio in (0.7, 0.55, 0.4):
        plan = drawn_plan(deep, chosen, ratio)
        found = removing(deep.patches, plan.counts)
        assert 1 <= len(found) <= blocks
        assert len(found) == blocks or ratio < 0.5  # deep cuts come close together
        first.append(found[0])
    assert first == sorted(first, reverse=True)
    assert first[0] > first[-1]


def test_given_counts_are_taken(host: nn.Module) -> None:
    counts = [64, 40, 40, 40, 30, 30, 30, 0]
    slim = drawn_model(host, read_methods("merge")[0], 0.5, counts)
    assert list(slim.plan.counts) == counts  # type: ignore[union-attr, arg-type]


def test_what_cannot_be_drawn_is_said(host: nn.Module) -> None:
    with pytest.raises(BudgetError, match="depends on the images"):
        drawn_model(host, read_methods("predict:threshold=true")[0], 0.5)
    with pytest.raises(BudgetError, match=r"comes down to 0\.05"):
        drawn_model(host, read_methods("merge")[0], 0.05)
