"""`patchslim inspect`: what a model is made of, and whether it can be slimmed."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import patchslim as ps
from commands import QUICK, Run, refused, result


def test_a_timm_model(run: Run) -> None:
    found = result(run, "inspect", "deit_tiny_patch16_224")
    assert (found["depth"], found["patches"], found["readout"], found["macs"]) == (12, 196, "class", 1253683200)
    assert (found["supported"], found["grid"], found["parameters"]) == (True, [14, 14], 5717416)
    low, _ = found["reachable_macs_ratio"]
    with pytest.raises(ps.BudgetError, match=f"anything from {low:.3f} to"):
        ps.slim(timm.create_model("deit_tiny_patch16_224"), torch.zeros(1, 3, 224, 224), macs=low - 0.001)
    assert result(run, "inspect", "deit_tiny_patch16_224", "--img-size", "384")["patches"] == 576
    lines = run("inspect", "digits_vit")[1].splitlines()
    assert [line.split()[-1] for line in lines if line.split()[0] in ("readout", "classes")] == ["class", "10"]


def test_a_checkpoint_brings_its_own_number_of_classes(run: Run, tmp_path: Path) -> None:
    save_file(timm.create_model("digits_vit", num_classes=3).state_dict(), tmp_path / "mine.safetensors")
    assert result(run, "inspect", "digits_vit", "--checkpoint", "mine.safetensors")["classes"] == 3


def test_a_run_tells_of_its_host_and_brings_its_own_model(run: Run) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    host = result(run, "inspect", "test_vit", "--img-size", "64")
    assert result(run, "inspect", "a") == host
    refused(run("inspect", "a", "--img-size", "64"), "leave out --img-size")
    refused(run("inspect", "a", "--readout", "avg"), "leave out --readout")
    refused(run("eval", "a", "--data", "digits", "--pretrained", "--img-size", "64"), "--pretrained, --img-size")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("swin_tiny_patch4_window7_224", "SwinTransformer"),
        ("deit_tiny_patch16_225", "did you mean deit_tiny_patch16_224?"),
        ("qqqqqqqqq", "timm.list_models() has the names"),
        ("", "The model's name is empty"),
        ("empty", "empty is a folder but holds no run and no Hugging Face model"),
    ],
)
def test_models_that_cant_be_slimmed_are_told(run: Run, tmp_path: Path, model: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    refused(run("inspect", model, "--json"), told)
