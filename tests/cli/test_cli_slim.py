"""`patchslim slim` from a user's side: the run it leaves, other ways and budgets, and folders that hold something."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import patchslim as ps
from commands import ON_CPU, QUICK, SMALL, Run, call, image_folder, refused, result
from patchslim.errors import PatchslimError
from patchslim.methods.base import METHODS
from patchslim.steps import packed

DIGITS = ("digits_vit", "--pretrained", *ON_CPU, "--images", "16", "--batch-size", "8")


def test_the_speed_here_is_told_unless_it_is_not_asked_for(run: Run) -> None:
    code, out, err = run(*QUICK, "--out", "a")
    assert code == 0, err
    assert out.splitlines()[2].startswith("expected here: ")
    assert out.splitlines()[2].endswith("× as fast as the host (cpu, batch 8, float32, eager)")
    quiet = result(run, *QUICK, "--out", "b", "--no-timing")
    assert not {"expected_speedup", "timing"} & quiet.keys()
    timed = result(run, *QUICK, "--out", "a", "--resume")  # as it was found out then
    assert f"expected here: {timed['expected_speedup']:.2f}× as" in out
    assert (timed["timing"]["batch_size"], timed["timing"]["device"]) == (8, "cpu")


def test_from_a_model_to_a_measured_run(run: Run, tmp_path: Path) -> None:
    slimmed = result(run, "slim", *DIGITS, "--target-macs", "0.5", "--method", "drop", "--out", "a")
    assert slimmed.keys() >= {"run", "method", "macs_ratio", "patches_per_block", "seconds", "peak_memory_gib"}
    assert (slimmed["run"], slimmed["method"]) == ("a", "drop")
    assert 0.48 < slimmed["macs_ratio"] <= 0.5
    host: Any = timm.create_model("digits_vit", pretrained=True).eval()
    slim: Any = ps.load(tmp_path / "a")
    assert slimmed["macs"] == ps.count_macs(slim) == round(slimmed["macs_ratio"] * ps.count_macs(host))
    images = torch.cat([pixels for pixels, _ in ps.open_images("digits", model=host, limit=3).batches(3)])
    # Against the host with attention masked, from the same plan.
    assert torch.allclose(slim(images), ps.masked_logits(host, slim.plan, images), atol=1e-4)
    assert slimmed["patches_per_block"] == [len(kept) for kept in slim.plan.kept]

    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"config.json", "manifest.json", "plan.json", "model.safetensors", "metrics.json", "log.jsonl"}
    assert {"run": "a"} | json.loads((tmp_path / "a" / "metrics.json").read_text()) == slimmed
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["method"], config["settings"], config["target"]["macs"]) == ("drop", {}, 0.5)
    assert (config["search"]["seed"], config["images"]["count"], config["source"]) == (0, 16, "digits")
    assert {"patchslim", "torch", "timm", "python"} <= config["versions"].keys()
    for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines():
        assert "event" in json.loads(line)

    found = result(run, "eval", "a", *ON_CPU, "--limit", "60")
    assert (found["images"], found["macs"], found["image_macs"]) == (60, slimmed["macs"], None)
    speed = result(run, "bench", "a", "--batch-size", "2", "--seconds", "0.05", "--device", "cpu")
    assert speed["ideal_speedup"] == pytest.approx(1 / slimmed["macs_ratio"])


@pytest.mark.parametrize("method", sorted(name for name, own in METHODS.items() if own.plans))
def test_every_method_makes_a_run_that_runs(run: Run, tmp_path: Path, method: str) -> None:
    quick = {"epochs": 1, "tune_epochs": 0, "step": 4}
    known = ps.methods.settings_of(method).keys() - ps.methods.make(method).idle.keys()
    own = [f"{key}={value}" for key, value in quick.items() if key in known]
    words = [word for setting in own for word in ("--set", setting)]
    slimmed = result(run, "slim", *SMALL, "--target-macs", "0.7", "--method", method, *words, "--out", "a")
    assert (slimmed["method"], slimmed["macs_ratio"] <= 0.7) == (method, True)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["settings"] == vars(ps.methods.make(method, dict(word.split("=") for word in own)))
    slim: Any = ps.load(tmp_path / "a")
    assert (slim.plan.method, slim.plan.counts) == (method, tuple(slimmed["patches_per_block"]))
    with torch.no_grad():
        assert torch.isfinite(slim(torch.randn(2, 3, 64, 64))).all()


def test_a_method_without_plans_is_told_before_it_works(run: Run, tmp_path: Path) -> None:
    refused(run("slim", *SMALL, "--method", "vtp", "--set", "epochs=100000"), "measure it with `patchslim compare`")
    assert not list(tmp_path.iterdir())


def test_images_of_a_threshold_take_different_macs(run: Run, tmp_path: Path) -> None:
    """And the fallback of packed attention is told in one line, not one for each block and batch."""
    packed.say_once.cache_clear()
    words = ("--target-macs", "0.6", "--method", "predict", "--set", "threshold=true", "--set", "epochs=3")
    code, out, err = run("slim", *DIGITS, *words, "--out", "a", "--json")
    assert code == 0
    assert json.loads(out)["macs_ratio"] <= 0.6
    assert (tmp_path / "a" / "steps.safetensors").exists()
    found = result(run, "eval", "a", *ON_CPU, "--limit", "60")
    assert found["image_macs"]["p5"] < found["image_macs"]["mean"] < found["image_macs"]["p95"]
    assert found["macs"] == round(found["image_macs"]["mean"])
    assert [line for line in err.splitlines() if "packed attention" in line] == [
        "There is no packed attention for float32 on cpu, so images attend one after the other; results are the same."
    ]
    assert "(5th percentile) to" in run("eval", "a", *ON_CPU, "--limit", "4")[1]
    refused(run("bench", "a", "--device", "cpu"), "give some with --data")
    refused(run("bench", "a", "--data", "digits", "--device", "cpu", "--compile"), "can't be compiled")
    speed = result(run, "bench", "a", *ON_CPU, "--batch-size", "2", "--seconds", "0.05")
    assert speed["ideal_speedup"] > 1.3
    refused(run("export", "a", "--format", "torch-export"), "threshold")


def test_a_tolerance_is_kept_and_a_generous_ratio_is_told(run: Run) -> None:
    found = result(run, "slim", *SMALL, "--method", "cover", "--tolerance", "0.001", "--out", "a")
    assert found["errors"]["readout"] <= found["tolerance"] == 0.001
    usual = result(run, "slim", *SMALL, "--method", "ps", "--set", "tune_epochs=0", "--out", "b")
    assert max(usual["errors"].values()) <= usual["tolerance"] == 0.01
    code, out, err = run(*QUICK, "--target-macs", "0.999", "--out", "c")
    assert code == 0
    assert "No plan needs more than 0.8" in " ".join(err.split())
    assert out.splitlines()[0].startswith("c: 0.00")
    assert out.splitlines()[1] == "patches per block: 16, 16, 16, 16, 16, 0"


def test_a_readout_of_its_own(run: Run) -> None:
    assert result(run, "inspect", "test_vit", "--img-size", "64", "--readout", "avg")["readout"] == "mean"
    assert result(run, *QUICK, "--readout", "avg", "--out", "a")["patches_per_block"][-1] > 0
    assert result(run, "inspect", "a")["readout"] == "mean"


def test_a_method_says_how_many_images_are_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where images choose and there is a GPU, more of them."""
    limits: list[int] = []

    def opened(*args: object, limit: int, **others: object) -> None:
        limits.append(limit)
        raise PatchslimError("That is all this test wants to know.")

    monkeypatch.setattr("patchslim.data.open_images", opened)
    monkeypatch.chdir(tmp_path)
    unsaid = ("slim", "test_vit", "--img-size", "64", "--data", "digits")
    for device, method in (("cuda", "merge"), ("cuda", "predict"), ("cuda", "drop"), ("cpu", "merge")):
        monkeypatch.setattr("patchslim.cli.opening.open_device", lambda name, device=device: torch.device(device))
        assert call(*unsaid, "--method", method) == call(*unsaid, "--method", method, "--images", "8") == 2
    assert limits == [1024, 8, 1024, 8, 256, 8, 256, 8]
    assert not list(tmp_path.iterdir())


def test_some_bad_images_are_counted(run: Run, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", 6)
    (folder / "broken.jpg").write_bytes(b"broken")
    words = [word if word != "digits" else "images" for word in QUICK]
    code, out, err = run(*words, "--out", "a", "--json")
    assert code == 0
    assert json.loads(out)["skipped_images"] == 1
    assert "1 of 7 images could not be read" in err
    assert "weights are random" in err


def test_weights_without_any_error_end_the_search(run: Run, tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(value) for name, value in timm.create_model("digits_vit").state_dict().items()}
    save_file(zeros, tmp_path / "zeros.safetensors")
    own = ("--images", "4", "--checkpoint", "zeros.safetensors", "--target-macs", "0.5")
    for method in ("drop", "merge"):
        assert (
            0.45
            < result(run, "slim", "digits_vit", *ON_CPU, *own, "--method", method, "--out", method)["macs_ratio"]
            <= 0.5
        )
