"""Taylor importance: the effect of removals against loops and brute force on small random derivatives."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.evidence.taylor import Removal, probes, removal_effect


def dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [1, 4])
def test_a_length_along_probes_is_the_whole_length_over_the_features_on_average(count: int) -> None:
    features, vector = torch.randn(2, 12, generator=dice(1))
    found = probes(features.expand(20_000, -1), count, dice(2))
    assert found.shape == (20_000, 12, count)
    along = torch.einsum("f,bfk->bk", vector, found).square().sum(dim=1)
    expected = float(vector.square().sum() / features.square().sum())
    assert float(along.mean()) == pytest.approx(expected, rel=0.05)  # five standard deviations of the noisier case
    moment = torch.einsum("bfk,bgk->fg", found, found) / 20_000 * features.square().sum()
    assert torch.allclose(moment, torch.eye(12), atol=0.08)


def test_probes_are_scaled_by_each_images_own_features_and_seeded() -> None:
    features = torch.randn(3, 12, generator=dice(1))
    found = probes(features, 4, dice(2))
    larger = probes(features * torch.tensor([1.0, 2.0, 10.0])[:, None], 4, dice(2))
    assert torch.allclose(found, larger * torch.tensor([1.0, 2.0, 10.0])[:, None, None])
    assert torch.equal(found, probes(features, 4, dice(2)))
    assert not torch.equal(found, probes(features, 4, dice(3)))
    assert bool(torch.isfinite(probes(torch.zeros(2, 12), 4, dice(2))).all())


@settings(max_examples=30, deadline=None)
@given(images=st.integers(1, 3), blocks=st.integers(1, 5), patches=st.integers(1, 6), seed=st.integers(0, 999))
def test_removal_effect_is_the_loop(images: int, blocks: int, patches: int, seed: int) -> None:
    jacobian = torch.randn(images, blocks, patches, 3, generator=dice(seed), dtype=torch.float64)
    found = removal_effect(jacobian)
    assert found.shape == (images, blocks, patches)
    for image in range(images):
        for block in range(blocks):
            for patch in range(patches):
                total = [0.0, 0.0, 0.0]
                for later in range(block, blocks):
                    total = [total[k] + float(jacobian[image, later, patch, k]) for k in range(3)]
                expected = sum(part**2 for part in total)
                assert float(found[image, block, patch]) == pytest.approx(expected, rel=1e-9)


def change(rows: Tensor, residual: Tensor, block: int, patch: int, trust: float) -> float:
    """‖r − J_u‖² − ‖r‖² when a patch leaves a block (from 1), the cross term counted by `trust`."""
    own = float(rows[block - 1, patch].square().sum())
    together = float((residual - rows[block - 1, patch]).square().sum() - residual.square().sum())
    return trust * together + (1 - trust) * own


@settings(max_examples=60, deadline=None)
@given(data=st.data(), blocks=st.integers(1, 4), patches=st.integers(1, 6), seed=st.integers(0, 9999))
def test_the_patch_chosen_changes_the_readout_least_per_mac_and_slopes_follow(
    data: st.DataObject, blocks: int, patches: int, seed: int
) -> None:
    generator = dice(seed)
    jacobian = torch.randn(blocks, patches, 5, generator=generator, dtype=torch.float64)
    residual = torch.randn(5, generator=generator, dtype=torch.float64)
    exits = torch.tensor(data.draw(st.lists(st.integers(0, blocks), min_size=patches, max_size=patches)))
    trust = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    some = st.one_of(st.just(0.0), st.integers(1, 50).map(float))
    removal = Removal(jacobian, residual.clone(), trust)
    for _ in range(4):
        saved = [0.0, *data.draw(st.lists(some, min_size=blocks, max_size=blocks))]
        allowed = {
            patch: change(jacobian, residual, last, patch, trust) / saved[last]
            for patch, last in enumerate(exits.tolist())
            if last > 0 and saved[last] > 0
        }
        if not allowed:
            return
        patch = removal.best(exits, torch.tensor(saved))
        assert patch in allowed
        assert allowed[patch] == pytest.approx(min(allowed.values()), abs=1e-9)
        block = int(exits[patch])
        removal.remove(patch, block)
        residual = residual - jacobian[block - 1, patch]
        exits[patch] -= 1
        assert torch.allclose(removal.slope, jacobian.flatten(0, 1) @ residual, atol=1e-9)
        assert torch.allclose(removal.slope, Removal(jacobian, residual).slope, atol=1e-9)


def leaving(rows: list[list[float]], count: int, saved: float = 1.0) -> list[int]:
    """The first patches to leave a network of one block."""
    removal = Removal(torch.tensor([rows]), torch.zeros(len(rows[0])))
    exits, found = torch.ones(len(rows), dtype=torch.long), []
    for _ in range(count):
        patch = removal.best(exits, torch.tensor([0.0, saved]))
        removal.remove(patch, 1)
        exits[patch] -= 1
        found.append(patch)
    return found


@pytest.mark.parametrize("saved", [1.0, 1e9])
def test_patches_that_say_the_same_do_not_all_go_and_effects_that_cancel_do(saved: float) -> None:
    same: list[Any] = [[1.0, 0.0], [1.1, 0.0], [0.0, 1.5]]  # alone, the first two would be least
    assert leaving(same, 2, saved) == [0, 2]
    opposite: list[Any] = [[1.0, 0.0], [-1.5, 0.0], [0.0, 1.1]]
    assert leaving(opposite, 2, saved) == [0, 1]


def test_a_patch_that_saves_more_may_change_more() -> None:
    jacobian = torch.tensor([[[3.0], [9.0]], [[9.0], [1.0]]])  # (blocks, patches, 1)
    removal = Removal(jacobian, torch.zeros(1))
    exits = torch.tensor([1, 2])
    assert removal.best(exits, torch.tensor([0.0, 1.0, 1.0])) == 1
    assert removal.best(exits, torch.tensor([0.0, 10.0, 1.0])) == 0
    assert removal.best(exits, torch.tensor([0.0, 0.0, 1.0])) == 1
