"""T2T-ViT and LV-ViT on the command line, by timm names, from an official-looking checkpoint to a recovered run."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import build_model_with_cfg, register_model
from torch import nn

from commands import Run
from small import make_host

SETTINGS: dict[str, Any] = {"img_size": 32, "embed_dim": 24, "depth": 3, "num_heads": 3, "mlp_ratio": 2}


def small_t2t_for_tests(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _make("t2t", "small_t2t_for_tests", settings | {"token_dim": 8, "splits": ((3, 2, 1),) * 3})


def small_lv_for_tests(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _make("lv", "small_lv_for_tests", settings | {"patch_size": 8, "stem_width": 8, "skip_lam": 2.0})


def _make(kind: str, name: str, settings: dict[str, Any]) -> nn.Module:
    made: nn.Module = build_model_with_cfg(type(make_host(kind)), name, False, **SETTINGS | settings)
    return made


@pytest.fixture(params=[small_t2t_for_tests, small_lv_for_tests])
def name(request: pytest.FixtureRequest) -> str:
    """A small model that timm makes by name."""
    if not timm.is_model(request.param.__name__):
        register_model(request.param)
    return str(request.param.__name__)


@pytest.mark.filterwarnings("ignore:There is no packed attention")
def test_from_a_checkpoint_to_a_recovered_run(run: Run, name: str, tmp_path: Path) -> None:
    model = timm.create_model(name, num_classes=10)
    torch.save({"state_dict_ema": model.state_dict(), "epoch": 3}, tmp_path / "official.pth.tar")
    given = (name, "--checkpoint", "official.pth.tar")

    def result(*words: str) -> dict[str, Any]:
        code, out, err = run(*words, "--json")
        assert code == 0, err
        return dict(json.loads(out))

    info = result("inspect", *given)
    assert (info["patches"], info["classes"], info["model"]) == (16, 10, name)
    assert info["readout"] == ("class+auxiliary" if "lv" in name else "class")
    on_cpu = ("--data", "digits", "--device", "cpu")
    few, budget = ("--images", "8", "--batch-size", "8"), info["reachable_macs_ratio"]
    ratio = ("--target-macs", str(0.4 * budget[0] + 0.6 * budget[1]))
    slimmed = result("slim", *given, *on_cpu, *few, *ratio, "--out", "merge")
    assert slimmed["macs"] <= float(ratio[1]) * info["macs"]
    threshold = ("--method", "predict", "--set", "threshold=true", "--set", "epochs=2")
    result("slim", *given, *on_cpu, *few, *ratio, *threshold, "--out", "threshold")
    result("slim", *given, *on_cpu, *few, *ratio, "--method", "drop", "--out", "drop")
    for made in ("merge", "drop", "threshold"):
        assert result("eval", made, *on_cpu, "--limit", "8")["images"] == 8
    speed = result("bench", "merge", "--batch-size", "1", "--seconds", "0.05", "--mode", "eager", "--device", "cpu")
    assert speed["ideal_speedup"] == pytest.approx(info["macs"] / slimmed["macs"])
    learnt = ("--epochs", "1", "--supervised-epochs", "1", "--images", "8", "--batch-size", "4")
    recovered = result("finetune", "merge", *on_cpu, *learnt, "--teacher", "official.pth.tar")
    assert [stage["stage"] for stage in recovered["stages"]] == ["blocks", "distillation", "supervised"]
