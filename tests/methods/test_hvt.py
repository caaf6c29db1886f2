"""HVT: pooling by hand, and places that fit a ratio."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.errors import BudgetError
from patchslim.hosts import open_host, open_slim
from patchslim.methods import HVT
from patchslim.methods.hvt import placements
from patchslim.slimmed import states_of
from patchslim.steps.pool import Pool, PoolRunner, pooled
from patchslim.steps.tokens import Tokens
from small import make_host, make_images
from tasks import budget, by_steps, made, says, task_of


class Idle(nn.Module):
    """A block that changes nothing."""

    math = property(lambda self: self)

    def run(self, block: nn.Module, x: torch.Tensor, n: int) -> torch.Tensor:
        return x


def pools(model: nn.Module, after: list[int]) -> nn.Module:
    """HVT with poolings after these blocks."""
    return by_steps(model, HVT().steps(ps.inspect(model), after))


def test_pooling_by_hand() -> None:
    info = replace(ps.inspect(make_host()), width=3, prefix_tokens=2)
    x, pool = torch.randn(2, 2 + 9, 3), PoolRunner(Pool(), info, 1, 9)
    torch.nn.init.normal_(pool.position)
    with torch.no_grad():
        found = pool(Tokens(x), Idle()).x
    assert found.shape == (2, 2 + 4, 3)
    assert torch.equal(found[:, :2], x[:, :2])
    for place in range(4):
        window = x[:, 2 + 2 * place : 2 + 2 * place + 3]
        torch.testing.assert_close(found[:, 2 + place], window.amax(dim=1) + pool.position[0, place])


def test_equal_patches_pool_into_themselves(kind: str) -> None:
    """Where all patches are alike, a maximum over them changes nothing but how many they are."""
    model = make_host(kind)
    host, slim = open_host(model), open_slim(pools(model, [2]))
    prefix = host.info.prefix_tokens
    with torch.no_grad():
        x = host.embed(make_images())
        x[:, prefix:] = x[:, prefix : prefix + 1]
        found = states_of(slim, x)[1].x
        expected = host.blocks[1](host.blocks[0](x))
    assert found.shape[1] == prefix + 7
    torch.testing.assert_close(found, expected[:, : prefix + 7])


def test_places_and_counts() -> None:
    info = open_host(make_host(depth=12)).info
    assert [1] in placements(info)
    assert max(len(places) for places in placements(info)) == 3  # 16, 7, 3, 1 patches: nothing is left to pool
    assert [1, 6] in placements(info)
    assert pools(make_host(depth=12), [1, 6]).plan.entering == [16] + [7] * 5 + [3] * 6  # type: ignore[union-attr]
    assert pooled(196) == 97
    assert all(max(places) < 12 for places in placements(info))


def test_the_dearest_that_fits() -> None:
    model = make_host()
    task = task_of(model, ratio=0.8)
    found, slim = made(HVT(), task)
    every = [ps.count_macs(pools(model, places)) for places in placements(task.info)]
    assert ps.count_macs(slim) == max(macs for macs in every if macs <= budget(task, 0.8))
    assert ps.count_macs(pools(model, found.detail["pools_after"])) == ps.count_macs(slim)
    assert says(slim, make_images()).shape == (3, 7)
    least = min(every) / ps.count_macs(model)
    with pytest.raises(BudgetError, match=f"4 poolings takes at least {least:.3f} of VisionTransformer's MACs"):
        made(HVT(), task_of(model, ratio=0.1))
