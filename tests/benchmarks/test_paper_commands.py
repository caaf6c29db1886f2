"""The paper's tables on a small model: with and without weights, what stands beside them, what is skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm

import patchslim as ps
from benchmarks.paper import published
from benchmarks.paper.published import DPS, PS, Published
from benchmarks.rows import Row
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS
from patchslim.measure import evaluate

TINY = "digits_vit"
WEIGHTS = ("--weights", f"{TINY}={DIGITS_WEIGHTS}")
DIGITS = ("--data", "digits:test", "--val", "digits:test", "--images", "12", "--limit", "30")
QUICK = ("--bench-batch-size", "1", "--bench-dtype", "float32", "--seconds", "0.01", "--device", "cpu", "--out", "rows")
Run = Callable[..., tuple[list[Row], str]]


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's tables with one small model."""
    first = (
        Published(TINY, 99.0, 0.05, top5=100.0, throughput=100, gain=0.0),
        Published(TINY, 90.0, 0.03, "HVT", 99.0, 40.0, throughput=140, gain=40.0),
        Published(TINY, 98.0, 0.03, PS, 99.0, 40.0, throughput=150, gain=50.0),
    )
    second = (
        Published(TINY, 99.0, 0.05, name="Digits"),
        Published(TINY, 98.0, 0.03, DPS, host_gmacs=0.05, name="DPS-Digits"),
        Published("swin_s3_tiny_224", 80.0, 4.7, name="Swin", note="a relative"),
    )
    tables = {"table1": first, "table2": second, "table3": (first[0], first[2])}
    for module in ("published", "text", "picture", "harness"):
        monkeypatch.setattr(f"benchmarks.paper.{module}.printed", tables.get)
    monkeypatch.setitem(published.BESIDE, "table1", ("tome",))


def test_a_table_without_weights_has_macs_and_throughput(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rows, shown = run("paper", "table1", *QUICK)
    assert [(row.method, row.target_macs) for row in rows] == [
        *(("host", None), ("hvt", 0.6), ("ps", 0.6), ("drop", 0.6), ("tome", 0.6)),
    ]
    for row in rows[1:]:
        assert row.top1 is None
        assert row.macs_ratio is not None
        assert 0.5 < row.macs_ratio <= 0.6
        assert (row.images_per_second or 0) > 0
        assert (row.note or "").startswith(f"no top-1, for want of weights (--weights {TINY}=FILE)")
    assert f"| `hvt` | 0.6 (0.03 G) | 90.0 (-9.0) | 140 (1.40×) | {rows[1].macs_ratio:.3f} |" in shown
    assert Path("rows/pictures/paper_table1.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_with_weights_and_a_recovery(run: Run, shard: str) -> None:
    words = ("paper", "table3", "--models", TINY, *WEIGHTS, *DIGITS, *QUICK, "--recover", "1", "--train", shard)
    rows, shown = run(*words)
    assert [(row.method, row.recovery_epochs) for row in rows] == [
        *(("host", None), ("ps", None), ("ps", 1), ("drop", None), ("drop", 1)),
    ]
    host, untuned, recovered = rows[:3]
    assert (untuned.settings, untuned.val_images, untuned.images) == ({"tune_epochs": 0}, 30, 12)
    assert untuned.lost == pytest.approx((host.top1 or 0) - (untuned.top1 or 0))
    assert (untuned.lost_low or 0) <= (untuned.lost or 0) <= (untuned.lost_high or 0)
    assert (recovered.recovery_images, recovered.images_per_second) == (24, None)
    assert shown.count("| `drop` |") == 2
    kept = {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")}
    assert len(kept) == 3
    again, _ = run(*words, "--resume")
    assert [row.top1 for row in again] == [row.top1 for row in rows]
    assert {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")} == kept


def test_table_2_has_models_that_cannot_be_slimmed(run: Run) -> None:
    rows, shown = run("paper", "table2", *WEIGHTS, "--val", "digits:test", "--limit", "30", *QUICK)
    assert [(row.model, row.method) for row in rows] == [
        *((TINY, "host"), (TINY, "dps"), (TINY, "predict"), (TINY, "merge"), ("swin_s3_tiny_224", "host")),
    ]
    model = timm.create_model(TINY, pretrained=True).eval()
    images = ps.open_images("digits:test", model=model, limit=30, seed=0)
    assert (rows[0].top1, rows[1].top1) == (evaluate(model, images).top1, None)  # nothing to choose patches by
    swin = timm.create_model("swin_s3_tiny_224")
    assert rows[-1].parameters == sum(weight.numel() for weight in swin.parameters())
    assert (rows[-1].images_per_second or 0) > 0
    assert "- swin_s3_tiny_224: a relative; no top-1, for want of weights" in shown
    assert "| DPS-Digits | `digits_vit` | `dps` | 0.6 (0.03 G) | 98.0 (-1.0) |" in shown


def test_throughput_times_each_network_once(run: Run) -> None:
    rows, _ = run("paper", "throughput", "--models", TINY, *QUICK)
    assert [row.method for row in rows] == ["host", "hvt", "ps", "tome", "dps", "predict", "merge"]
    assert {row.question for row in rows} == {"paper-throughput"}
