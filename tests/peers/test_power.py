"""PoWER: significance is attention received, and a soft configuration of zeros and ones is the extracted network."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.hosts import open_host
from patchslim.peers import Unreachable
from patchslim.peers.power import Power, RetentionPath, between, configuration, significance, soft_run
from peer_jobs import built, digits, job_of, says
from small import make_host, make_images


def test_significance_is_attention_received() -> None:
    maps = torch.rand(2, 3, 4, 4).softmax(dim=-1)
    expected = [[sum(float(maps[i, h, q, k]) for h in range(3) for q in range(4)) for k in range(4)] for i in range(2)]
    torch.testing.assert_close(significance(maps), torch.tensor(expected))
    assert float(significance(maps).sum()) == pytest.approx(2 * 3 * 4)


def test_a_block_keeps_the_most_significant() -> None:
    model = make_host()
    host = open_host(model)
    cell = Power().with_counts(job_of(model), [16, 5, 5, 5])
    images, seen = make_images(), []
    hook = cell.module.get_submodule("blocks.1.reduce").register_forward_hook(
        lambda _, given, out: seen.append(given[0].x)
    )
    says(cell.module, images)
    hook.remove()
    with torch.no_grad():
        x = host.blocks[0](host.embed(images))
        received = host.attention(host.blocks[1], x, 17).sum(dim=(1, 2))[:, 1:]
        keep = received.topk(5, dim=1).indices + 1
        after = cell.module.get_submodule("blocks.1")(x)
        rows = torch.stack([own[place] for own, place in zip(seen[0], keep, strict=True)])
        expected = host.math.feed(host.blocks[1], rows)
    torch.testing.assert_close(after.x[:, 1:], expected)


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
        hard = says(Power().with_counts(job_of(model), counts).module, make_images())
        torch.testing.assert_close(soft, hard, atol=1e-5, rtol=1e-4)


def test_configurations_fall_and_round_up() -> None:
    retention = torch.tensor([[1.0, 1.0, 0.3], [1.0, 1.0, 0.9], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert configuration(retention) == (3, 3, 1, 1)
    assert configuration(retention.flip(0)) == (1, 1, 1, 1)
    steps = between((16, 16, 12), (16, 8, 2))
    assert (steps[0], steps[-1]) == ((16, 16, 12), (16, 8, 2))
    assert all(a >= b for one, other in itertools.pairwise(steps) for a, b in zip(one, other, strict=True))


def test_retention_falls_from_the_least_significant_on() -> None:
    path = RetentionPath(job_of(*digits(32), epochs=20))
    while sum(path.counts[-1]) > sum(path.counts[0]) / 2:
        path.step()
    for before, after in itertools.pairwise(path.counts):
        assert all(a >= b for a, b in zip(before, after, strict=True))
    retention: Tensor = path.retention.detach()
    assert float(retention[:, :16].mean()) > float(retention[:, -16:].mean()) + 0.05


def test_one_path_serves_every_ratio() -> None:
    job, power = job_of(make_host(), epochs=6), Power()
    first = built(power, job, 0.6)
    path = power.path
    built(power, job, 0.8)
    assert power.path is path
    assert built(Power(), job, 0.6).detail == first.detail
    found = power.build(job, 0.2)
    assert isinstance(found, Unreachable)
    assert "at least" in found.reason
