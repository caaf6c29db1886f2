"""Table 2 of the paper: slim LV-ViT beside other vision transformers, by MACs, parameters, top-1 and throughput.

    python benchmarks/paper_table2.py --weights lvvit_s=lvvit_s-26M-224-83.3.pth.tar --data TRAIN --val VAL \
        --out results/paper_table2.json

Every model is timm's, or patchslim's own (T2T-ViT, LV-ViT); where timm has only a near relative, the table says so.
Top-1 is measured where weights (and, for slim models, images) are given; MACs and throughput always, or taken from a
file of `paper_throughput.py`, which has these rows too (`--throughput`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import published
from paper_cells import METHODS, NAMES, Block, table2
from paper_harness import Setting, command, options, write_files
from paper_picture import draw_models
from paper_text import models_text
from patchslim.errors import PatchslimError
from patchslim.files import read_json
from speed_rows import SpeedBlock

TITLE = "Table 2: slim LV-ViT beside other vision transformers"
ABOUT = ("device", "torch", "settings")
Found = Mapping[str, Any]  # a block of rows, timed


def timed_before(path: Path | None) -> tuple[dict[str, Any], dict[str, Found]]:
    """Where and how a file of `paper_throughput.py` was measured, and its blocks by model; nothing without a file."""
    if path is None:
        return {}, {}
    table = read_json(path, PatchslimError, "table of throughput")
    missing = [name for name in (*ABOUT, "blocks") if name not in table]
    if missing:
        raise PatchslimError(f"{path} is no file of paper_throughput.py: it has no {missing[0]}.")
    return {name: table[name] for name in ABOUT}, {block["model"]: block for block in table["blocks"]}


def measured(block: Block, setting: Setting, timed: Found | None) -> list[dict[str, Any]]:
    """The table's rows of one model: as it is, and slim; their throughput is taken from `timed`, if there is any."""
    own = [row for row in published.TABLE2 if row.model == block.model]
    plain = timed or _timed(replace(block, cells=()), setting)
    top1 = setting.top1_of(block.model)
    lacks = [] if top1 is not None else [what for what in setting.missing(block.model) if "--data" not in what]
    rows = [_row(next(row for row in own if not row.slim), plain["host"], lacks) | {"top1": top1}]
    slim = _slim(block, setting, timed)
    for row in (row for row in own if row.slim):
        rows += [_row(row, cell, slim["missing"]) for cell in slim["rows"] if _belongs(cell, row)]
    return rows


def _timed(block: Block, setting: Setting) -> Found:
    folder = setting.cells / "plain" / block.model
    return SpeedBlock(block, setting.device, setting.speed).run(folder, setting.args.resume)


def _slim(block: Block, setting: Setting, timed: Found | None) -> Found:
    lacks = setting.missing(block.model)
    if not block.cells or (timed and lacks):
        return {"rows": timed["rows"] if timed else [], "missing": lacks}
    return setting.block(block)


def _belongs(cell: dict[str, Any], row: published.Model) -> bool:
    return bool(cell["target_macs"] == row.ratio and cell["method"] in (*METHODS[row.slim], "ps-matched"))


def _row(row: published.Model, cell: dict[str, Any], lacks: list[str]) -> dict[str, Any]:
    """A row of the table: what is published, and what was measured."""
    name = row.model if cell["method"] == "host" else f"{row.model}, {NAMES[cell['method']]}"
    scores = {key: cell[own]["top1"] for key, own in (("top1", "untuned"), ("recovered", "recovered")) if own in cell}
    wanted = ("method", "parameters", "macs", "macs_ratio", "throughput", "mode", "modes", "reason", "detail")
    known = {key: cell[key] for key in wanted if key in cell}
    about = {"name": row.name, "measured": name, "note": row.note, "missing": lacks, "published": row.as_dict()}
    return about | known | scores


def main() -> None:
    """Measure model by model, writing after each."""
    parser = options(__doc__)
    known = list(dict.fromkeys(row.model for row in published.TABLE2))
    parser.add_argument("--models", nargs="+", choices=known, default=known, metavar="MODEL")
    parser.add_argument("--throughput", type=Path, help="a file of paper_throughput.py, to time nothing anew")
    args = parser.parse_args()
    setting = Setting(args, "paper_table2")
    rows: list[dict[str, Any]] = []
    about, timed = timed_before(args.throughput)
    table = setting.about() | about | {"title": TITLE, "recover": args.recover, "rows": rows}
    for block in table2(args.models):
        rows += measured(block, setting, timed.get(block.model))
        write_files(table, setting.out, models_text(table), partial(draw_models, rows))
    print(models_text(table))


if __name__ == "__main__":
    command(main)
