"""Plans by which every image chooses for itself, and merging, against the slow masked reference."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.plan import DistanceSpec, SlimPlan, build_plan
from patchslim.slim import SlimModel, packed_attention
from patchslim.slim.chooser import is_chooser_key
from small import COUNTS, KINDS, make_host, make_images, merge_plan, per_image_plan, relative

CLOSE = 1e-5
WAYS: dict[str, dict[str, Any]] = {
    "matched merge": {"select": "matched", "removed": "merge"},
    "matched drop": {"select": "matched", "removed": "drop"},
    "matched merge, block 2 drops": {"select": "matched", "removed": "merge", "drops": [2]},
    "matched merge, distance": {"select": "matched", "removed": "merge", "channels": 3},
    "matched drop, distance": {"select": "matched", "removed": "drop", "channels": 5},
    "predicted drop": {"select": "predicted", "removed": "drop"},
    "predicted merge": {"select": "predicted", "removed": "merge"},
    "predicted merge, context": {"select": "predicted", "removed": "merge", "kind": "context"},
    "predicted merge, pool": {"select": "predicted", "removed": "merge", "kind": "pool"},
    "predicted merge, block 1 drops": {"select": "predicted", "removed": "merge", "drops": [1]},
    "predicted drop, pool": {"select": "predicted", "removed": "drop", "kind": "pool"},
    "predicted drop, context": {"select": "predicted", "removed": "drop", "kind": "context"},
    "threshold": {"select": "predicted", "removed": "drop", "thresholds": [-3.0, -1.0, 0.0, 0.0]},
    "threshold, pool": {"select": "predicted", "removed": "drop", "kind": "pool", "thresholds": [-9.0, -1.0, 0.5, 0.0]},
    "threshold, context": {"select": "predicted", "kind": "context", "thresholds": [-3.0, -1.0, 0.0, 0.0]},
}
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def made(kind: str, way: str, **more: Any) -> tuple[nn.Module, SlimPlan, dict[str, Tensor], Any]:
    model = make_host(kind)
    plan, weights = per_image_plan(model, **(WAYS[way] | more))
    return model, plan, weights, ps.apply(model, plan, weights)


@pytest.mark.parametrize("way", WAYS)
def test_equals_the_masked_reference(kind: str, way: str) -> None:
    model, plan, weights, slim = made(kind, way)
    images = make_images(3)
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images, weights)) < CLOSE


def test_static_merge_equals_the_masked_reference(kind: str) -> None:
    model = make_host(kind)
    plan = merge_plan(model)
    assert plan.into is not None
    assert max(plan.into) >= 0
    images = make_images(3)
    with torch.no_grad():
        assert relative(ps.apply(model, plan)(images), ps.masked_logits(model, plan, images)) < CLOSE


def in_halves(counts: list[int]) -> list[int]:
    """The same counts, raised where a block would keep less than half."""
    left, found = 16, []
    for count in counts:
        left = max(count, left // 2)
        found.append(left)
    return found


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 16), min_size=4, max_size=4).map(lambda n: sorted(n, reverse=True)),
    way=st.sampled_from(["predicted drop", "predicted merge", "predicted merge, context", "threshold, context"]),
    seed=st.integers(0, 5),
)
@example(counts=[16, 16, 11, 11], way="predicted merge", seed=0)
def test_any_counts_equal_the_masked_reference(counts: list[int], way: str, seed: int) -> None:
    # A G whose shares differ so much that some are 0 in fp32 leaves the order of those open.
    more: dict[str, Any] = {"counts": in_halves(counts), "spread": 0.5} if "merge" in way else {"counts": counts}
    model, plan, weights, slim = made("mean with prefix", way, **more)
    images = make_images(2, seed=seed)
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images, weights)) < CLOSE


@pytest.mark.parametrize("way", WAYS)
def test_everything_kept_gives_the_hosts_logits(kind: str, way: str) -> None:
    full = [16] * 4
    model = make_host(kind)
    fields = WAYS[way] | {"counts": full}
    if "thresholds" in fields:
        fields["thresholds"] = [-1e30] * 4
    plan, weights = per_image_plan(model, **fields)
    images = make_images(3)
    with torch.no_grad():
        assert relative(ps.apply(model, plan, weights)(images), model(images)) < CLOSE


def test_static_merge_with_everything_kept_gives_the_hosts_logits(kind: str) -> None:
    model = make_host(kind)
    plan = merge_plan(model, [list(range(16))] * 4)
    images = make_images(2)
    with torch.no_grad():
        assert relative(ps.apply(model, plan)(images), model(images)) < CLOSE


@pytest.mark.parametrize("way", ["threshold", "threshold, pool", "threshold, context"])
@pytest.mark.parametrize("batch", [1, 7])
def test_packed_equals_one_at_a_time(kind: str, way: str, batch: int) -> None:
    _, _, _, slim = made(kind, way)
    images = make_images(batch)
    with torch.no_grad():
        together, alone = slim(images), torch.cat([slim(image) for image in images.split(1)])
    assert relative(together, alone) < CLOSE


def test_images_keep_different_numbers_and_macs_follow() -> None:
    _, plan, _, slim = made("class", "threshold")
    images = make_images(16)
    kept = torch.stack([rows.any(dim=2).sum(dim=1) for rows in slim.sources(images)], dim=1)  # (images, blocks)
    assert len(set(kept[:, 1].tolist())) > 3
    assert bool((kept[:, 1:] <= kept[:, :-1]).all())
    macs = slim.image_macs(images).tolist()
    assert len(set(macs)) > 3
    for row, found in zip(kept.tolist(), macs, strict=True):
        assert found == ps.macs.macs_under(ps.inspect(make_host("class")), plan, row)


def test_an_image_that_would_keep_nothing_keeps_its_best_patch(kind: str) -> None:
    model, plan, weights, slim = made(kind, "threshold", thresholds=[1e9] * 4)
    images = make_images(3)
    least = 1 if kind in ("class", "registers", "distilled", "pre-norm qk-norm") else COUNTS[-1]
    for rows in slim.sources(images)[:-1]:
        assert rows.any(dim=2).sum(dim=1).tolist() == [least] * 3
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images, weights)) < CLOSE


def test_the_fallback_says_so_once_and_padding_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, _, slim = made("class", "threshold")
    images = make_images(4)
    packed_attention.say_once.cache_clear()
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        one_by_one = slim(images)
        slim(images)
    assert len([word for word in said if "packed attention" in str(word.message)]) == 1

    def padded(self: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, fused: bool) -> Tensor:
        return self._padded(q, k, v, scale)  # type: ignore[no-any-return]

    monkeypatch.setattr(packed_attention.PackedMix, "_one_by_one", padded)
    with torch.no_grad():
        assert relative(slim(images), one_by_one) < CLOSE


@pytest.mark.parametrize("way", [way for way in WAYS if "threshold" not in way])
def test_compiles_without_graph_breaks(way: str) -> None:
    _, _, _, slim = made("class", way)
    images = make_images(2)
    compiled: Any = torch.compile(slim, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert relative(compiled(images), slim(images)) < CLOSE


def test_static_merge_compiles_without_graph_breaks() -> None:
    model = make_host()
    slim = ps.apply(model, merge_plan(model))
    images = make_images(2)
    with torch.no_grad():
        compiled: Any = torch.compile(slim, fullgraph=True, backend="eager")
        assert relative(compiled(images), slim(images)) < CLOSE


@pytest.mark.parametrize("way", ["matched merge", "matched merge, distance", "predicted merge", "threshold"])
def test_gradients_reach_every_weight(way: str) -> None:
    _, _, _, slim = made("class", way)
    slim(make_images(2)).square().sum().backward()
    for name, parameter in slim.named_parameters():
        chosen = is_chooser_key(name)  # which patches stay is not differentiable
        assert (parameter.grad is None) == chosen, name


@pytest.mark.parametrize("way", WAYS)
def test_sources_are_disjoint_and_shrink(kind: str, way: str) -> None:
    _, plan, _, slim = made(kind, way)
    merges = plan.removed == "merge" and not plan.drops
    for block, rows in enumerate(slim.sources(make_images(3)), start=1):
        assert rows.dtype == torch.bool
        assert rows.shape[::2] == (3, 16)
        assert int(rows.sum(dim=1).max()) <= 1 if rows.shape[1] else True
        covered = rows.any(dim=1).sum(dim=1)
        if plan.mode == "top-k":
            assert rows.shape[1] == plan.counts[block - 1]
            assert bool(rows.any(dim=2).all())
            if merges and plan.counts[block - 1]:
                assert covered.tolist() == [16] * 3


def test_sources_of_static_plans_follow_the_plan() -> None:
    model = make_host()
    plan = merge_plan(model)
    slim: Any = ps.apply(model, plan)
    for kept, rows in zip(plan.kept, slim.sources(make_images(2)), strict=True):
        own = [patch for patch in plan.order if patch in kept]
        assert rows.shape == (2, len(kept), 16)
        assert all(bool(rows[0, place, patch]) for place, patch in enumerate(own))
    first = slim.sources(make_images(1))[0][0]
    order = [patch for patch in plan.order if patch in plan.kept[0]]
    assert plan.into is not None
    for patch, target in enumerate(plan.into):
        if patch not in plan.kept[0]:
            holders = [order[row] for row in first[:, patch].nonzero()[:, 0].tolist()]
            assert holders == ([target] if target >= 0 else [])


def test_sources_stay_the_same_while_nothing_is_removed() -> None:
    model = make_host("mean")
    plan, weights = per_image_plan(model, "predicted", counts=[4, 4, 4, 4])
    slim: Any = ps.apply(model, plan, weights)
    images = make_images(1)
    rows = slim.sources(images)
    assert all(torch.equal(rows[0], later) for later in rows[1:])
    assert rows[0].any(dim=1).sum().item() == 4


@pytest.mark.parametrize("way", ["matched merge", "matched merge, distance", "threshold"])
def test_copies_and_pickles(way: str) -> None:
    model, _, _, slim = made("class", way)
    images = make_images(2)
    for twin in (copy.deepcopy(slim), pickle.loads(pickle.dumps(slim))):
        assert isinstance(twin, SlimModel)
        assert isinstance(twin, type(model))
        with torch.no_grad():
            assert torch.equal(twin(images), slim(images))
        assert twin.plan == slim.plan
        assert torch.equal(twin.sources(images)[0], slim.sources(images)[0])


def test_weights_load_back_into_the_host() -> None:
    model, _, _, slim = made("class", "matched merge")
    other = make_host("class", seed=9)
    other.load_state_dict(slim.state_dict())
    images = make_images(2)
    with torch.no_grad():
        assert torch.equal(other(images), model(images))


def test_a_predictor_of_another_plan_or_model_is_refused() -> None:
    model, plan, weights, _ = made("class", "predicted drop")
    other = {name: tensor + 1 for name, tensor in weights.items()}
    with pytest.raises(ps.PlanError, match="another model or plan"):
        ps.apply(model, plan, other)
    with pytest.raises(ps.PlanError, match="give the weights of the predictor"):
        ps.apply(model, plan)
    matched, _ = per_image_plan(model, "matched", "merge")
    with pytest.raises(ps.PlanError, match="plan uses none"):
        ps.apply(model, matched, weights)
    wider = make_host("class", embed_dim=48)
    with pytest.raises(ps.PlanError, match="does not fit"):
        ps.apply(wider, plan, weights)


def test_without_its_distances_a_plan_goes_by_keys() -> None:
    model, plan, weights, slim = made("class", "matched merge, distance")
    with pytest.warns(UserWarning, match="matched by keys"):
        other = ps.apply(model, plan)
    assert other.plan == plan.by_keys()
    assert slim.plan == plan
    images = make_images(3)
    with torch.no_grad():
        assert torch.equal(other(images), made("class", "matched merge")[3](images))
        assert relative(slim(images), other(images)) > CLOSE
    with pytest.raises(ps.PlanError, match="This distance was trained for another model or plan"):
        ps.apply(model, plan, {name: tensor + 1 for name, tensor in weights.items()})
    with pytest.raises(ps.PlanError, match="plan uses none"):
        ps.apply(model, plan.by_keys(), weights)


def test_distances_are_for_matched_patches() -> None:
    info = ps.inspect(make_host())
    distance = DistanceSpec(channels=3, weights="")
    for fields in ({"kept": [[0]] * 4}, {"select": "predicted", "patches_per_block": [1, 1, 1, 0]}):
        with pytest.raises(ps.PlanError, match=r"distance goes with matched|no chooser"):
            build_plan(info, distance=distance, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_autocast_runs(kind: str) -> None:
    for way in ("matched merge", "matched merge, distance", "predicted merge", "threshold"):
        _, _, _, slim = made(kind, way)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert bool(torch.isfinite(slim(make_images(2))).all())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"patches_per_block": [16, 7, 4, 0], "removed": "merge"}, "at least half"),
        ({"patches_per_block": [16, 0, 0, 0]}, "keeps no patch"),
        ({"patches_per_block": [8, 9, 4, 0]}, "keeps 9 patches of 8"),
        ({"patches_per_block": [8, 8, 4]}, "3 blocks"),
        ({"patches_per_block": [8, 8, 4, 0], "removed": "carry"}, "static plans only"),
        ({"patches_per_block": [8, 8, 4, 0], "drops": [1]}, "drops lists blocks"),
        ({"patches_per_block": [8, 8, 4, 0], "select": "predicted"}, "exactly when its patches are predicted"),
        ({"kept": [[0]] * 4}, "not lists of patches"),
    ],
)
def test_bad_plans_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.PlanError, match=words):
        build_plan(ps.inspect(make_host()), **({"select": "matched"} | fields))
