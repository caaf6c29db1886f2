"""What a user can get wrong with `patchslim slim`: one sentence, exit code 2, nothing half-written."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from commands import ON_CPU, QUICK, SMALL, Run, ended_by_ctrl_c, refused, result
from patchslim.cli import terminal
from sealing import resealed


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target-macs", "1.5"), "between 0 and 1"),
        (("--target-macs", "nan"), "between 0 and 1"),
        (("--target-macs", "half"), "'half' is not a MAC ratio, nor several with commas between"),
        (("--target-macs", ""), "'' is not a MAC ratio"),
        (("--target-macs", "0.001"), "can't be reached on test_vit by merge; anything from"),
        (("--target-macs", "0.6,0.001"), "can't be reached on test_vit by merge; anything from"),
        (("--target-macs", "0.001", "--method", "tome"), "ToMe takes at least"),
        (("--tolerance", "-1"), "tolerance"),
        (("--tolerance", "inf"), "tolerance"),
        (("--tolerance", "0.1", "--target-macs", "0.5"), "not both"),
        (("--target-speedup", "1"), "has to be a number above 1, not 1.0"),
        (("--target-speedup", "nan"), "has to be a number above 1"),
        (("--target-speedup", "fast"), "Invalid value for '--target-speedup'"),
        (("--target-speedup", "1.5", "--target-macs", "0.7,0.5"), "one of them, not both"),
        (("--target-speedup", "1.5", "--tolerance", "0.1"), "one of them, not both"),
        (("--target-speedup", "1.5", "--dtype", "int4"), "no dtype 'int4'"),
        (("--images", "0"), "--images"),
        (("--batch-size", "0"), "--batch-size"),
        (("--memory", "-1"), "--memory"),
        (("--memory", "nan"), "--memory"),
        (("--device", "quantum"), "--device cpu"),
        (("--device", "meta"), "--device cpu"),
        (("--device", "cuda:99"), "--device cpu"),
        (("--seed", "99999999999999999999"), "--seed"),
        (("--img-size", "-5"), "--img-size"),
        (("--img-size", "2"), "smaller than one patch"),
        (("--readout", "nothing"), "timm can't make test_vit with --img-size 64 and --readout nothing"),
        (("--checkpoint", "none.safetensors"), "none.safetensors"),
        (("--checkpoint", "none.safetensors", "--pretrained"), "not both"),
    ],
)
def test_bad_options(run: Run, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    refused(run("slim", *SMALL, *options, "--out", "a"), words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("nowhere", "nowhere"),
        ("empty", "empty"),
        ("fake.tar", "fake.tar"),
        ("hf:cifar10", "hf:cifar10"),
        ("bad", "bad"),
    ],
)
def test_bad_data_leaves_nothing_behind(run: Run, tmp_path: Path, data: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "fake.tar").write_text("no tar")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "0.jpg").write_bytes(b"broken")
    before = files(tmp_path)
    refused(run("slim", "test_vit", "--data", data, "--device", "cpu", "--out", "a"), words)
    assert files(tmp_path) == before
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("left", [False, True])
def test_a_folder_made_beforehand_outlives_a_failed_start(run: Run, tmp_path: Path, left: bool) -> None:
    """Also where a start was killed before it had found anything."""
    search = tmp_path / "a" / "search"
    search.mkdir(parents=True)
    if left:
        (search / "started.json").write_text('{"model": "another"}')
        (search / "lock").touch()
    else:
        search.rmdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "0.jpg").write_bytes(b"broken")
    refused(run("slim", "test_vit", "--data", "bad", "--device", "cpu", "--out", "a"), "bad")
    assert (tmp_path / "a").is_dir()
    assert left or not list((tmp_path / "a").iterdir())
    assert run(*QUICK, "--out", "a", "--resume")[0] == 0
    assert not search.exists()


def test_bad_checkpoints(run: Run, tmp_path: Path) -> None:
    good = timm.create_model("digits_vit").state_dict()
    bad: dict[str, tuple[Any, str]] = {
        "keys": ({name: value for name, value in good.items() if "norm1" not in name}, "lacks"),
        "more": (good | {"extra": torch.zeros(1)}, "unknown extra"),
        "shapes": (good | {"pos_embed": torch.zeros(1, 17, 96)}, "shape"),
        "integers": ({name: value.int() for name, value in good.items()}, "floating-point"),
        "scalar": (good | {"head.weight": torch.zeros(())}, "shape"),
        "nan": (good | {"norm.bias": torch.full((96,), torch.nan)}, "NaN"),
    }
    for name, (weights, words) in bad.items():
        save_file(weights, tmp_path / f"{name}.safetensors")
        checkpoint = ("--checkpoint", f"{name}.safetensors")
        refused(run("slim", "digits_vit", *ON_CPU, "--out", "a", *checkpoint), words)
        refused(run("eval", "digits_vit", *ON_CPU, *checkpoint), words)
    torch.save(timm.create_model("digits_vit"), tmp_path / "model.pth")
    refused(run("slim", "digits_vit", *ON_CPU, "--out", "a", "--checkpoint", "model.pth"), "pickle")
    assert not (tmp_path / "a").exists()


def test_folders_that_hold_something(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    before = files(tmp_path / "a")
    refused(run(*QUICK, "--out", "a"), "already holds a run; go on with --resume")
    assert result(run, *QUICK, "--out", "a", "--resume")["macs_ratio"] <= 0.7
    moved = [word if word != "digits" else "digits:train" for word in QUICK]
    assert run(*moved, "--out", "a", "--resume")[0] == 0  # the same images by another name
    assert run(*QUICK, "--memory", "0.5", "--out", "a", "--resume")[0] == 0
    for words, told in (
        (("--seed", "1"), "started with other search (seed 0, now 1)"),
        (("--target-macs", "0.6"), "started with other target (macs 0.7, now 0.6)"),
        (("--method", "cover"), "started with other method (drop, now cover)"),
        (("--method", "cover", "--set", "blocks=2"), "started with other method"),
        (("--images", "6"), "started with other images"),
    ):
        refused(run(*QUICK, *words, "--out", "a", "--resume"), told)
    assert files(tmp_path / "a") == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    refused(run(*QUICK, "--out", "b"), "not empty")
    refused(run(*QUICK, "--out", "b", "--resume"), "holds no run")
    (tmp_path / "c").write_text("mine")
    refused(run(*QUICK, "--out", "c"), "is a file")
    assert (tmp_path / "b" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("out", ["file/run", "x" * 300, "/proc/run", "dangling"])
def test_paths_that_cant_be_written(run: Run, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    code, shown, err = run(*QUICK, "--out", out)
    assert (code, shown) == (2, "")
    assert err.strip().splitlines()[-1].startswith("patchslim: ")


@pytest.mark.parametrize("file", ["started.json", "model.safetensors", "steps.safetensors", "plan.json"])
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

    command = (*QUICK, "--method", "merge", "--out", "a")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", checked(write_bytes))
        patch.setattr(Path, "write_text", checked(write_text))
        refused(run(*command), "No space left on device")
    assert not list(tmp_path.rglob(f"*{file}*"))
    assert (tmp_path / "a").exists() == (file != "started.json")
    assert run(*command, "--resume")[0] == 0
    assert run("inspect", "a")[0] == 0


def test_a_crash_after_the_plan_was_written_does_no_harm(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    (tmp_path / "a" / "search").mkdir()
    (tmp_path / "a" / "search" / "cache.jsonl").write_text("")
    assert run("inspect", "a")[0] == 0
    assert run(*QUICK, "--out", "a", "--resume")[0] == 0
    assert not (tmp_path / "a" / "search").exists()


def test_resume_does_not_trust_a_damaged_run(run: Run, tmp_path: Path) -> None:
    command = (*QUICK, "--method", "merge", "--out", "a")
    assert run(*command)[0] == 0
    for name in ("config.json", "plan.json", "model.safetensors", "steps.safetensors", "metrics.json"):
        path = tmp_path / "a" / name
        whole = path.read_bytes()
        path.write_text("xx")
        refused(run(*command, "--resume"), name)
        path.write_bytes(whole)
    (tmp_path / "a" / "steps.safetensors").unlink()
    refused(run("eval", "a", *ON_CPU), "steps.safetensors is missing")
    refused(run("eval", str(resealed(tmp_path / "a")), *ON_CPU), "is not given")
    (tmp_path / "a" / "config.json").unlink()
    refused(run(*command, "--resume"), "config")


def test_distances_of_another_run_are_refused(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--method", "merge", "--out", "a")[0] == 0
    path = tmp_path / "a" / "steps.safetensors"
    save_file({name: value + 0.01 for name, value in load_file(path).items()}, path)
    refused(run("eval", "a", *ON_CPU), "steps.safetensors is not as it was written")
    refused(run("eval", str(resealed(tmp_path / "a")), *ON_CPU), "another model or plan")


def test_only_one_process_works_on_a_run(run: Run, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "a" / "search").mkdir(parents=True)
    with (tmp_path / "a" / "search" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(run(*QUICK, "--out", "a", "--resume"), "Another process")
    assert run(*QUICK, "--out", "a", "--resume")[0] == 0


@pytest.mark.parametrize(("method", "event"), [("ps", "decided"), ("drop", "stage"), ("merge", "candidate")])
def test_ctrl_c_is_told_and_resumable(
    method: str, event: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, left = (*QUICK, "--method", method, "--out"), [4]
    doing, words = terminal.DOING[event]

    def interrupted(told: Any) -> str:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return words(told)

    with monkeypatch.context() as patch:
        patch.setitem(terminal.DOING, event, (doing, interrupted))
        ended_by_ctrl_c(run(*command, "a"), "slim")
    refused(run(*command, "a"), "already holds a run")
    refused(run("eval", "a", *ON_CPU), "not finished")
    assert run(*command, "a", "--resume", "--memory", "0")[0] == 0  # with less memory than before
    assert run(*command, "b")[0] == 0
    for name in ("plan.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
