"""`slim --target-speedup` from a user's side, on a clock that the networks move, and what `bench` says then."""

import json
from pathlib import Path
from typing import Any

import pytest

import patchslim as ps
from commands import Run, ended_by_ctrl_c, image_folder, refused
from patchslim.cli import opening
from patchslim.hosts import alike
from patchslim.timing import stopwatch
from small import make_host
from ticking import Ticking

ASKED = ("--target-speedup", "1.5", "--batch-size", "2", "--device", "cpu")


@pytest.fixture
def slim(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`patchslim slim` on a small model and a folder of pictures, into `a`."""
    image_folder(tmp_path / "pictures")

    def open_model(*_: Any) -> Any:
        model = make_host()
        clock = Ticking(model, lambda n_in, n: 0.05 + 0.02 * n_in + 0.01 * n, 0.3, 0.1)
        monkeypatch.setattr(stopwatch, "perf_counter", clock)
        return model

    monkeypatch.setattr(opening, "open_model", open_model)
    monkeypatch.setattr(alike, "HARMLESS", (*alike.HARMLESS, Ticking.__module__))  # its hooks only count

    def call(*words: str) -> tuple[int, str, str]:
        return run("slim", "vit_small_patch16_224", "--data", "pictures", "--out", "a", *words)

    return call


def test_the_plan_says_what_it_predicts_and_bench_shows_it(slim: Run, run: Run, tmp_path: Path) -> None:
    code, out, err = slim(*ASKED)
    assert code == 0, err
    assert "as fast as the host, asked for 1.5× (cpu, batch 2, float32, eager)" in out
    told = ps.SlimPlan.load(tmp_path / "a" / "plan.json").provenance["speed"]
    assert told["predicted"] == pytest.approx(1.5, rel=0.03)
    assert json.loads((tmp_path / "a" / "metrics.json").read_text())["speed"] == told
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["target"]["speedup"], config["target"]["batch_size"]) == (1.5, 2)
    assert config["timed_on"]["device"] == "cpu"

    code, out, err = run("bench", "a", "--device", "cpu", "--seconds", "0.01")
    assert code == 0, err
    assert f"the plan predicted {told['predicted']:.2f}× against the host: measured" in out
    _, out, _ = run("bench", "a", "--device", "cpu", "--seconds", "0.01", "--json", "--batch-size", "2,3")
    rows = json.loads(out)["rows"]
    assert [row["predicted_speedup"] for row in rows] == [told["predicted"], None]


def test_a_method_of_one_knob_is_made_as_fast_too(slim: Run, tmp_path: Path) -> None:
    code, out, err = slim(*ASKED, "--method", "tome")
    assert code == 0, err
    assert "as fast as the host, asked for 1.5× (cpu, batch 2, float32, eager)" in out
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert metrics["expected_speedup"] == metrics["speed"]["predicted"]
    assert (metrics["timing"]["batch_size"], metrics["timing"]["mode"]) == (2, "eager")


def test_finished_it_is_left_alone_on_resume_and_not_made_over(slim: Run, tmp_path: Path) -> None:
    assert slim(*ASKED)[0] == 0
    plan = (tmp_path / "a" / "plan.json").read_bytes()
    refused(slim(*ASKED), "already holds a run")
    assert slim(*ASKED, "--resume")[0] == 0
    assert (tmp_path / "a" / "plan.json").read_bytes() == plan
    refused(slim("--target-speedup", "1.4", *ASKED[2:], "--resume"), "started with other target (speedup 1.5, now 1.4)")


def test_an_interrupted_search_goes_on_on_its_own_device_only(
    slim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stopwatch.Stopwatch, "multiple", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        ended_by_ctrl_c(slim(*ASKED), "slim")
    assert not (tmp_path / "a" / "plan.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(
            "patchslim.timing.latency.described",
            lambda device: {"device": "NVIDIA H200", "threads": None, "torch": "2"},
        )
        refused(slim(*ASKED, "--resume"), "other timed_on (device cpu, now NVIDIA H200)")
    assert slim(*ASKED, "--resume")[0] == 0
    assert (tmp_path / "a" / "plan.json").exists()


def test_what_no_plan_can_do_is_told_and_leaves_nothing(slim: Run, tmp_path: Path) -> None:
    refused(slim("--target-speedup", "30", *ASKED[2:]), "× is the most")
    assert not (tmp_path / "a").exists()
