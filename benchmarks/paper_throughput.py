"""Throughput of all rows of the paper's Tables 1 and 2, in one run on one device, with random weights.

    python benchmarks/paper_throughput.py --modes graph --out results/paper_throughput_h200_torch2.11_bf16.json

Every model and what each method makes of it, at the MACs of the published row; each row beside its base, in its
fastest mode. Counts of patchslim's own rows and of PoWER's have the shape of a plan, as nothing is searched for
(drawn.py). A row is written as soon as it is measured; one that fails leaves its reason, and `--resume` goes on.
`--warm` only fills the compiler's cache, so that several processes can compile before one measures.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

from paper_cells import Block, table1, table2, without_twins
from paper_harness import Setting, command, speed_options, write_files
from paper_picture import draw_blocks
from paper_text import throughput_text
from patchslim.files import write_json
from patchslim.peers.store import Row
from speed_rows import Listen, SpeedBlock

TITLE = "Throughput of all rows of Tables 1 and 2"


def blocks_of_both() -> dict[str, Block]:
    """Every model once, with the cells of both tables; Table 1's published row is the base's, which has throughput."""
    found = {block.model: block for block in table1()}
    for block in table2():
        first = found.get(block.model, block)
        found[block.model] = replace(first, cells=tuple(dict.fromkeys((*first.cells, *block.cells))))
    return {model: without_twins(block) for model, block in found.items()}


def main() -> None:
    """Measure model by model, writing after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = blocks_of_both()
    parser.add_argument("--models", nargs="+", choices=list(known), default=list(known), metavar="MODEL")
    parser.add_argument("--warm", action="store_true")
    speed_options(parser)
    parser.set_defaults(seconds=0.5)
    args = parser.parse_args()
    setting = Setting(args, "paper_throughput")
    blocks: list[dict[str, Any]] = []
    table = setting.about() | {"title": TITLE, "blocks": blocks}
    done: list[Row] = []

    def listen(row: Row) -> None:
        done.append(row)
        if not args.warm:
            write_json(setting.out, table | {"unfinished": done})

    for model in args.models:
        found = _measured(known[model], setting, listen)
        if args.warm:
            continue
        blocks.append(found)
        done.clear()
        write_files(table, setting.out, throughput_text(table), partial(draw_blocks, blocks))
    if not args.warm:
        print(throughput_text(table))


def _measured(block: Block, setting: Setting, listen: Listen) -> dict[str, Any]:
    args = setting.args
    folder = None if args.warm else setting.cells / block.model
    found = SpeedBlock(block, setting.device, setting.speed, args.warm).run(folder, args.resume, listen)
    rows = [row | {"published": block.published(row["method"], row["target_macs"])} for row in found["rows"]]
    return found | {"missing": [f"weights of {block.model}"], "published": block.published_base, "rows": rows}


if __name__ == "__main__":
    command(main)
