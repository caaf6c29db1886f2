"""EViT against its own code's numbers and by hand."""

import pytest
import torch
from torch import Tensor

from patchslim.hosts import open_host
from patchslim.peers import Unreachable
from patchslim.peers.evit import EViT, choose, counts_of, fuse, kept_by
from peer_jobs import built, golden_host, job_of, says
from small import make_host, make_images

# What youweiliang/evit at 5ca95a7 gives for the golden host, the first two images, and a keep rate of 0.6 with fusing.
GOLDEN = [
    [-0.80974, 1.05446, 0.54703, -0.62317, 1.02835, -0.95779, 1.24918],
    [-1.08838, 1.01012, 0.44489, -0.73182, 1.03794, -0.87388, 1.31451],
]


def test_its_own_code_gives_the_same() -> None:
    cell = EViT().with_rate(job_of(golden_host()), 0.6)
    torch.testing.assert_close(says(cell.module, make_images(2)), torch.tensor(GOLDEN), atol=2e-5, rtol=0)


def test_the_most_attended_stay() -> None:
    attention = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
    kept, others = choose(attention, 5)
    assert torch.equal(kept, attention.topk(5, dim=1).indices)
    assert torch.equal(torch.cat([kept, others], dim=1).sort(dim=1).values, torch.arange(12).expand(5, -1))


def test_the_fused_token_is_the_attention_weighted_sum() -> None:
    patches, attention = torch.randn(2, 6, 3), torch.rand(2, 6)
    others = torch.tensor([[0, 4], [5, 2]])
    expected = torch.stack([sum(patches[i, j] * attention[i, j] for j in others[i].tolist()) for i in range(2)])  # type: ignore[misc]
    torch.testing.assert_close(fuse(patches, attention, others)[:, 0], expected)


def test_the_class_token_chooses() -> None:
    """What a block really keeps are the patches of the class token's row in the host's own attention map."""
    model = make_host()
    host = open_host(model)
    cell = EViT().with_rate(job_of(model), 0.5)
    seen: list[Tensor] = []
    reduce = cell.module.get_submodule("blocks.1.reduce")
    hook = reduce.register_forward_hook(lambda _, given, out: seen.append(given[1]))
    says(cell.module, make_images())
    hook.remove()
    with torch.no_grad():
        x = host.blocks[0](host.embed(make_images()))
        row = host.attention(host.blocks[1], x, 17)[:, :, 0].mean(dim=1)
    torch.testing.assert_close(seen[0], row)


def test_everything_kept_is_the_host() -> None:
    model = make_host("registers")
    cell = EViT().with_rate(job_of(model), 1.0)
    torch.testing.assert_close(says(cell.module, make_images()), says(model, make_images()))


@pytest.mark.parametrize("kind", ["mean", "attention pool", "mean with prefix"])
def test_no_class_token_no_choice(kind: str) -> None:
    found = EViT().build(job_of(make_host(kind)), 0.8)
    assert isinstance(found, Unreachable)
    assert "reads no class token" in found.reason


def test_counts_and_their_least() -> None:
    info = open_host(make_host()).info
    assert kept_by(info, 0.6) == {2: 10, 3: 7, 4: 5}  # a fused token comes to 10 and to 7
    assert counts_of(info, {2: 10, 3: 7, 4: 5}) == [16, 11, 8, 6]
    job = job_of(make_host())
    found = EViT().build(job, 0.1)
    assert isinstance(found, Unreachable)
    least = float(found.reason.split("at least ")[1].split()[0])
    assert built(EViT(), job, least + 0.001).macs <= job.budget(least + 0.001)
