"""A user's checkpoint: official wrappings are taken off, code is never run, and another variant's is named."""

import argparse
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import patchslim as ps
from commands import Run, refused
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.models import T2TViT
from small import make_host

ARGS = argparse.Namespace(model="t2t_vit_14", lr=5e-4, decay=[1, 2])


def weights_of(model: torch.nn.Module) -> OrderedDict[str, torch.Tensor]:
    return OrderedDict(model.state_dict())


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrapping", ["plain", "state_dict", "ema", "model", "module"])
def test_wrappings_are_taken_off(tmp_path: Path, wrapping: str, legacy: bool) -> None:
    model, path = make_host("lv"), tmp_path / "lvvit_s-26M-224-83.3.pth.tar"
    own = weights_of(model)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    parallel = {f"module.{name}": tensor for name, tensor in own.items()}
    about = {"epoch": 310, "arch": "lvvit_s", "args": ARGS, "metric": 83.3, "optimizer": {"state": {}}}
    contents: dict[str, Any] = {
        "plain": own,
        "state_dict": about | {"state_dict": own},
        "ema": about | {"state_dict": zeros, "state_dict_ema": own},
        "model": {"model": own, "scaler": None},
        "module": {"state_dict": parallel},
    }
    torch.save(contents[wrapping], path, _use_new_zipfile_serialization=not legacy)
    found = read_checkpoint(path)
    assert list(found) == list(own)
    assert all(torch.equal(found[name], own[name]) for name in own)
    other = make_host("lv", seed=5)
    put_checkpoint_(other, found, str(path))
    assert all(torch.equal(tensor, own[name]) for name, tensor in other.state_dict().items())


class Bomb:
    """Leaves a folder behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def test_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("model.pth.tar")
    own = make_host().state_dict()
    for content in ({"state_dict": own, "x": Bomb()}, Bomb(), make_host()):
        torch.save(content, path)
        with pytest.raises(ps.CheckpointError, match=r"more than tensors in it \(.*refused") as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ps.CheckpointError, match="refused"):
        read_checkpoint(path)
    assert not Path("exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert Path("exploded").exists()  # the bomb is real


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02rubbish", "not a readable checkpoint"),
        (b"PK\x03\x04rubbish", "not a readable checkpoint"),
        (torch.zeros(3), "holds no weights"),
        ({"epoch": 3}, "holds no weights"),
        ({"state_dict": {}}, "holds no weights"),
    ],
)
def test_what_holds_no_weights_is_told(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ps.CheckpointError, match=words) as caught:
        read_checkpoint(path)
    assert str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    ("asked", "given", "words"),
    [
        ("t2t_vit_10", "t2t_vit_7", "it is a checkpoint of t2t_vit_7, not of t2t_vit_10"),
        ("t2t_vit_14", "t2t_vit_t_14", "it is a checkpoint of t2t_vit_t_14, not of t2t_vit_14"),
        ("lvvit_s_cls", "lvvit_t", "it is a checkpoint of lvvit_t, not of lvvit_s_cls"),
        ("deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "checkpoint of deit_tiny_distilled_patch16_224"),
        ("t2t_vit_7", "t2t_vit_7 384", r"images of 384×384 pixels \(--img-size 384\)"),
        ("deit_tiny_patch16_224", "vit_tiny_patch16_384", r"images of 384×384 pixels \(--img-size 384\)"),
        ("t2t_vit_7", "resnet18", "is it for another model"),
    ],
)
def test_another_variant_is_named(asked: str, given: str, words: str) -> None:
    name, *size = given.split()
    with torch.device("meta"):  # shapes are all that is read
        model = timm.create_model(asked)
        weights = timm.create_model(name, **({"img_size": int(size[0])} if size else {})).state_dict()
    with pytest.raises(ps.CheckpointError, match=words):
        put_checkpoint_(model, weights, "weights.pth.tar")


def test_the_command_line_takes_and_refuses(run: Run, tmp_path: Path) -> None:
    model = timm.create_model("t2t_vit_7", img_size=32, num_classes=3)
    torch.save({"state_dict_ema": model.state_dict(), "args": ARGS}, tmp_path / "71.7_T2T_ViT_7.pth.tar")
    words = ("--checkpoint", "71.7_T2T_ViT_7.pth.tar", "--img-size", "32", "--json")
    code, out, err = run("inspect", "t2t_vit_7", *words)
    assert code == 0, err
    assert '"classes": 3' in out
    refused(run("inspect", "t2t_vit_10", *words), "checkpoint of t2t_vit_7")
    refused(run("inspect", "t2t_vit_7", *words[:2]), "--img-size 32")
    torch.save(model, tmp_path / "whole.pth")
    refused(run("inspect", "t2t_vit_7", "--checkpoint", "whole.pth"), "more than tensors")
    refused(run("inspect", "t2t_vit_7", "--img-size", "40"), "multiples of 16")
    refused(run("inspect", "lvvit_t", "--checkpoint", "nowhere.pth"), "no checkpoint at nowhere.pth")


def test_safetensors_are_read_as_ever(tmp_path: Path) -> None:
    model = T2TViT(img_size=32, depth=1, embed_dim=12, num_heads=2, token_dim=4)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    assert set(read_checkpoint(tmp_path / "a.safetensors")) == set(model.state_dict())


def test_positions_of_another_form_are_told() -> None:
    model = timm.create_model("test_vit", img_size=64)
    weights = model.state_dict()
    weights["pos_embed"] = weights["pos_embed"].flatten()
    with pytest.raises(ps.CheckpointError, match="pos_embed has shape"):
        put_checkpoint_(model, weights, "mine")
