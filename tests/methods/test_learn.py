"""Networks in which tokens count by a weight: at 0 as if they were not there, with the right derivative there."""

import torch
from torch import Tensor

from patchslim.hosts import open_host
from patchslim.kernels.attention import plain
from patchslim.methods.learn import outputs_under, weighted
from small import make_host, make_images


def test_keys_of_no_weight_are_not_there() -> None:
    """Every row but those of tokens that are gone is that of attention to the others."""
    q, k, v = torch.randn(3, 2, 3, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    there = [0, 2, 5]
    weight = torch.zeros(2, 6).index_fill(1, torch.tensor(there), 1.0)
    found = weighted(weight)(q, k, v, scale=0.5, dropout=0.0, fused=True)
    expected = plain(q[:, :, there], k[:, :, there], v[:, :, there], scale=0.5, dropout=0.0, fused=False)
    torch.testing.assert_close(found[:, :, there], expected)
    assert bool(found.isfinite().all())


def test_a_key_counts_by_its_weight() -> None:
    """Two copies of a key that count a half each are one key."""
    q, k, v = torch.randn(3, 1, 2, 4, 4, generator=torch.Generator().manual_seed(1)).unbind()
    twice = [torch.cat([part, part[:, :, 2:3]], dim=2) for part in (k, v)]
    weight = torch.tensor([[1.0, 1.0, 0.5, 1.0, 0.5]])
    asked = torch.cat([q[:, :, :2], q[:, :, :3]], dim=2)  # a row for each key; a token sees itself in full
    found = weighted(weight)(asked, *twice, scale=0.5, dropout=0.0, fused=True)
    torch.testing.assert_close(found[:, :, :2], plain(q, k, v, scale=0.5, dropout=0.0, fused=False)[:, :, :2])


def test_what_the_head_reads_of_weights(kind: str) -> None:
    """Weights of 0 leave patches out, and derivatives at 0 are the slopes there."""
    host = open_host(make_host(kind).double())
    prefix, gone = host.info.prefix_tokens, [1, 4, 6]
    with torch.no_grad():
        tokens = host.embed(make_images(2).double())
    weight = torch.ones(2, tokens.shape[1], dtype=torch.float64)
    weight[:, [prefix + patch for patch in gone]] = 0.0
    there = [token for token in range(tokens.shape[1]) if token - prefix not in gone]
    wanted = torch.randn(host.features(tokens).shape[1], dtype=torch.float64)

    def read(weights: Tensor) -> Tensor:
        found: Tensor = outputs_under(host, tokens, weights).features @ wanted
        return found

    torch.testing.assert_close(read(weight), host.features(tokens[:, there]) @ wanted)
    learning = weight.clone().requires_grad_()
    read(learning).sum().backward()
    if not host.info.reads_patches:
        return  # what is read of the prefix depends on no weight
    assert learning.grad is not None
    for token in range(prefix, tokens.shape[1]):
        up = weight.clone()
        up[:, token] += 1e-7
        slope = (read(up) - read(weight)).detach() / 1e-7
        assert torch.allclose(learning.grad[:, token], slope, atol=1e-5), token


def test_an_image_without_any_patch_is_no_trouble() -> None:
    for kind in ("mean", "attention pool"):
        host = open_host(make_host(kind))
        tokens = host.embed(make_images(2)).detach()
        weight = torch.zeros(2, 16, requires_grad=True)
        found = outputs_under(host, tokens, weight)
        found.logits.sum().backward()
        assert bool(found.logits.isfinite().all())
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all())
