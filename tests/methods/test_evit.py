"""EViT against its own code's numbers and by hand."""

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.errors import BudgetError
from patchslim.hosts import open_host, open_slim
from patchslim.methods import EViT
from patchslim.slimmed import states_of
from patchslim.steps.evit import choose, fuse
from small import make_host, make_images
from tasks import budget, by_steps, golden_host, made, says, task_of

# What youweiliang/evit at 5ca95a7 gives for the golden host, the first two images, and a keep rate of 0.6 with fusing.
GOLDEN = [
    [-0.80974, 1.05446, 0.54703, -0.62317, 1.02835, -0.95779, 1.24918],
    [-1.08838, 1.01012, 0.44489, -0.73182, 1.03794, -0.87388, 1.31451],
]


def fused(model: nn.Module, rate: float) -> nn.Module:
    """EViT with a keep rate."""
    return by_steps(model, EViT().steps(ps.inspect(model), rate))


def test_its_own_code_gives_the_same() -> None:
    slim = fused(golden_host(), 0.6)
    torch.testing.assert_close(says(slim, make_images(2)), torch.tensor(GOLDEN), atol=2e-5, rtol=0)


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
    model, images = make_host(), make_images()
    host, slim = open_host(model), open_slim(fused(model, 0.5))
    with torch.no_grad():
        z = host.blocks[0](host.embed(images))
        row = host.attention(host.blocks[1], z, 17)[:, :, 0].mean(dim=1)[:, 1:]
        state = states_of(slim, slim.embed(images), tracks=True)[1]
    rows = state.rows(1)  # 8 patches, most attended first, and the fused token
    assert torch.equal(rows[:, :8].float().argmax(dim=2), row.topk(8, dim=1).indices)
    assert rows.sum(dim=2).tolist() == [[1] * 8 + [8]] * 3


def test_everything_kept_is_the_host() -> None:
    model = make_host("registers")
    torch.testing.assert_close(says(fused(model, 1.0), make_images()), says(model, make_images()))


@pytest.mark.parametrize("kind", ["mean", "attention pool", "mean with prefix"])
def test_no_class_token_no_choice(kind: str) -> None:
    with pytest.raises(BudgetError, match=r"goes by the class token's attention, and .* reads no class token"):
        made(EViT(), task_of(make_host(kind)))


def test_counts_and_their_least() -> None:
    """10, 7 and 5 patches, each time with a fused token."""
    assert fused(make_host(), 0.6).plan.counts == (16, 11, 8, 6)  # type: ignore[union-attr]
    with pytest.raises(BudgetError) as refused:
        made(EViT(), task_of(make_host(), ratio=0.1))
    least = float(str(refused.value).split("at least ")[1].split()[0])
    task = task_of(make_host(), ratio=least + 0.001)
    assert ps.count_macs(made(EViT(), task)[1]) <= budget(task, least + 0.001)
