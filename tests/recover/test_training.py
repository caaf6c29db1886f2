"""The training loop: it learns, stops, goes back, and goes on where it was interrupted."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.errors import PatchslimWarning
from patchslim.files import digest, write_sealed
from patchslim.hosts.weights import write_weights
from patchslim.recover import RecoverConfig, Recovered, recover
from patchslim.recover.images import split
from power import Interrupted
from small import PYRAMID, WAYS, make_host, make_images, plan_for, plan_of

QUICK: dict[str, Any] = {
    "epochs": 3,
    "block_epochs": 1,
    "batch_size": 8,
    "block_batch_size": 8,
    "held_out": 0.2,
    "learning_rate": 1e-4,
    "block_learning_rate": 1e-4,
    "patience": 3,
    "warmup": 0.1,
}
LABELS = torch.arange(24) % 7


def run(
    way: str = "drop", listen: Any = None, checkpoint: Path | None = None, count: int = 24, **settings: Any
) -> Recovered[Any]:
    model = make_host()
    plan, weights = plan_for(model, way)
    images = tensor_images(make_images(count), LABELS.repeat(count // 24))
    listen = listen or (lambda event: None)
    config = RecoverConfig(**QUICK | settings)
    return recover(ps.apply(model, plan, weights), model, images, config, checkpoint=checkpoint, listen=listen)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(a.state_dict()[name], tensor) for name, tensor in b.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_on_held_out_images_falls(way: str) -> None:
    found = run(way, count=96, epochs=3)
    assert found.report["after"]["loss"] < found.report["before"]["loss"]
    assert found.report["changed"]


def test_models_given_are_left_as_they_were() -> None:
    model = make_host().requires_grad_(False)
    slim = ps.apply(model, plan_of(model, PYRAMID))
    host, before = make_host(), ps.apply(model, plan_of(model, PYRAMID))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    found = ps.finetune(slim, model, make_images(24), RecoverConfig(**QUICK))
    assert torch.equal(torch.rand(1), expected)  # nobody's random numbers change
    assert same(model, host)
    assert same(slim, before)
    assert not same(found, slim)
    assert not found.training
    assert not any(parameter.requires_grad for parameter in found.parameters())
    assert found.plan == slim.plan


def test_what_steps_own_stays_as_it_was(tmp_path: Path) -> None:
    found = run("predict")
    ps.save(found.model, tmp_path / "run")
    assert same(ps.load(tmp_path / "run"), found.model)


def crash_at(kind: str, number: int) -> Callable[[Mapping[str, Any]], None]:
    """A listener that fails at the given event."""
    seen = 0

    def listen(event: Mapping[str, Any]) -> None:
        nonlocal seen
        seen += event["event"] == kind
        if seen == number and event["event"] == kind:
            raise Interrupted

    return listen


STAGES: dict[str, Any] = {"epochs": 3, "supervised_epochs": 2, "patience": 9}


@pytest.mark.parametrize(
    ("way", "kind", "number"),
    [("drop", "reconstructed", 3), ("predict", "epoch", 3), ("drop", "step", 8), ("drop", "epoch", 5)],
)
def test_an_interrupted_recovery_ends_the_same(tmp_path: Path, way: str, kind: str, number: int) -> None:
    whole = run(way, **STAGES)
    with pytest.raises(Interrupted):
        run(way, crash_at(kind, number), tmp_path, **STAGES)
    events: list[Any] = []
    resumed = run(way, events.append, tmp_path, **STAGES)
    assert same(resumed.model, whole.model)
    assert [outcome | {} for outcome in resumed.report["stages"]] == whole.report["stages"]
    assert resumed.report["before"] == whole.report["before"]
    epochs = [event for event in events if event["event"] == "epoch"]
    assert len(epochs) < 5 or kind == "reconstructed"


def test_a_finished_checkpoint_gives_its_result_at_once(tmp_path: Path) -> None:
    first = run(checkpoint=tmp_path)
    events: list[Any] = []
    again = run(listen=events.append, checkpoint=tmp_path)
    assert events == []
    assert same(first.model, again.model)


def test_other_settings_or_images_are_refused(tmp_path: Path) -> None:
    run(checkpoint=tmp_path)
    with pytest.raises(ps.RunError, match=r"other settings \(epochs 3, now 4\)"):
        run(checkpoint=tmp_path, epochs=4)
    model = make_host()
    slim = ps.apply(model, plan_of(model, PYRAMID))
    with pytest.raises(ps.RunError, match="other images"):
        recover(slim, model, make_images(24, seed=9), RecoverConfig(**QUICK), checkpoint=tmp_path)
    labelled = tensor_images(make_images(24), LABELS)
    other = ps.apply(make_host(seed=3), plan_of(model, PYRAMID))
    with pytest.raises(ps.RunError, match="other weights"):
        recover(other, model, labelled, RecoverConfig(**QUICK), checkpoint=tmp_path)
    fewer = ps.apply(model, plan_of(model, [PYRAMID[1], *PYRAMID[1:]]))
    with pytest.raises(ps.RunError, match="other plan"):  # a static plan has no weights that would tell
        recover(fewer, model, labelled, RecoverConfig(**QUICK), checkpoint=tmp_path)


MUTATIONS: list[tuple[str, Any]] = [
    ("number", -math.inf),
    ("number", None),
    ("before", {}),
    ("before", "x"),
    ("outcomes", [[]]),
    ("outcomes", [{}]),
    ("seconds", "x"),
    ("seconds", -1.0),
    ("stage", "x"),
    ("stage", "supervised"),
    ("stage", "finished"),
    ("numbers", {}),
    ("numbers", []),
    ("numbers", {"step": "x"}),
    ("started", []),
    ("version", 1),
    ("more", 1),
]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the middle of a training."""
    folder = tmp_path_factory.mktemp("checkpoint")
    with pytest.raises(Interrupted):
        run(listen=crash_at("epoch", 3), checkpoint=folder)
    return folder


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("key", "value"), MUTATIONS)
def test_a_changed_state_is_told(interrupted: Path, tmp_path: Path, key: str, value: Any, sealed: bool) -> None:
    """By its digest; where somebody has made that true again, by its schema."""
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "state.json"
    state = json.loads(path.read_text())
    old = state[key] if isinstance(value, dict) and value and key in state else {}
    state[key] = old | value if old else value
    if sealed:
        del state["sha256"]
        write_sealed(path, state)
    else:
        path.write_text(json.dumps(state))
    with pytest.raises(ps.RunError) as told:
        run(checkpoint=tmp_path)
    assert "\n" not in str(told.value)
    assert sealed or "is not as it was written" in str(told.value)


def test_changed_tensors_are_told(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for damage in (b"\0" * 9, whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damage)
        with pytest.raises(ps.RunError, match="is missing or not as it was written, so the recovery can't go on"):
            run(checkpoint=tmp_path)
    tensors = load_file(path) if path.write_bytes(whole) else {}
    name = next(name for name in tensors if name.startswith("optimizer") and tensors[name].ndim)
    write_weights(path, tensors | {name: torch.zeros(3, 5)})
    state = json.loads((tmp_path / "state.json").read_text()) | {"tensors": asdict(digest(path))}
    del state["sha256"]
    write_sealed(tmp_path / "state.json", state)
    with pytest.raises(ps.RunError, match="is damaged and can't be resumed"):
        run(checkpoint=tmp_path)
    path.unlink()
    with pytest.raises(ps.RunError, match="is missing"):
        run(checkpoint=tmp_path)


def test_nothing_in_a_checkpoint_is_pickled(tmp_path: Path) -> None:
    run(checkpoint=tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_a_loss_that_is_not_finite_ends_it_and_good_weights_stay() -> None:
    events: list[Any] = []
    with pytest.warns(PatchslimWarning, match="not finite any more"):
        found = run(listen=events.append, block_epochs=0, learning_rate=1e30, clip=1e30)
    assert found.report["stopped"] == "diverged"
    assert [event["stage"] for event in events if event["event"] == "diverged"] == ["distillation"]
    assert found.report["after"]["loss"] <= found.report["before"]["loss"]
    assert all(bool(tensor.isfinite().all()) for tensor in found.model.state_dict().values())


def test_what_does_not_help_is_not_kept() -> None:
    found = run(block_epochs=0, learning_rate=0.3, epochs=4, patience=2)
    assert found.report["stopped"] == "patience"
    assert found.report["stages"][0]["epochs"] == 2
    assert found.report["stages"][0]["best_epoch"] == 0
    assert not found.report["changed"]
    assert found.report["after"] == found.report["before"]


def test_broken_weights_are_told_before_anything_is_learnt() -> None:
    model = make_host()
    slim = ps.apply(model, plan_of(model, PYRAMID))
    with torch.no_grad():
        next(slim.parameters()).fill_(torch.nan)
    with pytest.raises(ps.RecoverError, match="weights of the model or of the teacher are broken"):
        ps.finetune(slim, model, make_images(8), RecoverConfig(**QUICK))


@pytest.mark.parametrize("count", [2, 3, 9])
def test_few_images_are_enough(count: int) -> None:
    model = make_host()
    images = tensor_images(make_images(count), LABELS[:count])
    config = RecoverConfig(**QUICK | {"batch_size": 128, "supervised_epochs": 1})
    found = recover(ps.apply(model, plan_of(model, PYRAMID)), model, images, config)
    assert found.report["held_out_images"] == max(1, round(count * 0.2))


def test_bad_input_is_refused_in_one_sentence() -> None:
    model = make_host()
    slim = ps.apply(model, plan_of(model, PYRAMID))
    images, config = make_images(8), RecoverConfig(**QUICK)
    with pytest.raises(ps.DataError, match="needs 2"):
        ps.finetune(slim, model, images[:1], config)
    with pytest.raises(ps.DataError, match="32x32"):
        ps.finetune(slim, model, make_images(8, size=16), config)
    with pytest.raises(ps.DataError, match="1 channels"):
        ps.finetune(slim, model, images[:, :1], config)
    with pytest.raises(ps.DataError, match="can't be"):
        ps.finetune(slim, model, "digits", config)
    with pytest.raises(ps.RecoverError, match="Only a slim model"):
        ps.finetune(model, model, images, config)
    with pytest.raises(ps.RecoverError, match="is a slim model"):
        ps.finetune(slim, slim, images, config)
    others = {"classes is 5": make_host(num_classes=5), "patches is 36": make_host(img_size=48)}
    for words, other in others.items():
        with pytest.raises(ps.RecoverError, match=words):
            ps.finetune(slim, other, images, config)


def test_thresholds_report_the_macs_they_take() -> None:
    found = run("threshold")
    images = torch.cat([batch for batch, _ in split(tensor_images(make_images(24)), 0.2, 0, 8).held_out_batches()])
    assert found.report["after"]["macs"] == round(float(ps.image_macs(found.model, images).double().mean()))
    assert "macs" not in run("drop").report["after"]
