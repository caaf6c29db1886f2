"""What methods are to reach, beside what rows of results/ say: `python -m benchmarks table targets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.inputs import BASE, DINO, DINO_LARGE, LARGE, MODEL, PROMISED, SMALL
from benchmarks.rows import Row
from benchmarks.table import EMPTY, markdown_lines, share_of

Where = Mapping[str, Any]  # columns of a row and what they hold


@dataclass(frozen=True)
class Kind:
    """A number of a row that has to be at least, or at most, so much."""

    of: Callable[[Row], float | None]
    least: bool
    how: str = ".2f"


KINDS = {
    "× host": Kind(lambda row: row.speedup, True),
    "share of the promised": Kind(share_of, True, ".0%"),
    "share of the promised step": Kind(lambda row: (row.values or {}).get("share"), True, ".0%"),
    "points lost": Kind(lambda row: row.lost, False),
    "error": Kind(lambda row: row.error, False, ".4f"),
}


@dataclass(frozen=True)
class Wanted:
    """One target: a bound on a number of the row that is so; another row's number may be the bound."""

    what: str
    kind: str
    method: str
    bound: float | Where
    where: Where


def wanted() -> Iterator[Wanted]:
    """Every target."""
    gpu: dict[str, Any] = {"question": "speed", "threads": None, "dtype": "bfloat16", "target_macs": PROMISED}
    one, all_three = {"merge": 1.2, "cover": 1.25, "drop": 1.4}, ("merge", "cover", "drop")
    for name, model, share in (("DeiT-Ti", MODEL, 0.90), ("DeiT-S", SMALL, 0.95), ("DeiT-B", BASE, 0.98)):
        where = gpu | {"model": model, "image_size": 224}
        for method, bound in one.items():
            yield Wanted(f"H200, {name}, batch 1", "× host", method, bound, where | {"batch_size": 1})
        many = where | {"batch_size": 256}
        yield Wanted(f"H200, {name}, batch 256", "share of the promised", "merge", share, many)
    large: list[tuple[str, str, int, int, dict[str, float]]] = [
        ("ViT-L/16", LARGE, 224, 128, {"merge": 1.75}),
        ("DINOv2-S, 518 px", DINO, 518, 32, {"merge": 1.65, "cover": 1.7}),
        ("DINOv2-S, 518 px", DINO, 518, 1, {"merge": 1.0, "cover": 1.0}),
        ("ViT-L/14, 518 px", DINO_LARGE, 518, 32, {"merge": 1.7}),
    ]
    for what, model, side, size, bounds in large:
        for method, bound in bounds.items():
            where = gpu | {"model": model, "image_size": side, "batch_size": size}
            yield Wanted(f"H200, {what}, batch {size}", "× host", method, bound, where)
    fine = gpu | {"model": MODEL, "image_size": 448, "batch_size": 32, "target_macs": 0.4}
    yield Wanted("H200, DeiT-Ti, 448 px, −60 %, batch 32", "× host", "merge", 2.0, fine)
    yield from _accurate()
    for method in all_three:
        for part in ("whole", "student"):
            step = {"question": "training-speed", "threads": None, "model": MODEL, "point": {"part": part}}
            what = "H200, DeiT-Ti, a training step" + (", the student's part" if part == "student" else "")
            yield Wanted(what, "share of the promised step", method, 0.85, step)
    cores: dict[str, Any] = {"threads": 2, "dtype": "float32", "target_macs": PROMISED}
    for runtime, own in (
        ("eager", cores | {"question": "speed", "image_size": 224}),
        ("ONNX Runtime", cores | {"question": "export-speed", "point": {"runtime": "onnx"}}),
    ):
        for name, model, each in (("DeiT-Ti", MODEL, (1.4, 1.45, 1.55)), ("DeiT-S", SMALL, (1.6, 1.6, 1.67))):
            for size, least in ((1, each), (16, (1.7, 1.7, 1.7))):
                for method, bound in zip(all_three, least, strict=True):
                    what = f"2 CPU cores, {runtime}, {name}, batch {size}"
                    yield Wanted(what, "× host", method, bound, own | {"model": model, "batch_size": size})


def _accurate() -> Iterator[Wanted]:
    """What accuracy is to be."""
    every: dict[str, Any] = {"question": "accuracy", "model": MODEL, "target_macs": 0.4, "recovery_epochs": None}
    one = every | {"image_size": 224, "images": 1000}
    for ratio, epochs, bounds in (
        (0.55, None, {"merge": 0.4, "cover": 1.0}),
        (0.4, None, {"merge": 2.7}),
        (0.4, 30, {"merge": 1.5}),
    ):
        for method, bound in bounds.items():
            tuned = f", {epochs} epochs" if epochs else ", untuned"
            where = one | {"target_macs": ratio, "recovery_epochs": epochs}
            yield Wanted(f"DeiT-Ti, −{1 - ratio:.0%}{tuned}".replace("%", " %"), "points lost", method, bound, where)
    usual, fine = one | {"target_macs": 0.55}, every | {"image_size": 448}
    yield Wanted("DeiT-Ti, −60 % at 448 px against −45 % at 224 px", "error", "merge", usual, fine)


def value_of(rows: Sequence[Row], kind: Kind, method: str, where: Where) -> float | None:
    """The number of the latest row that is so, of a method as it is by default."""
    alike = [row for row in rows if (row.method, row.settings) == (method, {}) and row.reason is None]
    found = [row for row in alike if all(getattr(row, name) == value for name, value in where.items())]
    return kind.of(sorted(found, key=lambda row: row.date)[-1]) if found else None


def targets(rows: Sequence[Row]) -> str:
    """A line for each target: what was asked, what was measured, and whether that is enough."""
    lines = []
    for own in wanted():
        kind = KINDS[own.kind]
        bound = own.bound if isinstance(own.bound, float) else value_of(rows, kind, own.method, own.bound)
        found = value_of(rows, kind, own.method, own.where)
        asked, measured = (EMPTY if number is None else format(number, kind.how) for number in (bound, found))
        verdict = EMPTY
        if bound is not None and found is not None:
            verdict = "hit" if (found >= bound if kind.least else found <= bound) else "missed"
        sign = "≥" if kind.least else "≤"
        lines.append([own.what, f"`{own.method}`", own.kind, f"{sign} {asked}", measured, verdict])
    return markdown_lines([["what", "method", "number", "asked", "measured", ""], *lines])
