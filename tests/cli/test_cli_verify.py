"""`patchslim verify` and `patchslim seal` from a user's side, and what `finetune` says of files made before."""

import json
import shutil
from pathlib import Path

import patchslim as ps
from commands import ON_CPU, QUICK, Run, refused, result
from small import slim_of

OWN = ["config.json", "metrics.json", "model.safetensors", "plan.json"]


def test_verify_names_what_has_changed_and_seal_takes_it(run: Run, tmp_path: Path) -> None:
    ps.save(slim_of()[1], tmp_path / "a")
    found = result(run, "verify", "a")
    assert found == {"run": "a", "whole": True, "files": dict.fromkeys(OWN, "as written"), "stale": []}
    metrics = tmp_path / "a" / "metrics.json"
    metrics.write_text("{}")
    code, out, err = run("verify", "a")
    assert code == 2
    assert "a/metrics.json: changed" in out.splitlines()
    assert "a/plan.json: as written" in out.splitlines()
    assert "a/metrics.json is not as it was written; restore it, or take the run as it is now with" in err
    code, out, _ = run("verify", "a", "--json")
    assert code == 2
    assert json.loads(out)["files"]["metrics.json"] == "changed"
    for words in (("eval", "a", *ON_CPU), ("export", "a", "--format", "torch-export"), ("bench", "a"), ("report", "a")):
        refused(run(*words), "metrics.json is not as it was written")
    refused(run("view", "a", "--image", "digits"), "metrics.json is not as it was written")
    refused(run("finetune", "a", *ON_CPU), "metrics.json is not as it was written")
    assert sorted(result(run, "seal", "a")["files"]) == OWN
    assert run("verify", "a")[0] == 0
    metrics.write_text('{"macs": "x"}')
    refused(run("seal", "a"), "metrics.json is not valid: macs")
    refused(run("verify", "nowhere"), "There is no run folder at nowhere")
    refused(run("seal", "nowhere"), "There is no run folder at nowhere")


def test_each_run_of_a_sweep(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--target-macs", "0.8,0.7", "--out", "a")[0] == 0
    found = result(run, "verify", "a")
    assert [each["run"] for each in found["runs"]] == ["a/macs-0.7", "a/macs-0.8"]
    (tmp_path / "a" / "macs-0.8" / "plan.json").write_text("{}")
    code, _, err = run("verify", "a")
    assert code == 2
    assert "a/macs-0.8/plan.json is not as it was written" in err
    refused(run("seal", "a"), "plan.json is not a patchslim plan")


def test_what_was_made_of_weights_before_is_named(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--out", "a")[0] == 0
    assert run("export", "a", "--format", "torch-export")[0] == 0
    shutil.copyfile(tmp_path / "a" / "model.pt2", tmp_path / "a" / "mine.pt2")  # which no command has noted
    assert run("bench", "a", "--batch-size", "2", "--seconds", "0.01", "--device", "cpu")[0] == 0
    assert run("report", "a")[0] == 0
    (speed,) = (tmp_path / "a" / "bench").glob("*.json")
    (tmp_path / "a" / "report.html").rename(tmp_path / "page.html")  # it may go
    gone = result(run, "verify", "a")
    assert (gone["whole"], gone["files"]["report.html"]) == (True, "gone")
    (tmp_path / "page.html").rename(tmp_path / "a" / "report.html")
    before = result(run, "verify", "a")
    assert before["stale"] == []
    assert {"model.pt2", "report.html", f"bench/{speed.name}"} < set(before["files"])
    learn = ("--images", "16", "--batch-size", "8", "--epochs", "6", "--block-epochs", "2", *ON_CPU)
    code, out, err = run("finetune", "a", *learn, "--learning-rate", "0.001", "--json")
    assert code == 0, err
    assert json.loads(out)["changed"]
    stale = [f"bench/{speed.name}", "mine.pt2", "model.pt2"]
    assert json.loads(out)["stale"] == stale
    (line,) = [line for line in err.splitlines() if "model.pt2" in line]
    assert line == f"Of the weights before: {', '.join(stale)}; make them anew."
    after = run("verify", "a")
    assert after[0] == 0
    assert f"{Path('a') / 'model.pt2'}: of other weights" in after[1].splitlines()
    speed.write_text(speed.read_text() + " ")
    refused_line = run("report", "a")[2]
    assert f"{speed.name} is not as it was written; restore it, or remove it" in refused_line
    speed.unlink()
    assert run("report", "a")[0] == 0
    assert run("verify", "a")[0] == 0
