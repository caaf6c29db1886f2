"""What every method promises: MACs that torch counts, a host left alone, a model that compiles whole and recovers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import patchslim as ps
from flops import counted, unfused
from patchslim.data import tensor_images
from patchslim.errors import PatchslimError
from patchslim.peers import Cell, PeerConfig, make_methods
from patchslim.peers.dynamicvit import DynamicViT, KeepPredictor
from patchslim.peers.evit import EViT
from patchslim.peers.hvt import Hvt
from patchslim.peers.names import PEERS
from patchslim.peers.ours import MODES
from patchslim.peers.power import Power
from patchslim.peers.tome import ToMe
from patchslim.recover import RecoverConfig, recover
from peer_jobs import built, job_of, says
from small import KINDS, make_host, make_images

NAMES = [make().name for make in PEERS]
NOT_SLIM = [name for name in NAMES if name not in ("scop", "uniform")]  # these two come down to a plan


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("readout_only", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "t2t", "lv class"])
def test_macs_are_what_torch_counts(kind: str, name: str, readout_only: bool) -> None:
    job = job_of(unfused(kind), make_images(8), epochs=1, readout_only=readout_only)
    info, (method,) = job.host.info, make_methods([name])
    for share in (0.8, 0.65):  # of what is not embedding: a stem is never slimmed
        ratio = share + (1 - share) * info.embed_macs / job.budget(1.0)
        cell = method.build(job, ratio)
        if isinstance(cell, Cell):
            assert cell.macs <= job.budget(ratio)
            assert cell.macs == counted(cell.module) == ps.count_macs(cell.module)
        else:
            assert name == "evit"
            assert not info.reads_class or share < 0.7


FIXED = KeepPredictor(24)
KNOBS: list[tuple[Callable[..., Cell], Any]] = [
    (ToMe().with_schedule, [3, 2, 1, 1]),
    (EViT().with_rate, 0.6),
    (Hvt().with_pools, [1]),
    (Power().with_counts, [12, 8, 5, 2]),
    (lambda job, rate: DynamicViT().with_predictors(job, rate, {2: FIXED, 3: FIXED, 4: FIXED}), 0.7),
]


@pytest.mark.parametrize(("make", "knob"), KNOBS)
def test_the_last_block_may_compute_only_what_is_read(make: Callable[..., Cell], knob: Any) -> None:
    """The same network then gives the same logits for fewer MACs."""
    model, images = make_host("registers"), make_images()
    whole, less = (make(job_of(model, readout_only=only), knob) for only in (False, True))
    assert less.macs < whole.macs
    torch.testing.assert_close(says(whole.module, images), says(less.module, images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_host_stays_as_it_was(name: str) -> None:
    model = make_host()
    before, images = copy.deepcopy(model.state_dict()), make_images()
    answer = says(model, images)
    cell = built(make_methods([name])[0], job_of(model, epochs=1), 0.7)
    assert not torch.equal(says(cell.module, images), answer)
    assert torch.equal(says(model, images), answer)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not cell.module.training


@pytest.mark.parametrize("name", NOT_SLIM)
def test_it_traces_whole(name: str) -> None:
    """No graph break, so that a compiler takes it as it is."""
    cell = built(make_methods([name])[0], job_of(make_host(), epochs=1), 0.7)
    torch.compiler.reset()
    compiled = torch.compile(cell.module, fullgraph=True, backend="eager")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(make_images()), cell.module(make_images()))


@pytest.mark.parametrize("name", NOT_SLIM)
def test_it_recovers(name: str) -> None:
    model = make_host()
    cell = built(make_methods([name])[0], job_of(model, epochs=1), 0.7)
    images = tensor_images(make_images(32))
    config = RecoverConfig(epochs=4, block_epochs=0, batch_size=8, learning_rate=3e-5, ema=0.0)
    found = recover(cell.module, model, images, config)
    assert type(found.model) is type(cell.module)
    assert found.report["after"]["loss"] < found.report["before"]["loss"]
    assert not torch.equal(says(found.model, make_images()), says(cell.module, make_images()))


def test_block_wise_recovery_is_left_out_where_tokens_are_unknown() -> None:
    model = make_host()
    cell = built(make_methods(["tome"])[0], job_of(model), 0.7)
    config = RecoverConfig(epochs=1, block_epochs=1, batch_size=8, patch_weight=1.0)
    stages = recover(cell.module, model, make_images(16), config).report["stages"]
    assert stages[0]["stopped"] == "skipped"
    assert "no plan" in stages[0]["reason"]


@pytest.mark.parametrize("name", [mode for mode in MODES if "predicted" not in mode])
def test_our_own_modes(name: str) -> None:
    job = job_of(make_host())
    cell = built(make_methods([name])[0], job, 0.6)
    assert cell.macs == ps.count_macs(cell.module) <= job.budget(0.6)
    found = make_methods([name])[0].build(job, 0.01)
    assert not isinstance(found, Cell)
    assert "can't be reached" in found.reason


def test_names() -> None:
    assert [method.name for method in make_methods(["tome", "ps-static", "tome"])] == ["tome", "ps-static"]
    assert len(make_methods(["all"])) == len(MODES) + len(PEERS)
    with pytest.raises(PatchslimError, match="no method 'tomé'; choose from ps-static"):
        make_methods(["tomé"])
    with pytest.raises(PatchslimError, match="No method is named"):
        make_methods([])
    with pytest.raises(PatchslimError, match="epochs has to be at least 1"):
        PeerConfig(epochs=0)
