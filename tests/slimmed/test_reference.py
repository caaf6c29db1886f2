"""The masked reference itself: against the host's blocks, and a hand-made average."""

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.plan import make_plan, static_plan
from patchslim.slimmed.reference import _average, _block
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice
from patchslim.steps.tome import ToMe
from small import make_host, make_images


@torch.no_grad()
def test_masked_rows_are_those_of_the_block_without_them(kind: str) -> None:
    """A patch that nobody may attend to is as if it were not there; one of size 2 is as if it were there twice."""
    host = open_host(make_host(kind))
    prefix, x = host.info.prefix_tokens, host.embed(make_images(2))
    alive = [0, 3, 8, 9, 15]
    rows = [*range(prefix), *(prefix + patch for patch in alive)]
    sizes = [1.0] * 16
    torch.testing.assert_close(_block(host, 2, x, x, alive, sizes)[:, rows], host.blocks[1](x[:, rows]))
    sizes[8] = 2.0
    twice = host.blocks[1](x[:, [*rows, prefix + 8]])[:, : len(rows)]
    torch.testing.assert_close(_block(host, 2, x, x, alive, sizes)[:, rows], twice)


def test_an_average_is_weighted_and_keeps_the_length() -> None:
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    found = _average({4: one, 7: other}, {4: 1.0, 7: 3.0})
    mean = torch.tensor([[0.75, 0.75]])
    torch.testing.assert_close(found, mean / mean.norm() * (0.25 * 3 + 0.75 * 1))


@torch.no_grad()
def test_eq_2_by_hand() -> None:
    """Two blocks: queries from the kept patches, keys and values from all that came in."""
    model, images = make_host(depth=2), make_images(2)
    plan = static_plan(ps.inspect(model), [[2, 5, 11], [5]])
    host = open_host(model)
    z = host.embed(images)
    first = host.blocks[0](z)[:, [0, 3, 6, 12]]
    second = host.blocks[1](first)[:, [0, 2]]
    torch.testing.assert_close(ps.masked_logits(model, plan, images), host.logits(second))


def test_what_it_can_not_say() -> None:
    model = make_host()
    plan = make_plan(ps.inspect(model), [Keep(), ToMe(r=3), Keep(), Slice(n=0)])
    with pytest.raises(ps.PlanError, match=r"can't be run masked: the step 'tome' has no masked reference\.$"):
        ps.masked_logits(model, plan, make_images(1))
    with pytest.raises(ps.PlanError, match="does not fit"):
        ps.masked_logits(make_host(depth=5), plan, make_images(1))
