"""`patchslim bench` from a user's side. Its numbers are tested where they are made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from commands import Run, image_folder, refused
from small import PYRAMID, make_host, plan_of, slim_of

QUICK = ("--device", "cpu", "--seconds", "0.01")


@pytest.fixture
def bench(run: Run, tmp_path: Path) -> Run:
    """`patchslim bench a`, a small run."""
    ps.save(slim_of()[1], tmp_path / "a")

    def call(*words: str) -> tuple[int, str, str]:
        return run("bench", "a", *QUICK, *words)

    return call


def test_one_case(bench: Run, tmp_path: Path) -> None:
    code, out, _ = bench("--batch-size", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["speedup"] == pytest.approx(found["throughput"] / found["baseline_throughput"])
    assert found["share_of_ideal"] == pytest.approx(found["speedup"] / found["ideal_speedup"])
    assert (found["batch_size"], found["dtype"], found["mode"], found["reduced_batch"]) == (2, "float32", "eager", None)
    (file,) = found.pop("files")
    assert Path(file) == Path("a") / "bench" / f"cpu_torch{torch.__version__}_float32.json"
    assert json.loads((tmp_path / file).read_text()) == found
    assert len(found["rows"]) == 1
    assert "profile" not in found["rows"][0]


def test_a_file_for_each_dtype_or_one_for_all(bench: Run, tmp_path: Path) -> None:
    words = ("--batch-size", "1,3", "--dtype", "float32, bfloat16")
    code, out, _ = bench(*words)
    assert code == 0
    assert "batch 3, bfloat16" in out
    files = sorted((tmp_path / "a" / "bench").iterdir())
    assert [path.name.split("_")[-1] for path in files] == ["bfloat16.json", "float32.json"]
    for path in files:
        rows = json.loads(path.read_text())["rows"]
        assert [(row["dtype"], row["batch_size"]) for row in rows] == [(path.stem.split("_")[-1], n) for n in (1, 3)]
    shutil.rmtree(tmp_path / "a" / "bench")
    code, _, _ = bench(*words, "--out", "new/all.json")
    assert code == 0
    assert len(json.loads((tmp_path / "new" / "all.json").read_text())["rows"]) == 4
    assert not (tmp_path / "a" / "bench").exists()
    assert ps.inspect(ps.load(tmp_path / "a")).depth == 4


def test_the_profile_is_shown(bench: Run) -> None:
    code, out, _ = bench("--batch-size", "2", "--profile")
    assert code == 0
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert shown == ["against", "against", "ms,", "embedding", *["block"] * 4, "head", "total"]


def test_real_images_are_repeated(bench: Run, tmp_path: Path) -> None:
    image_folder(tmp_path / "images")
    (tmp_path / "images" / "broken.png").write_bytes(b"broken")
    code, out, _ = bench("--batch-size", "5", "--data", "images", "--json")
    assert code == 0
    assert (json.loads(out)["batch_size"], json.loads(out)["data"]) == (5, "images")
    refused(bench("--data", "nowhere"), "nowhere")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.png").write_bytes(b"broken")
    refused(bench("--data", "bad"), "bad")


def test_a_batch_that_does_not_fit_is_told(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    randn = torch.randn

    def full(size: int, *shape: int, **settings: Any) -> torch.Tensor:
        if size > 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        return randn(size, *shape, **settings)

    monkeypatch.setattr(torch, "randn", full)
    code, out, err = bench("--batch-size", "16", "--json")
    assert code == 0
    assert (json.loads(out)["reduced_batch"], json.loads(out)["asked_batch_size"]) == (4, 16)
    assert "A batch of 16 in float32 does not fit in memory; timed with 4 instead." in " ".join(err.split())


def test_a_model_that_cant_be_compiled_is_told(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    code, out, err = bench("--batch-size", "1", "--compile", "--json")
    assert code == 0
    assert json.loads(out)["modes"] == ["eager", "compiled"]
    assert json.loads(out)["mode"] == "eager"
    assert "Mode compiled does not work for the slim model (batch 1, float32: no compiler here)" in " ".join(
        err.split()
    )


def test_quantised_models_are_told(run: Run, bench: Run, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    refused(bench("--batch-size", "2", "--quantize", "int8"), "multiples of 16")
    wide = make_host(embed_dim=48)
    ps.save(ps.apply(wide, plan_of(wide, PYRAMID)), tmp_path / "wide")
    code, out, _ = run("bench", "wide", *QUICK, "--batch-size", "2", "--quantize", "int8")
    assert code == 0
    assert "the slim model, quantised" in out
    assert "the host with the same patch embedding, quantised" in out
    (file,) = (tmp_path / "wide" / "bench").iterdir()
    assert file.name == f"cpu_torch{torch.__version__}_float32_int8.json"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--batch-size", "0"), "from 1 to 65536"),
        (("--batch-size", "4,-1"), "from 1 to 65536"),
        (("--batch-size", "many"), "whole numbers"),
        (("--batch-size", "1,,2"), "whole numbers"),
        (("--batch-size", "1.5"), "whole numbers"),
        (("--dtype", "float31"), "no dtype 'float31'"),
        (("--dtype", ""), "no dtype"),
        (("--mode", "warp"), "no mode 'warp'"),
        (("--mode", "eager,graph"), "needs a CUDA device"),
        (("--seconds", "0"), "--seconds"),
        (("--seconds", "nan"), "--seconds"),
        (("--device", "quantum"), "--device cpu"),
        (("--device", "cuda:99"), "--device cpu"),
        (("--quantize", "int7"), "no quantisation int7"),
        (("--quantize", "float8"), "float8 needs an NVIDIA GPU"),
        (("--quantize", "int8", "--autocast"), "leave autocast out"),
        (("--out", "a"), "can't be written to a"),
        (("--out", "a/plan.json/x.json"), "--out"),
        (("--out", "a/config.json"), "a/config.json holds something else than results"),
        (("--out", "results.txt"), "A file of results ends in .json"),
    ],
)
def test_bad_input(bench: Run, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    refused(bench(*words), told)
    assert not (tmp_path / "a" / "bench").exists()


def test_models_that_do_not_fit(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("patchslim.runs.store.load_host", full)
    refused(bench(), "not enough memory for the models")


def test_only_a_run_is_timed(run: Run, tmp_path: Path) -> None:
    image_folder(tmp_path / "flat")
    refused(run("bench", "nowhere"), "no run folder")
    refused(run("bench", "flat"), "holds no run")
