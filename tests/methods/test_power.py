"""PoWER: significance is attention received, and a soft configuration of zeros and ones is the extracted network."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.errors import BudgetError
from patchslim.hosts import open_host, open_slim
from patchslim.methods import Power
from patchslim.methods.power import RetentionPath, between, configuration, soft_run
from patchslim.search import Target
from patchslim.slimmed import states_of
from patchslim.steps.power import significance
from small import make_host, make_images
from tasks import by_steps, digits, made, says, task_of


def extracted(model: nn.Module, counts: list[int]) -> nn.Module:
    """PoWER with so many patches in each block."""
    return by_steps(model, Power().steps(ps.inspect(model), counts))


def test_significance_is_attention_received() -> None:
    maps = torch.rand(2, 3, 4, 4).softmax(dim=-1)
    expected = [[sum(float(maps[i, h, q, k]) for h in range(3) for q in range(4)) for k in range(4)] for i in range(2)]
    torch.testing.assert_close(significance(maps), torch.tensor(expected))
    assert float(significance(maps).sum()) == pytest.approx(2 * 3 * 4)


def test_a_block_keeps_the_most_significant() -> None:
    """Those that receive the most attention in the host's own map; they come out as the host's block has them."""
    model, images = make_host(), make_images()
    host, slim = open_host(model), open_slim(extracted(model, [16, 5, 5, 5]))
    with torch.no_grad():
        x = host.blocks[0](host.embed(images))
        received = host.attention(host.blocks[1], x, 17).sum(dim=(1, 2))[:, 1:]
        keep = received.topk(5, dim=1).indices
        whole = host.blocks[1](x)[:, 1:]
        state = states_of(slim, slim.embed(images), tracks=True)[1]
    assert torch.equal(state.rows(1).float().argmax(dim=2), keep)
    expected = torch.stack([own[place] for own, place in zip(whole, keep, strict=True)])
    torch.testing.assert_close(state.x[:, 1:], expected)


def test_ones_are_the_host(kind: str) -> None:
    host = open_host(make_host(kind))
    with torch.no_grad():
        found = soft_run(host, make_images(), torch.ones(4, 16)).logits
        torch.testing.assert_close(found, host.model(make_images()), atol=1e-5, rtol=1e-4)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=4, max_size=4))
def test_zeros_and_ones_are_the_extracted_network(counts: list[int]) -> None:
    """What retention parameters learn at is what extraction does."""
    counts = sorted(counts, reverse=True)
    for kind in ("class", "mean with prefix"):
        model = make_host(kind)
        retention = (torch.arange(16) < torch.tensor(counts)[:, None]).float()
        with torch.no_grad():
            soft = soft_run(open_host(model), make_images(), retention).logits
        hard = says(extracted(model, counts), make_images())
        torch.testing.assert_close(soft, hard, atol=1e-5, rtol=1e-4)


def test_configurations_fall_and_round_up() -> None:
    retention = torch.tensor([[1.0, 1.0, 0.3], [1.0, 1.0, 0.9], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert configuration(retention) == (3, 3, 1, 1)
    assert configuration(retention.flip(0)) == (1, 1, 1, 1)
    steps = between((16, 16, 12), (16, 8, 2))
    assert (steps[0], steps[-1]) == ((16, 16, 12), (16, 8, 2))
    assert all(a >= b for one, other in itertools.pairwise(steps) for a, b in zip(one, other, strict=True))


def test_retention_falls_from_the_least_significant_on() -> None:
    path = RetentionPath(task_of(*digits(32)), 20)
    while sum(path.counts[-1]) > sum(path.counts[0]) / 2:
        path.step()
    for before, after in itertools.pairwise(path.counts):
        assert all(a >= b for a, b in zip(before, after, strict=True))
    retention: Tensor = path.retention.detach()
    assert float(retention[:, :16].mean()) > float(retention[:, -16:].mean()) + 0.05


def test_one_path_serves_every_ratio() -> None:
    """Asked for several ratios of one task in any order, it gives what it gives when asked for one alone."""
    task, power = task_of(make_host()), Power(epochs=6)
    plans = {ratio: made(power, task.at(Target(macs=ratio)))[0].plan for ratio in (0.6, 0.8)}
    walked = len(task.known["power", 6].counts)
    for ratio, plan in plans.items():
        alone = made(power, task_of(make_host(), ratio=ratio))[0].plan
        assert alone is not None
        assert plan is not None
        assert plan.steps == alone.steps
    made(power, task.at(Target(macs=0.7)))
    assert len(task.known["power", 6].counts) == walked > 2  # what lies on the way is not learnt again
    with pytest.raises(BudgetError, match="PoWER takes at least"):
        made(power, task.at(Target(macs=0.2)))
