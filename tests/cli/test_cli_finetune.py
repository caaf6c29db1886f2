"""`patchslim finetune` from a user's side."""

import json
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

import patchslim as ps
from commands import ON_CPU, Run, ended_by_ctrl_c, image_folder, refused, result
from patchslim.recover.checkpoint import Checkpoints, Progress

SLIM = (
    *("slim", "digits_vit", "--pretrained", *ON_CPU, "--images", "8", "--batch-size", "8", "--out", "a"),
    *("--method", "uniform", "--target-macs", "0.4"),
)
FINETUNE = (
    *("finetune", "a", *ON_CPU, "--images", "40", "--batch-size", "16"),
    *("--epochs", "1", "--block-epochs", "1"),
)


def test_finetune_and_eval(run: Run, tmp_path: Path) -> None:
    assert run(*SLIM)[0] == 0
    small = ps.load(tmp_path / "a")
    code, out, err = run(*FINETUNE, "--out", "b", "--val", "digits:test", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"] == "b"
    assert found["images"] == 40
    assert found["held_out_images"] == 4
    assert found["loss_after"] < found["loss_before"]
    assert found["stopped"] == "finished"
    assert {stage["stage"] for stage in found["stages"]} == {"blocks", "distillation"}
    measured = json.loads(run("eval", "b", "--data", "digits", "--device", "cpu", "--json")[1])
    assert measured["top1"] == found["top1_after"]
    assert measured["macs"] == ps.count_macs(small)
    shown = run(*FINETUNE, "--out", "b", "--val", "digits:test", "--resume")[1]
    assert f"top-1: {found['top1_before']:.2f} % → {found['top1_after']:.2f} %" in shown
    assert f"loss {found['loss_before']:.4g} → {found['loss_after']:.4g} on 4 held-out of 40 images" in shown
    assert f"KL {found['kl_before']:.4g} → {found['kl_after']:.4g} nats" in shown


def test_in_half_precision(run: Run, tmp_path: Path) -> None:
    run(*SLIM)
    refused(run(*FINETUNE, "--amp", "fp8"), "There is no amp 'fp8'; choose one of auto, bf16, off.")
    whole, half = (json.loads(run(*FINETUNE, "--amp", amp, "--out", amp, "--json")[1]) for amp in ("off", "bf16"))
    assert json.loads((tmp_path / "bf16" / "config.json").read_text())["recovery"]["settings"]["amp"] == "bf16"
    assert half["loss_after"] == pytest.approx(whole["loss_after"], rel=0.1)
    assert half["loss_after"] != whole["loss_after"]


def test_with_labels(run: Run) -> None:
    run(*SLIM)
    found = json.loads(run(*FINETUNE, "--supervised-epochs", "1", "--json")[1])
    assert [stage["stage"] for stage in found["stages"]] == ["blocks", "distillation", "supervised"]


def test_mistakes_end_in_one_sentence(run: Run, tmp_path: Path) -> None:
    run(*SLIM)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    image_folder(tmp_path / "flat", 4)
    (tmp_path / "empty").mkdir()
    wrong = timm.create_model("digits_vit", pretrained=False, num_classes=3)
    save_file(wrong.state_dict(), tmp_path / "wrong.safetensors")
    refused(run("finetune", "nowhere", "--data", "digits"), "There is no run folder at nowhere")
    refused(run("finetune", "digits_vit", "--data", "digits"), "There is no run folder at digits_vit")
    refused(run("finetune", "a"), "Missing option '--data'")
    refused(run("finetune", "a", "--data", "nowhere"), "nowhere doesn't exist")
    refused(run("finetune", "a", "--data", "empty"), "empty")
    refused(run("finetune", "a", "--data", "flat", "--supervised-epochs", "1"), "has no labels")
    refused(run("finetune", "a", "--data", "digits", "--images", "8", "--val", "flat"), "flat has no labels")
    refused(run("finetune", "a", "--data", "digits", "--learning-rate", "0"), "learning_rate has to be")
    refused(run("finetune", "a", "--data", "digits", "--temperature", "0"), "temperature has to be")
    refused(run("finetune", "a", "--data", "digits", "--held-out", "2"), "held_out has to be")
    refused(run("finetune", "a", "--data", "digits", "--epochs", "0", "--block-epochs", "0"), "nothing to do")
    refused(run("finetune", "a", "--data", "digits", "--epochs", "-1"), "--epochs")
    refused(run("finetune", "a", "--data", "digits", "--teacher", "none.safetensors"), "no checkpoint at none")
    refused(run("finetune", "a", "--data", "digits", "--teacher", "wrong.safetensors"), "does not fit")
    refused(run("finetune", "a", "--data", "digits", "--resume", "--again"), "give one of them")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_flat_pictures_and_random_weights(run: Run, tmp_path: Path) -> None:
    """Any timm ViT, pictures of any size, no labels."""
    image_folder(tmp_path / "flat", 6)
    model = ("slim", "test_vit", "--img-size", "48", "--data", "flat")
    result(run, *model, "--target-macs", "0.8", "--device", "cpu", "--out", "v")
    learn = ("--epochs", "2", "--block-epochs", "0", "--device", "cpu")
    found = result(run, "finetune", "v", "--data", "flat", *learn)
    assert found["loss_after"] <= found["loss_before"]


def test_ctrl_c_is_told_and_resumable(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*SLIM)
    write, left = Checkpoints.write, [3]

    def interrupted(self: Checkpoints, progress: Progress) -> None:
        write(self, progress)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "write", interrupted)
    ended_by_ctrl_c(run(*FINETUNE), "finetune")
    refused(run(*FINETUNE), "a has an interrupted recovery; go on with --resume, or start over with --again")
    assert run(*FINETUNE, "--resume")[0] == 0
    assert not (tmp_path / "a" / "recovery").exists()
