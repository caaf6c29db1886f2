"""Hugging Face folders on the command line: from a folder to a recovered and exported run."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import ON_CPU, Run
from hf_small import make_hf
from patchslim.cli.opening import default_folder


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A folder as the hub's are."""
    make_hf("Dinov2ForImageClassification").save_pretrained(tmp_path / "net")
    images = {"do_center_crop": True, "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    (tmp_path / "net" / "preprocessor_config.json").write_text(json.dumps(images))
    return "net"


@pytest.mark.filterwarnings("ignore:There is no packed attention")
def test_from_a_folder_to_a_recovered_run(run: Run, net: str) -> None:
    def result(*words: str) -> dict[str, Any]:
        code, out, err = run(*words, "--json")
        assert code == 0, err
        assert "weights are random" not in err
        return dict(json.loads(out))

    info = result("inspect", net)
    assert (info["readout"], info["patches"], info["classes"], info["model"]) == ("class+mean", 16, 10, "net")
    few, ratio = ("--images", "8", "--batch-size", "8"), ("--target-macs", "0.7")
    slimmed = result("slim", net, *ON_CPU, *few, *ratio)
    assert slimmed["run"] == "runs/net"
    assert slimmed["macs"] <= 0.7 * info["macs"]
    ways = {
        "drop": ("--method", "drop"),
        "threshold": ("--method", "predict", "--set", "threshold=true", "--set", "epochs=2"),
    }
    for name, words in ways.items():
        result("slim", net, *ON_CPU, *few, *ratio, *words, "--out", name)
    for name in (net, "runs/net", *ways):
        assert result("eval", name, *ON_CPU, "--limit", "8")["images"] == 8
    assert "paired" in result("eval", "runs/net", net, *ON_CPU, "--limit", "8")
    speed = result("bench", "runs/net", "--batch-size", "1", "--seconds", "0.05", "--mode", "eager", "--device", "cpu")
    assert speed["ideal_speedup"] == pytest.approx(info["macs"] / slimmed["macs"])
    learnt = ("--epochs", "1", "--supervised-epochs", "1", "--images", "8", "--batch-size", "4")
    recovered = result("finetune", "runs/net", *ON_CPU, *learnt)
    assert [stage["stage"] for stage in recovered["stages"]] == ["blocks", "distillation", "supervised"]
    exported = result("export", "runs/net", "--format", "torch-export")
    assert exported["fp32"]["agreement"] == 100


def test_a_folder_is_named_by_the_last_word(net: str, tmp_path: Path) -> None:
    """Relative to where the command runs, so that a model's own folder is never written to."""
    names = {"deit_tiny_patch16_224": "deit_tiny_patch16_224", "hf:facebook/dinov2-small": "dinov2-small"}
    for model, name in {**names, str(tmp_path / net): net, str(tmp_path / net / ".." / net): net}.items():
        assert default_folder("comparisons", model) == Path("comparisons") / name


def test_bad_requests_are_told(run: Run, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(told: str, *words: str) -> None:
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert told in " ".join(err.split())

    refused("brings its own weights", "inspect", net, "--checkpoint", "some.pth")
    refused("holds a Hugging Face model and no run", "bench", net)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("can't be had from the Hugging Face hub", "inspect", "hf:nobody/nothing")
    refused("can't be had from the Hugging Face hub", "slim", "hf:nobody/nothing", *ON_CPU)
    assert not Path("runs").exists()
