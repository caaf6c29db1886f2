"""`patchslim eval`: one model or two on the same images, and the difference between them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import patchslim as ps
from commands import ON_CPU, call, image_folder
from patchslim.data import Images, open_images
from patchslim.measure import paired
from patchslim.runs.store import load

SLIM = ("slim", "digits_vit", "--pretrained", *ON_CPU, "--images", "8", "--method", "uniform", "--target-macs", "0.2")
ON = (*ON_CPU, "--limit", "120")


def result(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON object of `eval`."""
    assert call("eval", *words, *ON, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence with which `eval` ends, after nothing on standard output."""
    assert call("eval", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that makes mistakes its host does not."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    assert call(*SLIM, "--out", str(folder)) == 0
    return str(folder)


@pytest.fixture
def other_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digits model that wants its images normalised in another way."""
    make = timm.create_model

    def create(name: str, **settings: Any) -> Any:
        return make(name, **settings, pretrained_cfg_overlay={"mean": (0.1, 0.2, 0.3)})

    monkeypatch.setattr(timm, "create_model", create)


def hits(model: torch.nn.Module, images: Images) -> torch.Tensor:
    """Which images are right, by the model's largest output."""
    with torch.inference_mode():
        return torch.cat([model(pixels).argmax(dim=1) == labels for pixels, labels in images.batches(40)])


def test_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """On all held-out digits, against the model's largest output."""
    assert call("eval", "digits_vit", "--pretrained", *ON_CPU, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= {"top1", "top5", "images", "macs", "macs_ratio"}
    host = timm.create_model("digits_vit", pretrained=True).eval()
    right = hits(host, open_images("digits:test", model=host))
    assert found["top1"] == pytest.approx(100 * float(right.double().mean()))
    assert (found["images"], found["macs_ratio"], len(right)) == (500, 1, 500)
    assert found["macs"] == ps.count_macs(host)
    assert found["top1"] > 98


def test_a_run_against_its_host(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, run, "digits_vit", "--pretrained")
    alone, host = result(capsys, run), result(capsys, "digits_vit", "--pretrained")
    assert found.pop("against") == host
    difference = found.pop("paired")
    assert found == alone
    assert difference["difference"] == pytest.approx(alone["top1"] - host["top1"])
    assert difference["low"] < difference["difference"] < difference["high"]
    assert difference["only_second"] > 0
    assert difference["images"] == 120
    swapped = result(capsys, "digits_vit", run, "--pretrained")["paired"]
    assert (swapped["low"], swapped["high"]) == (-difference["high"], -difference["low"])
    assert swapped["p_value"] == difference["p_value"]


def test_text_for_people(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("eval", run, run, *ON) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{run}: top-1 ") for line in lines[:2])
    assert lines[2].startswith("first minus second: +0.00 points of top-1, 95 % interval -3.10 to +3.10;")


def test_options_go_to_each_timm_name(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "digits_vit", "digits_vit", "--pretrained")
    assert found["top1"] == found["against"]["top1"] > 98
    assert found["paired"]["p_value"] == 1
    untrained = timm.create_model("digits_vit")
    save_file(untrained.state_dict(), tmp_path / "mine.safetensors")
    found = result(capsys, run, "digits_vit", "--checkpoint", str(tmp_path / "mine.safetensors"))
    assert found["against"]["top1"] < found["top1"]
    assert found["paired"]["p_value"] < 0.01


@pytest.mark.usefixtures("other_mean")
def test_each_model_sees_its_own_transform(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, run, "digits_vit", "--pretrained")
    assert found["top1"] == result(capsys, run)["top1"]
    assert found["against"]["top1"] == result(capsys, "digits_vit", "--pretrained")["top1"]
    host = timm.create_model("digits_vit", pretrained=True).eval()
    models = [load(run), host]
    right = [hits(model, open_images("digits", model=model, limit=120, split="test")) for model in models]
    expected = paired(*right)
    assert (found["paired"]["only_first"], found["paired"]["only_second"]) == (
        expected.only_first,
        expected.only_second,
    )


def class_folders(folder: Path) -> None:
    """Two classes of pictures, one of which can't be read."""
    for i in range(12):
        (folder / str(i % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (i * 20, 90, 10)).save(folder / str(i % 2) / f"{i}.png")
    (folder / "0" / "4.png").write_bytes(b"broken")


@pytest.mark.usefixtures("other_mean")
def test_unreadable_images_are_left_out_for_both(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(tmp_path / "images")
    words = (run, "digits_vit", "--pretrained", "--data", str(tmp_path / "images"), "--batch-size", "3", "--json")
    assert call("eval", *words) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["skipped"] == found["against"]["skipped"] == 1
    assert found["images"] == found["against"]["images"] == found["paired"]["images"] == 11
    assert "1 of 12 images could not be read" in captured.err


def test_what_cant_be_compared(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = refused(capsys, run, "deit_tiny_patch16_224", *ON)
    assert "takes images of 32×32 pixels, deit_tiny_patch16_224 images of 224×224 pixels" in words
    three = timm.create_model("digits_vit", num_classes=3)
    save_file(three.state_dict(), tmp_path / "three.safetensors")
    words = refused(capsys, run, "digits_vit", "--checkpoint", str(tmp_path / "three.safetensors"), *ON)
    assert "has 10 classes, digits_vit 3 classes" in words
    assert "leave out --pretrained" in refused(capsys, run, run, "--pretrained", *ON)
    assert "no timm model called nowhere" in refused(capsys, run, "nowhere", *ON)
    assert "extra argument" in refused(capsys, run, run, run, *ON)
    assert "name is empty" in refused(capsys, run, "", *ON)
    shutil.copytree(run, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "plan.json").unlink()
    assert "not finished" in refused(capsys, run, str(tmp_path / "unfinished"), *ON)


def test_labels_that_fit_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    image_folder(tmp_path / "flat")
    image_folder(tmp_path / "classes" / "12")
    assert "flat has no labels" in refused(capsys, "digits_vit", "--data", "flat")
    assert "label 12" in refused(capsys, "digits_vit", "--data", "classes", "--classes", "numbers")
    assert "doesn't exist" in refused(capsys, "digits_vit", "--data", "nowhere")
    assert "holds no run" in refused(capsys, "flat", "--data", "flat")
    assert "did you mean deit_tiny_patch16_224?" in refused(capsys, "deit_tiny_patch16_225", "--data", "flat")
    assert "ResNet can't be slimmed" in refused(capsys, "resnet18", "--data", "flat")


def test_numbered_class_folders_are_ranks_unless_classes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = open_images("digits:test", limit=40)
    for index, digit in enumerate(digits.labels):
        folder = tmp_path / str(digit + 1)
        folder.mkdir(exist_ok=True)
        pixels = digits.picture(index).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{index}.png")
    model = ("digits_vit", "--pretrained", "--data", str(tmp_path), "--device", "cpu")
    assert call("eval", *model, "--json") == 0
    ranks = capsys.readouterr()
    assert json.loads(ranks.out)["top1"] > 90
    assert "class folders are numbers: 1 … 10 are read as labels 0 … 9" in ranks.err
    (tmp_path / "names").write_text("\n".join(map(str, [10, *range(1, 10)])))  # everyone the next digit's label
    assert call("eval", *model, "--classes", str(tmp_path / "names"), "--json") == 0
    named = capsys.readouterr()
    assert json.loads(named.out)["top1"] < 20
    assert "numbers" not in named.err
    assert "label 10, but the model has only 10 outputs" in refused(capsys, *model, "--classes", "numbers")
    assert "none of the 2 classes" in refused(capsys, *model, "--classes", "cat,dog")
