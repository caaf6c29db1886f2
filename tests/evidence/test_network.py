"""The half-slimmed network: what a block's error compares, so that nothing removed is no error."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from patchslim.evidence.network import Network, Partial, relative_error
from patchslim.hosts import Host, open_host
from small import make_host, make_images

PATCHES, DEPTH = 16, 4
ORDER = torch.randperm(PATCHES, generator=torch.Generator().manual_seed(0)).tolist()


def features_of(host: Host) -> list[Tensor]:
    """Z_0 … Z_L by running the host."""
    found = [host.embed(make_images(3))]
    for block in host.blocks:
        found.append(block(found[-1]))
    return found


def shaken(block: nn.Module) -> nn.Module:
    """A copy with other weights, as after tuning."""
    torch.manual_seed(5)
    found = copy.deepcopy(block)
    for parameter in found.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return found


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("carry", [False, True])
@torch.no_grad()
def test_where_nothing_is_removed_there_is_no_error_and_else_there_is(kind: str, carry: bool, tuned: bool) -> None:
    """Also when the next block is tuned: it gives other rows than the host's then, and those are compared."""
    host: Any = open_host(make_host(kind).requires_grad_(False))
    network, z = Network(host, carry), features_of(host)
    counts = {4: 3 if host.info.reads_patches else 0, 3: 5, 2: 9}
    for layer in range(DEPTH, 0, -1):
        if layer == DEPTH and not host.info.reads_patches:
            continue  # it computes no patch anyway
        above = {block: count for block, count in counts.items() if block > layer}
        partial = Partial(ORDER, above, tuned={block: shaken(host.blocks[block - 1]) for block in above if tuned})
        reference = network.reference(partial, layer, z[layer], z[min(layer + 1, DEPTH)])
        errors = {}
        for count in (PATCHES, max(1, above.get(layer + 1, 0))):
            x = network.run(host.blocks[layer - 1], network.sort(z[layer - 1], ORDER), count)
            errors[count] = relative_error(network.next_output(partial, layer, x), reference)
        assert float(errors.pop(PATCHES).max()) < 1e-9
        assert all(float(error.min()) > 1e-6 for error in errors.values())


def test_a_relative_error_is_taken_image_by_image() -> None:
    output, reference = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    expected = [float((a - b).norm() ** 2 / b.norm() ** 2) for a, b in zip(output, reference, strict=True)]
    assert relative_error(output, reference).tolist() == pytest.approx(expected, rel=1e-5)
    assert relative_error(reference, torch.zeros_like(reference)).isfinite().all()
