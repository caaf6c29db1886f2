"""The paper's tables as Markdown, measured and published side by side, from what the commands have measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from paper_cells import NAMES
from patchslim.report.comparison import EMPTY, about, interval

Table = Mapping[str, Any]
PUBLISHED = ("MACs kept, published", "top-1, published", "images/s, published (V100)")
OURS = ("MACs kept", "GMACs", "top-1", "against base")
RECOVERED = ("recovered", "against base")
SPEED = ("images/s", "speed-up")


def lines(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(words) + " |" for words in (names, ["---"] * len(names), *rows)]


def blocks_text(table: Table) -> str:
    """A title, and a block for each model."""
    parts = [f"# {table['title']}"]
    for block in table["blocks"]:
        parts += ["", f"## {block['model']}", "", measured_how(block), "", *block_lines(block)]
        notes = notes_of(block)
        parts += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(parts) + "\n"


def measured_how(block: Table) -> str:
    """One sentence on how a block came about."""
    if not block["missing"]:
        return about(block, "from the base")
    speed = block["settings"]["speed"]
    return (
        f"MACs, and throughput on {block['device']}, batch {speed['batch_size']}, {speed['dtype']}, each row beside "
        f"the base, with random weights. No top-1, for want of {', '.join(block['missing'])}."
    )


def block_lines(block: Table) -> list[str]:
    """The rows of one model; published columns first."""
    recovered = any(row.get("recovered") for row in block["rows"])
    names = ["method", *PUBLISHED, *OURS, *(RECOVERED if recovered else ()), *SPEED]
    base = dict(block["base"]) | {"published": block["published"]}
    rows = [_words(row, block["published"], recovered) for row in (base, *block["rows"])]
    return lines(names, rows)


def _words(row: Table, base: Table | None, recovered: bool) -> list[str]:
    words: list[str] = [NAMES[row["method"]], *_published(row.get("published"), base)]
    if row.get("reason"):
        empty = len(OURS) + len(SPEED) + (len(RECOVERED) if recovered else 0)
        return [*words, _asked(row), *[EMPTY] * (empty - 1)]
    words += [f"{row['macs_ratio']:.3f}", f"{row['macs'] / 1e9:.4g}", *_score(row.get("untuned"))]
    words += _score(row.get("recovered")) if recovered else []
    return [*words, f"{row['throughput']:.0f}", _times(row)]


def _asked(row: Table) -> str:
    return f"({row['target_macs']:g})" if "target_macs" in row else EMPTY


def _times(row: Table) -> str:
    return f"{row['speedup']:.2f}×" if "speedup" in row else EMPTY  # there is none without a base


def _published(row: Table | None, base: Table | None) -> list[str]:
    if row is None:
        return [EMPTY] * len(PUBLISHED)
    lost = "" if base is None or row == base else f" ({row['top1'] - base['top1']:+.1f})"
    rate = row.get("throughput")
    return [f"{row['ratio']:g}", f"{row['top1']:.1f}{lost}", EMPTY if rate is None else _rate(row)]


def _rate(row: Table) -> str:
    return f"{row['throughput']}" + (f" ({1 + row['gain'] / 100:.2f}×)" if row["gain"] else "")


def _score(score: Table | None) -> list[str]:
    if score is None:
        return [EMPTY, EMPTY]
    return [f"{score['top1']:.2f}", interval(score["against_base"]) if "against_base" in score else EMPTY]


def ratio_lines(block: Table, ratio: float) -> list[str]:
    """Top-1 of all methods at one ratio, the most accurate after recovery first."""
    own = [row for row in block["rows"] if row["target_macs"] == ratio and row.get("recovered")]
    own.sort(key=lambda row: (row["recovered"]["top1"], row["untuned"]["top1"]), reverse=True)
    names = ["", "MACs", "top-1", "recovered", "against the host"]
    rows = []
    for row in own:
        untuned = [f"{row['macs_ratio']:.3f}", f"{row['untuned']['top1']:.2f}"]
        rows.append([NAMES[row["method"]], *untuned, *_score(row["recovered"])])
    return lines(names, rows)


def notes_of(block: Table) -> list[str]:
    """Who is first at each ratio that several methods share, and why cells are empty."""
    notes = []
    for ratio in sorted({row["target_macs"] for row in block["rows"]}, reverse=True):
        alike = [row for row in block["rows"] if row["target_macs"] == ratio and row.get("untuned")]
        if len(alike) > 1:
            words = [f"{_first(alike, 'untuned')} untuned"]
            words += [f"{_first(alike, 'recovered')} recovered"] if alike[0].get("recovered") else []
            notes.append(f"First of {len(alike)} at {ratio:g} of the MACs: {', '.join(words)}.")
    reasons = [row for row in block["rows"] if row.get("reason")]
    return [*notes, *(f"{NAMES[row['method']]} at {row['target_macs']:g}: {row['reason']}." for row in reasons)]


def _first(rows: Sequence[Table], state: str) -> str:
    best = max(row[state]["top1"] for row in rows if row.get(state))
    names = [NAMES[row["method"]] for row in rows if row.get(state) and row[state]["top1"] == best]
    return f"{' and '.join(names)} ({best:.2f})"


def models_text(table: Table) -> str:
    """Table 2."""
    names = ["model", "GMACs, published", "top-1, published", "measured", "parameters", "GMACs", "top-1"]
    rows = [_model_words(row, bool(table["recover"])) for row in table["rows"]]
    names += ["recovered"] if table["recover"] else []
    speed = table["settings"]["speed"]
    text = [f"# {table['title']}", ""]
    where = f"Throughput on {table['device']}, batch {speed['batch_size']}, {speed['dtype']}, {_modes(speed)}."
    text += [f"{where} Parameters, MACs and throughput are those of the model that was measured.", ""]
    text += lines([*names, "images/s"], rows)
    notes = [f"{row['name']}: {row['note']}." for row in table["rows"] if row["note"]]
    notes += [f"{row['name']}, {row['measured']}: {row['reason']}." for row in table["rows"] if row["reason"]]
    notes += _lacking(table["rows"])
    return "\n".join([*text, "", *(f"- {note}" for note in notes)]) + "\n"


def _modes(speed: Table) -> str:
    modes = speed["modes"]
    return f"mode {modes[0]}" if len(modes) == 1 and modes[0] != "auto" else "each model in its fastest mode"


def _lacking(rows: Sequence[Table]) -> list[str]:
    """What is missing, with the models that lack it."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        words = re.sub(r"--weights \S+=FILE", "--weights MODEL=FILE", ", ".join(row["missing"]))
        if words:
            found.setdefault(words, {})[row["name"]] = None
    return [f"No top-1, for want of {words}: {', '.join(names)}." for words, names in found.items()]


def _model_words(row: Table, recovered: bool) -> list[str]:
    words = [row["name"], f"{row['published']['gmacs']:g}", f"{row['published']['top1']:.1f}", row["measured"]]
    values: list[tuple[Any, str]] = [(row.get("parameters"), "m"), (row.get("macs"), "g"), (row.get("top1"), "p")]
    values += [(row.get("recovered"), "p")] if recovered else []
    return [*words, *(_number(value, kind) for value, kind in [*values, (row.get("throughput"), "r")])]


def _number(value: float | None, kind: str) -> str:
    if value is None:
        return EMPTY
    return {"m": f"{value / 1e6:.1f} M", "g": f"{value / 1e9:.4g}", "p": f"{value:.2f}", "r": f"{value:.0f}"}[kind]


def throughput_text(table: Table) -> str:
    """All rows of Tables 1 and 2, timed in one run."""
    names = ["model", "method", "MACs kept", "GMACs", "parameters", "images/s", "mode", "speed-up"]
    names += ["images/s, published (V100)", "speed-up, published (V100)"]
    rows = [_speed_words(block, row) for block in table["blocks"] for row in _all_rows(block)]
    failed = [(block["model"], row) for block in table["blocks"] for row in _all_rows(block) if row["reason"]]
    empty = [f"{model}, {NAMES[row['method']]}: {row['reason']}." for model, row in failed]
    speed = table["settings"]["speed"]
    how = f"{table['device']}, torch {table['torch']}, batch {speed['batch_size']}, {speed['dtype']}, {_modes(speed)}, "
    how += "random weights."
    notes = ["", *(f"- {note}" for note in empty)] if empty else []
    return "\n".join([f"# {table['title']}", "", how, "", *lines(names, rows), *notes]) + "\n"


def _all_rows(block: Table) -> list[Table]:
    first = [] if block["base"] is None else [dict(block["base"]) | {"published": block["published"]}]
    return [block["host"], *first, *block["rows"]]


def _speed_words(block: Table, row: Table) -> list[str]:
    known = row.get("published") or {}
    rate, gain = known.get("throughput"), known.get("gain")
    old = [EMPTY if rate is None else str(rate), EMPTY if gain is None else f"{1 + gain / 100:.2f}×"]
    words = [block["model"], NAMES[row["method"]]]
    if row["reason"]:
        return [*words, _asked(row), *[EMPTY] * 5, *old]
    words += [f"{row['macs_ratio']:.3f}", f"{row['macs'] / 1e9:.4g}", _number(row["parameters"], "m")]
    words += [f"{row['throughput']:.0f}", row["mode"], _times(row)]
    return [*words, *old]
