"""The paper's tables as Markdown: columns of published numbers beside those of rows."""

from __future__ import annotations

from benchmarks.paper.published import Published, beside, printed
from benchmarks.rows import Row
from benchmarks.table import COLUMNS, EMPTY, Column, interval, method_of, number, pages, place, value

__all__ = ["name_of", "of", "pages"]  # `pages` knows the columns below once this module is imported


def scaled(name: str, unit: float, how: str) -> Column:
    """A large number of a row in millions or thousands of millions."""

    def show(row: Row) -> str:
        value = getattr(row, name)
        return EMPTY if value is None else format(value / unit, how)

    return show


def of(*tables: str) -> dict[str, Column]:
    """What is published of a row in some tables: MACs, top-1 and the points lost, images per second."""

    def macs(row: Row) -> str:
        own = beside(tables, row)
        return EMPTY if own is None else f"{own.ratio:g} ({own.gmacs:g} G)"

    def top1(row: Row) -> str:
        own, base = beside(tables, row), beside(tables, row.model_copy(update={"method": "host"}))
        if own is None:
            return EMPTY
        return f"{own.top1:.1f}" + ("" if base is None or base == own else f" ({own.top1 - base.top1:+.1f})")

    def rate(row: Row) -> str:
        own = beside(tables, row)
        if own is None or own.throughput is None:
            return EMPTY
        return f"{own.throughput:,}" + (f" ({1 + own.gain / 100:.2f}×)" if own.gain else "")

    return {"MACs, published": macs, "top-1, published": top1, "images/s, published (V100)": rate}


def name_of(row: Row) -> str:
    """Table 2's name of a row: `PS-LV-ViT-S` for what the paper's own method makes of LV-ViT-S."""
    own: Published | None = beside(("table2",), row)
    plain = next((found.name for found in printed("table2") if found.model == row.model), row.model)
    return plain if own is None else own.name


MEASURED: dict[str, Column] = {
    "MACs": number("macs_ratio", ".3f"),
    "epochs": number("recovery_epochs", "d"),
    "top-1": interval("top1"),
    "lost": interval("lost"),
    "images/s": number("images_per_second", ",.0f"),
    "× host, same embedding": number("speedup_same_embedding", ".2f"),
}
SIZES: dict[str, Column] = {
    "parameters, M": scaled("parameters", 1e6, ".1f"),
    "GMACs": scaled("macs", 1e9, ".4g"),
}


def patches(row: Row) -> str:
    """Patches per block."""
    return ", ".join(map(str, row.patches_per_block or [])) or EMPTY


MODEL: dict[str, Column] = {"model": lambda row: f"`{row.model}`", "method": method_of}
COLUMNS |= {
    "paper-table1": {"method": method_of, **of("table1"), **MEASURED},
    "paper-table2": {"the paper's": name_of, **MODEL, **of("table2"), **SIZES, **MEASURED},
    "paper-table3": {"method": method_of, **of("table3"), **MEASURED},
    "paper-throughput": {**MODEL, **of("table1", "table2"), **SIZES, **MEASURED, "mode": number("mode", "")},
}
TOP1: dict[str, Column] = {name: MEASURED[name] for name in ("MACs", "top-1", "lost")}
ONE_BLOCK: dict[str, Column] = {
    "method": method_of,
    **{name: place(name) for name in ("block", "removed", "rate", "score")},
    "seed": number("seed", "d"),
    **TOP1,
}
COLUMNS |= {
    "figure-sim": {
        "features": place("of"),
        "block": place("block"),
        **{name: value(name, ".3f") for name in ("mean", "p5", "p95")},
    },
    "figure-eps": {"method": method_of, "ε": place("tolerance"), **TOP1, "patches per block": patches},
    "figure-even": {"method": method_of, "ε": place("tolerance"), **TOP1, "patches per block": patches},
    "figure-layers": ONE_BLOCK,
    "figure-acc": ONE_BLOCK,
}
