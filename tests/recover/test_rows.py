"""What a slim token is compared with: the host's own rows, averaged over the patches it stands for."""

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host, open_slim
from patchslim.recover.outputs import tracking
from patchslim.recover.rows import Rows
from patchslim.slim.packed import Packed
from small import WAYS, make_host, make_images, plan_for, plan_of


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_references_are_means_over_sources(way: str) -> None:
    model, images = make_host("registers"), make_images()
    plan, weights = plan_for(model, way)
    slim = ps.apply(model, plan, weights)
    host, student, rows = open_host(model), open_slim(slim, slim.host_info), Rows(plan, torch.device("cpu"))
    prefix, sources = host.info.prefix_tokens, slim.sources(images)
    z, x = host.embed(images), student.embed(images)
    with tracking(student):
        for layer in range(1, host.info.depth):
            z, x = host.blocks[layer - 1](z), student.blocks[layer - 1](x)
            computed, reference = rows.pair(layer, x, z)
            assert computed.shape == reference.shape
            places = x.lengths if isinstance(x, Packed) else [computed.shape[1]] * len(images)
            parts = reference[0].split(places) if isinstance(x, Packed) else reference
            for image, part in enumerate(parts):
                assert torch.equal(part[:prefix], z[image, :prefix])
                for token, row in enumerate(part[prefix:]):
                    members = sources[layer - 1][image, token].nonzero()[:, 0]
                    assert torch.allclose(row, z[image, prefix + members].mean(dim=0), atol=1e-5)


@torch.no_grad()
def test_with_everything_kept_both_sides_are_equal() -> None:
    model, images = make_host(), make_images()
    plan = plan_of(model, [list(range(16))] * 4)
    slim = ps.apply(model, plan)
    host, student = open_host(model), open_slim(slim, slim.host_info)
    z = host.blocks[0](host.embed(images))
    computed, reference = Rows(plan, torch.device("cpu")).pair(1, student.blocks[0](student.embed(images)), z)
    assert torch.allclose(computed, reference, atol=1e-5)
