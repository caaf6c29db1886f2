"""Options that would do nothing are refused, and names that are none lead to those that are."""

from pathlib import Path

import pytest

from commands import ON_CPU, QUICK, SMALL, Run, refused
from hf_small import make_hf
from patchslim.cli.opening import near


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (*QUICK, "--dtype", "bfloat16", "--no-timing"),
            "--dtype would do nothing, because nothing is timed with --no-timing",
        ),
        (("finetune", "a", "--data", "digits", "--epochs", "0", "--patience", "3"), "--patience would do nothing"),
        (("finetune", "a", "--data", "digits", "--classes", "a,b"), "--classes would do nothing"),
        (
            ("compare", *SMALL, "--val", "digits", "--methods", "all", "--target-macs", "0.7", "--train-images", "9"),
            "--train-images would do nothing, because nothing is recovered without --recover; leave it out",
        ),
        (
            ("export", "a", "--format", "onnx", "--images", "9", "--seed", "1"),
            "--images and --seed would do nothing, because without --data there is only noise",
        ),
        (("bench", "a", "--all", "--mode", "eager", "--compile"), "--mode and --compile would do nothing"),
    ],
)
def test_options_that_would_do_nothing(run: Run, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    refused(run(*words), told)
    assert not list(tmp_path.iterdir())


def test_weights_for_a_model_that_brings_its_own(run: Run, tmp_path: Path) -> None:
    make_hf("Dinov2ForImageClassification").save_pretrained(tmp_path / "net")
    told = "net is a Hugging Face model and brings its own weights; leave out --pretrained"
    refused(run("slim", "net", "--pretrained", *ON_CPU, "--target-macs", "0.7"), told)
    refused(run("eval", "net", "--pretrained", *ON_CPU), told)


def test_runs_where_models_belong(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    told = "a is a run already; give the model that it was made from."
    refused(run("slim", "a", *ON_CPU, "--target-macs", "0.7"), told)
    more = ("--val", "digits", "--methods", "drop", "--target-macs", "0.7")
    refused(run("compare", "a", *ON_CPU, *more), told)
    for name in ("", " "):
        refused(run("slim", name, *ON_CPU), "The model's name is empty")
    (tmp_path / "weights.pth").touch()
    refused(run("inspect", "weights.pth"), "weights.pth is a file; give a timm model name or a run folder")
    refused(run("inspect", "facebook/dinov2-small"), "give hf:facebook/dinov2-small.")
    refused(run("inspect", "DeiT-Tiny"), "did you mean deit_tiny_distilled_patch16_224 or deit_tiny_patch16_224?")


def test_folders_of_runs_and_pages_that_are_folders(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(*QUICK, "--out", f"both/{name}")[0] == 0
    for words in (("eval", "both", *ON_CPU), ("report", "both"), ("inspect", "both")):
        refused(run(*words), "both holds several runs; give one of them: both/a, both/b.")
    told = "A file can't be read or written (Is a directory: {}); check the path"
    for command, out in (("report", "x.html"), ("view", "x.png")):
        (tmp_path / out).mkdir()
        words = (command, "both/a", *(("--image", "digits") if command == "view" else ()), "--out")
        refused(run(*words, out), told.format(out))
        refused(run(*words, "both/a/model.safetensors"), f"ends in {Path(out).suffix}, and")


def test_names_that_are_near() -> None:
    known = ["deit_small", "deit_tiny_patch16", "deit_tiny_patch32", "resnet50", "vit_tiny"]
    assert near("timm/DeiT-Tiny", known) == ["deit_tiny_patch16", "deit_tiny_patch32"]
    assert near("diet_small", known) == ["deit_small"]
    assert near("swin", known) == near("", known) == []
