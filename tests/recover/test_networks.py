"""What a slim token is compared with: the host's own rows, averaged over the patches it stands for."""

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host, open_slim
from patchslim.recover.networks import outputs, pair_rows
from patchslim.steps.packed import Packed
from small import WAYS, make_host, make_images, plan_for, plan_of


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_references_are_means_over_sources(way: str) -> None:
    model, images = make_host("registers"), make_images()
    plan, weights = plan_for(model, way)
    slim = ps.apply(model, plan, weights)
    host, student = open_host(model), open_slim(slim)
    prefix, sources = host.info.prefix_tokens, ps.sources(slim, images)
    for layer in range(1, host.info.depth):
        z, x = outputs(host, images, layer).inner, outputs(student, images, layer, tracks=True).inner
        computed, reference = pair_rows(plan, layer, x, z)
        assert computed.shape == reference.shape
        parts = reference[0].split(list(x.lengths)) if isinstance(x, Packed) else reference
        for image, part in enumerate(parts):
            assert torch.equal(part[:prefix], z[image, :prefix])
            for token, row in enumerate(part[prefix:]):
                members = sources[layer - 1][image, token].nonzero()[:, 0]
                assert torch.allclose(row, z[image, prefix + members].mean(dim=0), atol=1e-5)


@torch.no_grad()
def test_with_everything_kept_both_sides_are_equal() -> None:
    model, images = make_host(), make_images()
    plan = plan_of(model, [list(range(16))] * 4)
    student = open_slim(ps.apply(model, plan))
    z, x = outputs(open_host(model), images, 1).inner, outputs(student, images, 1, tracks=True).inner
    computed, reference = pair_rows(plan, 1, x, z)
    assert torch.allclose(computed, reference, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_knowing_where_tokens_come_from_changes_no_answer(way: str) -> None:
    model, images = make_host("registers"), make_images()
    student = open_slim(ps.apply(model, *plan_for(model, way)))
    plain, tracked = (outputs(student, images, tracks=tracks) for tracks in (False, True))
    assert torch.equal(plain.logits, tracked.logits)
    assert torch.equal(plain.features, tracked.features)
