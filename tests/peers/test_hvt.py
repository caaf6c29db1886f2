"""HVT: pooling by hand, and places that fit a ratio."""

import torch

from patchslim.hosts import open_host
from patchslim.peers import Unreachable
from patchslim.peers.hvt import Hvt, Pool, counts_of, hvt_macs, placements, pooled
from peer_jobs import built, job_of, says
from small import make_host, make_images


def test_pooling_by_hand() -> None:
    x, pool = torch.randn(2, 2 + 9, 3), Pool(9, 3, prefix=2)
    torch.nn.init.normal_(pool.position)
    with torch.no_grad():
        found = pool(x)
    assert found.shape == (2, 2 + 4, 3)
    assert torch.equal(found[:, :2], x[:, :2])
    for place in range(4):
        window = x[:, 2 + 2 * place : 2 + 2 * place + 3]
        torch.testing.assert_close(found[:, 2 + place], window.amax(dim=1) + pool.position[0, place])


def test_equal_patches_pool_into_themselves(kind: str) -> None:
    """Where all patches are alike, a maximum over them changes nothing but how many they are."""
    model = make_host(kind)
    host = open_host(model)
    cell = Hvt().with_pools(job_of(model), [2])
    prefix = host.info.prefix_tokens
    with torch.no_grad():
        x = host.embed(make_images())
        x[:, prefix:] = x[:, prefix : prefix + 1]
        found = cell.module.get_submodule("blocks.1")(cell.module.get_submodule("blocks.0")(x))
        expected = host.blocks[1](host.blocks[0](x))
    assert found.shape[1] == prefix + 7
    torch.testing.assert_close(found, expected[:, : prefix + 7])


def test_places_and_counts() -> None:
    info = open_host(make_host(depth=12)).info
    assert [1] in placements(info)
    assert max(len(places) for places in placements(info)) == 3  # 16, 7, 3, 1 patches: nothing is left to pool
    assert [1, 6] in placements(info)
    assert counts_of(info, [1, 6]) == [7] * 5 + [3] * 7
    assert pooled(196) == 97
    assert all(max(places) < 12 for places in placements(info))


def test_the_dearest_that_fits() -> None:
    job = job_of(make_host())
    cell = built(Hvt(), job, 0.8)
    info = job.host.info
    every = [hvt_macs(info, places) for places in placements(info)]
    assert cell.macs == max(macs for macs in every if macs <= job.budget(0.8))
    assert says(cell.module, make_images()).shape == (3, 7)
    found = Hvt().build(job, 0.1)
    assert isinstance(found, Unreachable)
    assert f"{min(every) / job.budget(1.0):.3f}" in found.reason
