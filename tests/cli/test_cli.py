"""The command line from a user's side: results on standard output, one sentence and exit code 2 on mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import patchslim as ps
from commands import Run, image_folder, refused
from patchslim.search.greedy import Greedy
from patchslim.search.topdown import TopDown

DIGITS = ("digits_vit", "--pretrained", "--data", "digits", "--images", "24", "--batch-size", "8", "--device", "cpu")
QUICK = ("--target-macs", "0.5", "--removed", "drop", "--step", "8", "--tune-epochs", "0")


def test_slim_eval_bench(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("slim", *DIGITS, *QUICK, "--out", "a", "--json")
    slimmed = json.loads(out)
    assert code == 0
    assert slimmed["macs_ratio"] <= 0.5
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"config.json", "plan.json", "model.safetensors", "metrics.json", "log.jsonl"}
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["settings"]["target_macs"] == 0.5
    assert config["settings"]["seed"] == 0
    assert config["images"]["count"] == 24
    assert config["source"] == "digits"
    assert {"patchslim", "torch", "timm", "python"} <= config["versions"].keys()
    for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines():
        assert "event" in json.loads(line)

    code, out, _ = run("eval", "a", "--data", "digits", "--limit", "100", "--json", "--device", "cpu")
    found = json.loads(out)
    assert found.keys() >= {"top1", "top5", "images", "macs", "macs_ratio"}
    assert found["images"] == 100
    assert found["macs"] == slimmed["macs"]

    code, out, _ = run("eval", "digits_vit", "--pretrained", "--data", "digits", "--json", "--device", "cpu")
    base = json.loads(out)
    assert base["images"] == 500
    assert base["macs_ratio"] == 1
    assert base["top1"] > 98

    code, out, _ = run("bench", "a", "--batch-size", "2", "--seconds", "0.1", "--json", "--device", "cpu")
    speed = json.loads(out)
    assert speed.keys() >= {"throughput", "baseline_throughput", "speedup", "ideal_speedup"}
    assert speed["ideal_speedup"] == pytest.approx(1 / slimmed["macs_ratio"])
    assert speed["speedup"] == pytest.approx(speed["throughput"] / speed["baseline_throughput"])


def test_text_output_for_people(run: Run) -> None:
    code, out, _ = run("slim", *DIGITS, *QUICK, "--out", "a")
    assert code == 0
    assert "patches per block" in out
    code, out, _ = run("inspect", "a")
    assert code == 0
    assert "readout  class" in out


def test_resume_and_folders_that_hold_something(run: Run, tmp_path: Path) -> None:
    command = ("slim", *DIGITS, *QUICK, "--out", "a")
    assert run(*command)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    refused(run(*command), "already holds a run")
    code, out, _ = run(*command, "--resume", "--json")
    assert code == 0
    assert json.loads(out)["macs_ratio"] <= 0.5
    moved = [word if word != "digits" else "digits:train" for word in command]
    assert run(*moved, "--resume")[0] == 0  # the same images by another name
    refused(run(*command, "--resume", "--seed", "1"), "started with other settings (seed 0, now 1)")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    refused(run(*command[:-1], "b"), "not empty")
    refused(run(*command[:-1], "b", "--resume"), "holds no run")
    (tmp_path / "c").write_text("mine")
    refused(run(*command[:-1], "c"), "is a file")
    assert (tmp_path / "b" / "thesis.txt").read_text() == "mine"


def test_inspect(run: Run) -> None:
    code, out, _ = run("inspect", "deit_tiny_patch16_224", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["depth"], found["patches"], found["readout"], found["macs"]) == (12, 196, "class", 1253683200)
    code, out, _ = run("inspect", "deit_tiny_patch16_224", "--img-size", "384", "--json")
    assert json.loads(out)["patches"] == 576
    refused(run("inspect", "swin_tiny_patch4_window7_224", "--json"), "SwinTransformer")
    refused(run("inspect", "deit_tiny_patch16_225"), "did you mean deit_tiny_patch16_224?")


@pytest.mark.parametrize(
    ("data", "words"),
    [("nowhere", "nowhere"), ("empty", "empty"), ("fake.tar", "fake.tar"), ("hf:cifar10", "hf:cifar10")],
)
def test_bad_data_leaves_nothing_behind(run: Run, tmp_path: Path, data: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "fake.tar").write_text("no tar")
    refused(run("slim", "digits_vit", "--data", data, "--out", "a"), words)
    assert not (tmp_path / "a").exists()


def test_only_bad_images(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(3):
        (tmp_path / "images" / f"{i}.jpg").write_bytes(b"broken")
    refused(run("slim", "digits_vit", "--data", "images", "--out", "a"), "images")
    assert not (tmp_path / "a").exists()


def test_some_bad_images_are_counted(run: Run, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", 6)
    (folder / "broken.jpg").write_bytes(b"broken")
    code, out, err = run("slim", "digits_vit", "--data", "images", *QUICK, "--out", "a", "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["skipped_images"] == 1
    assert "1 of 7 images could not be read" in err
    assert "weights are random" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target-macs", "1.5"), "between 0 and 1"),
        (("--target-macs", "0.001"), "anything from"),
        (("--tolerance", "-1"), "tolerance"),
        (("--tolerance", "0.1", "--target-macs", "0.5"), "not both"),
        (("--score", "luck"), "--score"),
        (("--removed", "burn"), "--removed"),
        (("--select", "sometimes"), "--select"),
        (("--groups", "sometimes"), "--groups"),
        (("--groups", "own", "--removed", "drop"), "leave them out"),
        (("--removed", "merge", "--score", "attention"), "coverage, random, radial, uniform"),
        (("--images", "0"), "--images"),
        (("--device", "quantum"), "--device cpu"),
        (("--nonsense",), "--nonsense"),
        (("--tolerance", "inf"), "tolerance"),
        (("--learning-rate", "inf"), "learning_rate"),
        (("--seed", "99999999999999999999"), "--seed"),
        (("--device", "meta"), "--device cpu"),
        (("--img-size", "-5"), "--img-size"),
        (("--img-size", "2"), "smaller than one patch"),
        (("--checkpoint", "none.safetensors"), "none.safetensors"),
    ],
)
def test_bad_options(run: Run, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    refused(run("slim", "digits_vit", "--data", "digits", "--out", "a", *options), words)
    assert not (tmp_path / "a").exists()


def test_bad_checkpoints(run: Run, tmp_path: Path) -> None:
    good = timm.create_model("digits_vit").state_dict()
    files: dict[str, tuple[Any, str]] = {
        "keys": ({name: value for name, value in good.items() if "norm1" not in name}, "lacks"),
        "more": (good | {"extra": torch.zeros(1)}, "unknown extra"),
        "shapes": (good | {"pos_embed": torch.zeros(1, 17, 96)}, "shape"),
        "integers": ({name: value.int() for name, value in good.items()}, "floating-point"),
        "scalar": (good | {"head.weight": torch.zeros(())}, "shape"),
        "nan": (good | {"norm.bias": torch.full((96,), torch.nan)}, "NaN"),
    }
    for name, (weights, words) in files.items():
        save_file(weights, tmp_path / f"{name}.safetensors")
        checkpoint = ("--checkpoint", f"{name}.safetensors")
        refused(run("slim", "digits_vit", "--data", "digits", "--out", "a", *checkpoint), words)
        refused(run("eval", "digits_vit", "--data", "digits", *checkpoint), words)
    torch.save(timm.create_model("digits_vit"), tmp_path / "model.pth")
    refused(run("slim", "digits_vit", "--data", "digits", "--out", "a", "--checkpoint", "model.pth"), "pickle")
    assert not (tmp_path / "a").exists()


def test_a_checkpoint_brings_its_own_number_of_classes(run: Run, tmp_path: Path) -> None:
    save_file(timm.create_model("digits_vit", num_classes=3).state_dict(), tmp_path / "mine.safetensors")
    code, out, _ = run("inspect", "digits_vit", "--checkpoint", "mine.safetensors", "--json")
    assert code == 0
    assert json.loads(out)["classes"] == 3


def test_eval_needs_labels_that_fit(run: Run, tmp_path: Path) -> None:
    image_folder(tmp_path / "flat")
    refused(run("eval", "digits_vit", "--data", "flat"), "no labels")
    image_folder(tmp_path / "classes" / "12")
    refused(run("eval", "digits_vit", "--data", "classes"), "label 12")
    refused(run("eval", "nowhere", "--data", "flat"), "nowhere")
    refused(run("eval", "flat", "--data", "flat"), "holds no run")
    refused(run("bench", "nowhere"), "no run folder")
    refused(run("bench", "flat"), "holds no run")
    refused(run("inspect", ""), "empty")


@pytest.mark.parametrize("file", ["started.json", "model.safetensors", "plan.json"])
def test_a_full_disk_is_told_and_nothing_is_half_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """The disk fills up while one of the run's files is written: at the start, near the end, at the very end."""
    write_bytes, write_text = Path.write_bytes, Path.write_text

    def checked(write: Any) -> Any:
        def full(self: Path, *args: Any, **kwargs: Any) -> Any:
            if f".{file}." in self.name:
                write(self, args[0][:10])
                raise OSError(28, "No space left on device")
            return write(self, *args, **kwargs)

        return full

    command = ("slim", *DIGITS, *QUICK, "--out", "a")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", checked(write_bytes))
        patch.setattr(Path, "write_text", checked(write_text))
        refused(run(*command), "No space left on device")
    assert not list(tmp_path.rglob(f"*{file}*"))
    assert (tmp_path / "a").exists() == (file != "started.json")
    assert run(*command, "--resume")[0] == 0
    assert run("eval", "a", "--data", "digits", "--limit", "10")[0] == 0


def test_a_crash_after_the_plan_was_written_does_no_harm(run: Run, tmp_path: Path) -> None:
    command = ("slim", *DIGITS, *QUICK, "--out", "a")
    assert run(*command)[0] == 0
    (tmp_path / "a" / "search").mkdir()
    (tmp_path / "a" / "search" / "ledger.jsonl").write_text("")
    assert run("eval", "a", "--data", "digits", "--limit", "10")[0] == 0
    assert run(*command, "--resume")[0] == 0
    assert not (tmp_path / "a" / "search").exists()


def test_resume_does_not_trust_a_damaged_run(run: Run, tmp_path: Path) -> None:
    command = ("slim", *DIGITS, *QUICK, "--out", "a", "--resume")
    assert run(*command)[0] == 0
    for name in ("config.json", "plan.json", "model.safetensors", "metrics.json"):
        path = tmp_path / "a" / name
        whole = path.read_bytes()
        path.write_text("xx")
        refused(run(*command), "a")
        path.write_bytes(whole)
    (tmp_path / "a" / "config.json").unlink()
    refused(run(*command), "config")


def test_only_one_process_works_on_a_run(run: Run, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "a" / "search").mkdir(parents=True)
    with (tmp_path / "a" / "search" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(run("slim", *DIGITS, *QUICK, "--out", "a", "--resume"), "Another process")
    assert run("slim", *DIGITS, *QUICK, "--out", "a", "--resume")[0] == 0


def test_weights_without_any_error_end_the_search(run: Run, tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(value) for name, value in timm.create_model("digits_vit").state_dict().items()}
    save_file(zeros, tmp_path / "zeros.safetensors")
    options = ("--images", "4", "--checkpoint", "zeros.safetensors", "--device", "cpu", "--json")
    code, out, _ = run("slim", "digits_vit", "--data", "digits", *QUICK, *options)
    assert code == 0
    assert 0.48 < json.loads(out)["macs_ratio"] <= 0.5


def test_a_run_brings_its_own_model(run: Run) -> None:
    assert run("slim", *DIGITS, *QUICK, "--out", "a")[0] == 0
    refused(run("eval", "a", "--data", "digits", "--pretrained", "--img-size", "64"), "--pretrained, --img-size")
    refused(run("inspect", "a", "--img-size", "64"), "leave out --img-size")


@pytest.mark.parametrize("out", ["file/run", "x" * 300, "/proc/run", "dangling"])
def test_paths_that_cant_be_written(run: Run, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    code, shown, err = run("slim", *DIGITS, *QUICK, "--out", out)
    assert (code, shown) == (2, "")
    assert err.strip().splitlines()[-1].startswith("patchslim: ")


@pytest.mark.parametrize(("score", "search", "part"), [("impact", TopDown, "_decide"), ("effect", Greedy, "_stage")])
def test_ctrl_c_is_told_and_resumable(
    score: str, search: Any, part: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, calls = getattr(search, part), [0]

    def interrupted(self: Any, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return decide(self, *args)

    command = ("slim", *DIGITS, *QUICK, "--score", score, "--out", "a")
    with monkeypatch.context() as patch:
        patch.setattr(search, part, interrupted)
        refused(run(*command), "--resume")
    refused(run(*command), "already holds a run")
    refused(run("eval", "a", "--data", "digits"), "not finished")
    assert run(*command, "--resume")[0] == 0
    assert run(*command[:-1], "b")[0] == 0
    assert (tmp_path / "a" / "plan.json").read_bytes() == (tmp_path / "b" / "plan.json").read_bytes()


def test_help_and_version(run: Run) -> None:
    assert run("--version")[1].strip() == ps.__version__
    code, out, _ = run()
    assert code == 0
    assert len(out.splitlines()) > 10
    for command in ("demo", "inspect", "slim", "eval", "bench"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "--json" in out
