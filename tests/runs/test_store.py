"""Run folders: what goes in comes out, and damage is told in one sentence."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.hosts.weights import read_weights, write_weights
from patchslim.plan import SlimPlan
from patchslim.runs.store import load_host
from patchslim.slimmed import own_keys
from sealing import resealed
from small import make_host, make_images, merging, plan_for, slim_of
from step_plans import STEPS, alone


@torch.no_grad()
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    model, slim = slim_of(kind)
    ps.save(slim, tmp_path / "run", metrics={"top1": 1.0})
    again: Any = ps.load(tmp_path / "run")
    images = make_images()
    assert torch.equal(again(images), slim(images))
    assert again.plan == slim.plan
    assert torch.equal(load_host(tmp_path / "run")(images), model(images))
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["config.json", "manifest.json", "metrics.json", "model.safetensors", "plan.json"]


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("name", STEPS)
@torch.no_grad()
def test_every_kind_of_step_comes_back_with_what_it_owns(name: str, tmp_path: Path) -> None:
    model, images, run = make_host(), make_images(), tmp_path / "run"
    plan, weights = alone(model, STEPS[name](10))
    slim: Any = ps.apply(model, plan, weights)
    for parameter in slim.blocks[1].step.parameters():
        if parameter.requires_grad:  # what no plan has a fingerprint of may have learnt since
            parameter.add_(0.1)
    ps.save(slim, run)
    again: Any = ps.load(run)
    assert torch.equal(again(images), slim(images))
    assert SlimPlan.load(run / "plan.json") == plan
    own = own_keys(slim)
    assert (set(load_file(run / "steps.safetensors")) if (run / "steps.safetensors").exists() else set()) == own
    assert own >= set(weights)
    model.load_state_dict(load_file(run / "model.safetensors"))


def test_the_transform_survives(tmp_path: Path) -> None:
    import timm
    from timm.data import resolve_model_data_config

    model = timm.create_model("vit_base_patch16_clip_224", embed_dim=24, depth=2, num_heads=2, img_size=48)
    ps.save(ps.apply(model, ps.full_plan(model)), tmp_path / "run")
    again = ps.load(tmp_path / "run")
    assert resolve_model_data_config(again) == resolve_model_data_config(model)
    assert ps.inspect(load_host(tmp_path / "run")).name == "vit_base_patch16_clip_224"


def test_only_slim_models_and_only_new_folders(tmp_path: Path) -> None:
    model, slim = slim_of()
    with pytest.raises(ps.RunError, match="slim model"):
        ps.save(model, tmp_path / "run")
    ps.save(slim, tmp_path / "run")
    with pytest.raises(ps.RunError, match="already holds a run"):
        ps.save(slim, tmp_path / "run")


def test_a_path_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.RunError, match="can't be written"):
        ps.save(slim_of()[1], tmp_path / "file" / "run")


def damaged(tmp_path: Path, name: str, content: bytes) -> Path:
    """A good run with one file replaced."""
    run = tmp_path / "run"
    ps.save(slim_of()[1], run)
    (run / name).write_bytes(content)
    return resealed(run)


class Bomb:
    """Unpickling this would leave a trace."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path("exploded"),))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"{}", "does not belong"),
        ("config.json", b'{"format": "patchslim run", "version": 2, "host": {}}', "does not describe a model"),
        ("config.json", b'{"format": "patchslim run", "version": 2}', "is not valid: host: Field required"),
        ("config.json", b"{", "not JSON"),
        ("config.json", b"[" * 100_000, "not JSON"),
        ("model.safetensors", b"rubbish", "not a readable safetensors"),
        ("model.safetensors", pickle.dumps(Bomb()), "pickle"),
        ("plan.json", b"{}", "no version"),
        ("plan.json", b"[" * 100_000, "not JSON"),
    ],
)
def test_damage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    run = damaged(tmp_path, name, content)
    with pytest.raises(ps.PatchslimError, match=words):
        ps.load(run)
    assert not (tmp_path / "exploded").exists()


OLD_PLAN = {
    "version": 3,
    "host": {"name": "vit", "depth": 2, "width": 24, "heads": 3, "prefix_tokens": 1, "patches": 16, "grid": [4, 4]},
    "select": "static",
    "removed": "merge",
    "groups": "own",
    "kept": [[0, 1, 2, 3], []],
}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("plan.json", OLD_PLAN, "is a plan of version 3, this patchslim reads 5; make the plan anew with"),
        ("plan.json", {"version": 6}, "is a plan of version 6, this patchslim reads 5; upgrade patchslim"),
        (
            "config.json",
            {"format": "patchslim run", "version": 1, "host": {"library": "timm"}, "settings": {"select": "static"}},
            "is a run of version 1, this patchslim reads 2; slim the model again",
        ),
        (
            "config.json",
            {"format": "patchslim run", "version": 3},
            "is a run of version 3, this patchslim reads 2; upgrade patchslim",
        ),
    ],
)
def test_other_versions_are_refused_with_one_sentence(tmp_path: Path, name: str, content: Any, words: str) -> None:
    run = damaged(tmp_path, name, json.dumps(content).encode())
    if content.get("version") == 1:
        (run / "manifest.json").unlink()  # such runs had none
    with pytest.raises(ps.PatchslimError, match=words) as told:
        ps.load(run)
    assert str(told.value).count(". ") == 0
    assert "\n" not in str(told.value)


def test_steps_get_what_came_with_their_plan_and_nothing_else(tmp_path: Path) -> None:
    model = make_host()
    for seed in (4, 5):
        ps.save(ps.apply(model, *merging(model, seed=seed)), tmp_path / str(seed))
    steps = tmp_path / "4" / "steps.safetensors"
    whole = load_file(steps)
    for content, words in (
        (load_file(tmp_path / "5" / "steps.safetensors"), "belong to another model or plan"),
        ({name: tensor for name, tensor in whole.items() if "blocks.0" not in name}, r"blocks\.0\.step.* is not given"),
        (whole | {"blocks.3.step.distance.weight": torch.ones(1)}, "no step of this plan owns that"),
        (None, r"blocks\.0\.step\.distance.* is not given"),
    ):
        steps.unlink() if content is None else save_file(content, steps)
        resealed(tmp_path / "4")
        with pytest.raises(ps.PlanError, match=words):
            ps.load(tmp_path / "4")
    steps.write_bytes(pickle.dumps(Bomb()))
    resealed(tmp_path / "4")
    with pytest.raises(ps.CheckpointError, match="is a pickle"):
        ps.load(tmp_path / "4")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ps.save(slim_of()[1], run)
    weights = load_file(run / "model.safetensors")
    save_file(make_host("registers").state_dict(), run / "model.safetensors")
    resealed(run)
    with pytest.raises(ps.CheckpointError, match="another model"):
        ps.load(run)
    weights["head.bias"][0] = torch.inf
    save_file(weights, run / "model.safetensors")
    resealed(run)
    with pytest.raises(ps.CheckpointError, match="NaN or infinite"):
        ps.load(run)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("kwargs", "embed_dim"), 0),
        (("kwargs", "num_heads"), 0),
        (("kwargs", "norm_layer"), {"class": "os.system", "eps": 1}),
        (("pretrained_cfg", "mean"), "x"),
        (("pretrained_cfg", "interpolation"), "evil"),
        (("class",), "Popen"),
        (("kwargs", "num_heads"), -1),
        (("kwargs", "depth"), 100_000),
        (("kwargs", "depth"), 4000),
        (("kwargs", "img_size"), [2**19, 2**19]),
        (("kwargs", "mlp_ratio"), 1e30),
        (("kwargs", "extra"), 1),
        (("pretrained_cfg", "crop_pct"), 1e-9),
        (("pretrained_cfg", "crop_pct"), -math.inf),
        (("pretrained_cfg", "std"), [0.5, 0.0, 0.5]),
        (("pretrained_cfg", "mean"), [math.inf, 0.0, 0.0]),
    ],
)
def test_a_damaged_description_is_told(tmp_path: Path, place: tuple[str, ...], value: Any) -> None:
    run = tmp_path / "run"
    ps.save(slim_of()[1], run)
    config = json.loads((run / "config.json").read_text())
    inner = config["host"]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    (run / "config.json").write_text(json.dumps(config))
    resealed(run)
    with pytest.raises(ps.PatchslimError, match=r"does not describe|does not fit"):
        ps.load(run)


@pytest.mark.parametrize(
    ("way", "key", "value"),
    [
        ("predict", "hidden", 10**30),
        ("predict", "hidden", 4000),
        ("merge", "channels", 2**31),
        ("merge", "channels", 4000),
        ("merge", "n", -1),
    ],
)
def test_sizes_in_a_plan_are_compared_with_the_weights_before_anything_is_made(
    tmp_path: Path, way: str, key: str, value: int
) -> None:
    model = make_host()
    ps.save(ps.apply(model, *plan_for(model, way)), tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    next(step for step in plan["steps"] if key in step)[key] = value
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    resealed(tmp_path)
    with pytest.raises(ps.PatchslimError, match=r"is not a valid plan|where the plan makes it"):
        ps.load(tmp_path)


def _each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda slim: [change(block) for block in slim.blocks]


EDITS: dict[str, Callable[[Any], Any]] = {
    "activation of one block": lambda slim: setattr(slim.blocks[1].mlp, "act", nn.ReLU()),
    "activation of all": _each(lambda block: setattr(block.mlp, "act", nn.ReLU())),
    "head of other classes": lambda slim: setattr(slim, "head", nn.Linear(24, 5)),
    "fresh head": lambda slim: slim.reset_classifier(5),
    "pool": lambda slim: setattr(slim, "global_pool", "avg"),
    "part more": lambda slim: slim.add_module("adapter", nn.Linear(2, 2)),
    "tied MLPs": lambda slim: setattr(slim.blocks[1], "mlp", slim.blocks[0].mlp),
    "equal MLPs": lambda slim: setattr(slim.blocks[1], "mlp", copy.deepcopy(slim.blocks[0].mlp)),
    "NaN": lambda slim: slim.head.bias.data.fill_(math.nan),
    "pruning": lambda slim: prune.random_unstructured(slim.blocks[0].mlp.fc1, "weight", 0.5),
    "weight norm": lambda slim: nn.utils.parametrizations.weight_norm(slim.head),
    "scale": lambda slim: setattr(slim.blocks[2].attn, "scale", 0.5),
    "wrapped part": lambda slim: setattr(slim, "pos_drop", nn.Sequential(slim.pos_drop)),
    "eps": lambda slim: setattr(slim.norm, "eps", 0.5),
    "hook": lambda slim: slim.norm.register_forward_hook(lambda module, given, out: out * 2),
    "forward": lambda slim: setattr(slim.norm, "forward", lambda x: x * 2),
    "patches of a step": lambda slim: setattr(slim.blocks[1].step, "n", 3),
    "weights": lambda slim: [weight.data.mul_(1.5) for weight in slim.parameters()],
    "bf16": lambda slim: slim.to(torch.bfloat16),
    "fp16": lambda slim: slim.half(),
    "float64": lambda slim: slim.double(),
    "mixed": lambda slim: slim.head.double(),
    "meta": lambda slim: slim.to("meta"),
    "int8 weights": lambda slim: slim.register_buffer("more", torch.zeros(2, dtype=torch.int8)),
}
REFUSED = {
    *(
        "pool",
        "activation of one block",
        "head of other classes",
        "part more",
        "tied MLPs",
        "NaN",
        "pruning",
        "weight norm",
    ),
    *("wrapped part", "scale", "eps", "hook", "forward", "patches of a step", "meta", "int8 weights"),
}


CASES = [
    *((edit, "merge") for edit in EDITS),
    *(("bf16", way) for way in ("drop", "cover", "predict")),
    ("pool", "drop"),
]


@pytest.mark.parametrize(("edit", "way"), CASES)
@torch.no_grad()
def test_an_edited_model_is_refused_or_comes_back(edit: str, way: str, tmp_path: Path) -> None:
    model, run = make_host(), tmp_path / "run"
    slim = ps.apply(model, *plan_for(model, way))
    EDITS[edit](slim)
    if edit in REFUSED:
        with pytest.raises(ps.RunError) as told:
            ps.save(slim, run)
        assert "\n" not in str(told.value)
        assert not run.exists()
        return
    ps.save(slim, run)
    again = ps.load(run)
    kinds = {name: tensor.dtype for name, tensor in slim.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in again.state_dict().items()} == kinds
    if edit == "mixed":
        return  # it does not run, before or after
    images = make_images().to(next(slim.parameters()).dtype)
    assert torch.equal(again(images), slim(images))


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
@torch.no_grad()
def test_any_number_of_channels_comes_back(channels: int, tmp_path: Path) -> None:
    model = make_host(in_chans=channels)
    slim, images = ps.apply(model, ps.full_plan(model)), torch.randn(2, channels, 32, 32)
    ps.save(slim, tmp_path)
    assert torch.equal(ps.load(tmp_path)(images), slim(images))


@torch.no_grad()
def test_a_predicting_plan_with_nothing_to_choose_comes_back(tmp_path: Path) -> None:
    model, images = make_host(), make_images()
    slim = ps.slim(model, tensor_images(make_images(16)), "predict", macs=0.99, batch_size=8)
    ps.save(slim, tmp_path)
    assert torch.equal(ps.load(tmp_path)(images), slim(images))


def test_what_is_kept_beside_the_model_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    slim, run = slim_of()[1], tmp_path / "run"
    for more in ({"config": {"x": torch.ones(1)}}, {"metrics": {"macs": "many"}}, {"metrics": {"x": slim}}):
        with pytest.raises(ps.RunError, match=r"can't be written as JSON|is not valid: macs"):
            ps.save(slim, run, **more)
        assert not run.exists()
    ps.save(slim, run, config={"host": "mine", "format": "mine"})  # its own keys win
    ps.load(run)


def test_missing_and_unfinished_runs_are_told(tmp_path: Path) -> None:
    with pytest.raises(ps.RunError, match="no run folder"):
        ps.load(tmp_path / "nothing")
    run = tmp_path / "run"
    ps.save(slim_of()[1], run)
    (run / "plan.json").unlink()
    with pytest.raises(ps.RunError, match="not finished"):
        ps.load(run)


def test_nothing_in_a_run_names_this_machine(tmp_path: Path) -> None:
    ps.save(slim_of()[1], tmp_path / "run")
    for name in ("config.json", "metrics.json", "plan.json"):
        assert str(tmp_path) not in (tmp_path / "run" / name).read_text()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["version"] == 2


def test_a_file_whose_header_has_a_pickles_length_is_read(tmp_path: Path) -> None:
    """Bare pickles start with 0x80; so does a safetensors file with a header of 128, 384, … bytes."""
    path, starts = tmp_path / "weights.safetensors", set()
    for length in range(60, 80):
        write_weights(path, {"w" * length: torch.ones(1)})
        starts.add(path.read_bytes()[0])
        assert list(read_weights(path)) == ["w" * length]
    assert 0x80 in starts
