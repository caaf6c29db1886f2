"""Algorithm 1 against a slow, full-shape version of itself, and what interrupts it."""

import copy
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.hosts.base import PATCH_READOUTS
from patchslim.scores import radial_scores
from patchslim.search.features import Features
from patchslim.search.network import Network, Partial
from patchslim.search.scoring import score_block
from power import Interrupted, interrupt_after
from small import make_host, make_images, relative


def config(**settings: Any) -> ps.SearchConfig:
    """Settings for 16 patches and a handful of images."""
    base: dict[str, Any] = {"score": "impact", "step": 3, "tune_epochs": 0, "batch_size": 4, "learning_rate": 1e-3}
    return ps.SearchConfig(**(base | settings))


def host_features(model: Any, images: Tensor) -> list[Tensor]:
    """Z_0 … Z_L by running the host."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    found = [x]
    for block in model.blocks:
        found.append(block(found[-1]))
    return found


def masked_block(block: Any, x: Tensor, kept: set[int], alive: set[int], prefix: int) -> Tensor:
    """A block at full shape: keys outside `alive` are masked, rows outside `kept` stay as they were."""
    n = x.shape[1]
    key = torch.tensor([i < prefix or i - prefix in alive for i in range(n)])
    row = torch.tensor([i < prefix or i - prefix in kept for i in range(n)])
    return torch.where(row[:, None], block(x, attn_mask=key.expand(1, 1, n, n)), x)


def slow_search(model: Any, images: Tensor, scores: list[float], tolerance: float, step: int, removed: str) -> Any:
    """Algorithm 1 without tuning, straight from the paper, on masks."""
    prefix, depth = model.num_prefix_tokens, len(model.blocks)
    patches = model.patch_embed.num_patches
    everything = set(range(patches))
    z = host_features(model, images)
    kept: dict[int, set[int]] = {depth: set()}
    for layer in range(depth - 1, 0, -1):
        ranked = sorted(everything - kept[layer + 1], key=lambda i: (-scores[i], i))
        r = 0
        while True:
            kept[layer] = kept[layer + 1] | set(ranked[:r])
            x = masked_block(model.blocks[layer - 1], z[layer - 1], kept[layer], everything, prefix)
            alive = kept[layer] if removed == "drop" else everything
            x = masked_block(model.blocks[layer], x, kept[layer + 1], alive, prefix)
            rows = [i for i in range(x.shape[1]) if i < prefix or i - prefix in kept[layer + 1]]
            difference = (x - z[layer + 1])[:, rows].square().sum((1, 2))
            error = float((difference / z[layer + 1][:, rows].square().sum((1, 2))).mean())
            if error <= tolerance or len(kept[layer]) == patches:
                break
            r += step
    return [sorted(kept[layer]) for layer in range(1, depth + 1)]


@pytest.mark.parametrize("removed", ["drop", "carry"])
@pytest.mark.parametrize("kind", ["class", "registers", "distilled"])
@torch.no_grad()
def test_equals_the_slow_algorithm(kind: str, removed: Any) -> None:
    model, images = make_host(kind), make_images(6)
    found = []
    for tolerance in (1e-3, 1e-2, 5e-2, 0.2):
        plan, tuned = ps.search(model, images, config(tolerance=tolerance, score="radial", removed=removed))
        scores = radial_scores((4, 4)).tolist()
        assert plan.kept == slow_search(model, images, scores, tolerance, 3, removed)
        assert not tuned
        found.append(sum(plan.counts))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


@torch.no_grad()
def test_impact_of_a_block_equals_brute_force_on_the_half_slimmed_network() -> None:
    model: Any = make_host(num_heads=2)
    images = make_images(3)
    host = open_host(model)
    network = Network(host, "drop")
    partial = Partial([5, 9, 2, 11, *[i for i in range(16) if i not in (5, 9, 2, 11)]], {4: 0, 3: 2, 2: 4})
    features = Features(host, as_source(images), 2, 2**30)
    features.focus((0, 1, 2))
    found = score_block(network, features, partial, 1, config())

    z = host_features(model, images)
    everything, total = set(range(16)), torch.zeros(16)
    kept = {2: {5, 9, 2, 11}, 3: {5, 9}, 4: set[int]()}
    maps, x, alive = [], z[1], everything
    for layer in (2, 3, 4):
        key = torch.tensor([i < 1 or i - 1 in alive for i in range(17)])
        row = torch.tensor([i < 1 or i - 1 in kept[layer] for i in range(17)]).float()
        q, k = qk(model.blocks[layer - 1], x)
        logits = (q @ k.transpose(-2, -1)).masked_fill(~key, -torch.inf)
        maps.append(logits.softmax(-1) * row[:, None])
        x = masked_block(model.blocks[layer - 1], x, kept[layer], alive, 1)
        alive = kept[layer]
    q, k = qk(model.blocks[0], z[0])
    own = (q @ k.transpose(-2, -1)).softmax(-1) @ model.blocks[0].norm1(z[0]).abs()[:, None]
    for image in range(3):
        score = torch.zeros(17)
        for path in itertools.product(range(2), repeat=3):
            a = maps[2][image, path[2]] @ maps[1][image, path[1]] @ maps[0][image, path[0]]
            score += a[0].square() * own[image].square().sum((0, 2))
        total += score[1:] / score[1:].sum() / 3
    assert relative(found.float(), total) < 1e-4


def qk(block: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled queries and keys of all tokens (B, H, n, d_h)."""
    attn = block.attn
    q, k, _ = attn.qkv(block.norm1(x)).reshape(*x.shape[:2], 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    return q * attn.scale, k


@pytest.mark.parametrize("removed", ["drop", "carry"])
def test_every_readout_and_score_gives_a_plan(kind: str, removed: Any) -> None:
    model, images = make_host(kind), make_images(4)
    for score in ("impact", "attention", "random", "radial", "uniform"):
        plan, _ = ps.search(model, images, config(tolerance=0.05, score=score, removed=removed))
        assert plan.removed == removed
        last = plan.counts[-1]
        assert last >= 1 if plan.host.readout in PATCH_READOUTS else last == 0


def test_no_tolerance_keeps_everything_and_the_hosts_output(kind: str) -> None:
    model, images = make_host(kind), make_images(4)
    plan, _ = ps.search(model, images, config(tolerance=0.0, step=16))
    slim = ps.apply(model, plan)
    if plan.host.readout not in PATCH_READOUTS:
        assert set(plan.counts[:-1]) == {16}
    assert relative(slim(images), model(images)) <= 1e-5


def test_the_model_is_left_as_it_was() -> None:
    model = make_host().train()
    before = copy.deepcopy(model.state_dict())
    ps.search(model, make_images(4), config(tolerance=0.02, tune_epochs=1))
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_tuning_lowers_the_error_at_the_same_counts() -> None:
    model, images = make_host(), make_images(8)
    plain, none = ps.search(model, images, config(target_macs=0.5))
    tuned, weights = ps.search(model, images, config(target_macs=0.5, tune_epochs=10))
    assert tuned.counts == plain.counts
    assert not none
    assert {name.split(".")[1] for name in weights} == {"0", "1", "2"}  # the last block is never tuned
    for layer, error in tuned.provenance["errors"].items():
        assert error <= plain.provenance["errors"][layer]
    assert sum(tuned.provenance["errors"].values()) < 0.9 * sum(plain.provenance["errors"].values())


def test_tuned_search_keeps_no_more_patches() -> None:
    model, images = make_host(), make_images(8)
    plain, _ = ps.search(model, images, config(tolerance=0.02))
    tuned, _ = ps.search(model, images, config(tolerance=0.02, tune_epochs=10))
    assert sum(tuned.counts) <= sum(plain.counts)
    for error in tuned.provenance["errors"].values():
        assert error <= 0.02 or 16 in tuned.counts


@pytest.mark.parametrize("settings", [{"tolerance": 0.02, "tune_epochs": 2}, {"target_macs": 0.5, "tune_epochs": 1}])
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    model, images = make_host(), make_images(4)
    expected, weights = ps.search(model, images, config(**settings))
    heard: list[Mapping[str, Any]] = []
    ps.search(model, images, config(**settings), listen=heard.append)
    for number, cut in enumerate(range(0, len(heard), max(1, len(heard) // 12))):
        folder = tmp_path / str(number)
        with pytest.raises(Interrupted):
            ps.search(model, images, config(**settings), checkpoint=folder, listen=interrupt_after(cut))
        plan, resumed = ps.search(model, images, config(**settings), checkpoint=folder)
        assert plan.to_json() == expected.to_json()
        assert resumed.keys() == weights.keys()
        assert all(torch.equal(resumed[name], weights[name]) for name in weights)


def test_a_line_cut_short_is_forgotten(tmp_path: Path) -> None:
    model, images = make_host(), make_images(4)
    settings = config(tolerance=0.02)
    expected, _ = ps.search(model, images, settings, checkpoint=tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[: len(whole) - 25])
    plan, _ = ps.search(model, images, settings, checkpoint=tmp_path)
    assert plan.to_json() == expected.to_json()
    assert ledger.read_bytes() == whole
    assert [json.loads(line)["key"] for line in whole.splitlines()]


def test_a_damaged_memory_is_told(tmp_path: Path) -> None:
    model, images = make_host(), make_images(4)
    settings = config(tolerance=0.02, tune_epochs=1)
    ps.search(model, images, settings, checkpoint=tmp_path)
    for path in tmp_path.glob("block-*.safetensors"):
        path.write_bytes(b"xx")
    with pytest.raises(ps.RunError, match="can't be resumed"):
        ps.search(model, images, settings, checkpoint=tmp_path)
    (tmp_path / "ledger.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ps.RunError, match="damaged"):
        ps.search(model, images, settings, checkpoint=tmp_path)


def test_broken_weights_are_told() -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(ps.PatchslimError, match="not a finite number"):
        ps.search(model, make_images(4), config(tolerance=0.02, score="radial"))


def test_settings_out_of_range_are_told() -> None:
    wrong: list[dict[str, Any]] = [
        {"tolerance": -1.0},
        {"tolerance": float("nan")},
        {"tolerance": float("inf")},
        {"target_macs": 0.0},
        {"target_macs": 1.0},
        {"tolerance": 0.1, "target_macs": 0.5},
        {"step": 0},
        {"tune_epochs": -1},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"cache_gib": -1.0},
        {"score": "luck"},
        {"removed": "burn"},
    ]
    for settings in wrong:
        with pytest.raises(ps.BudgetError):
            ps.SearchConfig(**settings)


def test_slim_is_search_and_apply() -> None:
    model, images = make_host(), make_images(4)
    settings = config(target_macs=0.6, tune_epochs=1)
    slim: Any = ps.slim(model, images, settings)
    plan, tuned = ps.search(model, images, settings)
    assert slim.plan == plan
    assert isinstance(slim, nn.Module)
    assert torch.equal(slim(images), ps.apply(model, plan, tuned)(images))
