"""SCOP: knockoffs that can be swapped with the originals, and patches that beat theirs."""

import torch

from patchslim.hosts import open_host
from patchslim.methods import SCOP
from patchslim.methods.scop import Knockoffs, counts_of, importance, kept_by, learn_shares, mixed_run
from patchslim.plan import make_plan
from patchslim.search import Target
from small import make_host, make_images
from tasks import made, task_of


def test_knockoffs_may_be_swapped_for_the_originals() -> None:
    """Second-order exchangeability: swapping any patches with their knockoffs leaves the covariance as it was."""
    torch.manual_seed(0)
    mixing = torch.randn(5, 5) + 2 * torch.eye(5)
    features = torch.randn(400, 5, 50).transpose(1, 2) @ mixing.T + torch.arange(5.0)
    features = features.transpose(1, 2) * torch.linspace(0.5, 2, 50)
    knockoffs = Knockoffs(features)
    copies = knockoffs.draw(features)
    both = torch.cat([features, copies], dim=1).double()  # (400, 10, 50)
    both = ((both - both.mean(dim=0)) / knockoffs.scale).transpose(1, 2).flatten(0, 1)
    covariance = both.T @ both / len(both)
    swapped = torch.tensor([0, 6, 2, 8, 4, 5, 1, 7, 3, 9])  # patches 1 and 3 with theirs
    scale = float(covariance.abs().max())
    torch.testing.assert_close(covariance[swapped][:, swapped], covariance, atol=0.03 * scale, rtol=0)
    assert float((features - copies).abs().mean()) > 0.1  # and they are others


def test_all_real_is_the_host(kind: str) -> None:
    host = open_host(make_host(kind))
    embedded = host.embed(make_images(8))[:, host.info.prefix_tokens :].detach()
    with torch.no_grad():
        found = mixed_run(host, make_images(), Knockoffs(embedded), torch.ones(4, 16)).logits
        torch.testing.assert_close(found, host.model(make_images()), atol=1e-5, rtol=1e-4)


def test_patches_that_say_something_beat_their_knockoffs() -> None:
    """A patch that never changes is as good as its knockoff; one that does is not."""
    images = make_images(32)
    images.unflatten(2, (4, 8)).unflatten(4, (4, 8))[:, :, :2] = 0.0  # the upper patches
    share = learn_shares(task_of(make_host(), images), 8)
    scores = importance(share)[:3]  # nothing is read of the last block's patches
    assert float(scores[:, 8:].mean()) > float(scores[:, :8].mean()) + 0.05
    assert float(share.min()) >= 0.0
    assert float(share.max()) <= 1.0


def test_each_block_keeps_the_best_that_reach_it() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.7], [0.9, 0.1, 0.5, 0.6], [0.0, 1.0, 0.2, 0.1]])
    assert kept_by(scores, [3, 2, 1]) == [[1, 3, 2], [3, 2], [2]]


def test_one_rate_in_every_block() -> None:
    info = open_host(make_host()).info
    assert counts_of(info, 0.5) == [8, 4, 2, 1]
    for only, last in ((False, 1), (True, 0)):
        plan = make_plan(info, SCOP(readout_only=only).steps(info, 0.5), range(16))
        assert plan.counts == (8, 4, 2, last)
    task, scop = task_of(make_host()), SCOP(epochs=2)
    shares = []
    for ratio in (0.7, 0.5):
        found, _ = made(scop, task.at(Target(macs=ratio)))
        assert found.plan is not None
        assert list(found.plan.counts) == counts_of(info, found.detail["keep_rate"])
        shares.append(task.known["scop", 2])
    assert shares[0] is shares[1]  # learnt once for all ratios
