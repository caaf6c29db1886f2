"""Table 1 of the paper: DeiT-Ti, -S, -B and T2T-ViT-14, slimmed by every method to the MACs of its published row.

    python benchmarks/paper_table1.py --weights deit_tiny_patch16_224=deit_tiny.safetensors --data TRAIN --val VAL \
        --recover 12 --out results/paper_table1_deit_tiny.json

Writes the raw JSON, and beside it the table as Markdown and a picture. Rows of the paper come first, at its ratios;
then what users would take today, at the ratios of the paper's own rows. Of a model whose weights are not given MACs and
throughput are measured, with random weights. `--also 0.55` measures every method at a ratio of your own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import published
from paper_cells import table1
from paper_harness import Setting, command, options, write_files
from paper_picture import draw_blocks
from paper_text import blocks_text

TITLE = "Table 1: methods on DeiT-Ti, -S, -B and T2T-ViT-14"


def main() -> None:
    """Measure block by block, writing after each."""
    parser = options(__doc__)
    known = list(dict.fromkeys(row.model for row in published.TABLE1))
    parser.add_argument("--models", nargs="+", choices=known, default=known, metavar="MODEL")
    parser.add_argument("--also", nargs="+", type=float, default=[], metavar="RATIO", help="every method at these too")
    args = parser.parse_args()
    setting = Setting(args, "paper_table1")
    blocks: list[dict[str, Any]] = []
    table = {"title": TITLE, "blocks": blocks}
    for block in table1(args.models, args.also):
        blocks.append(setting.block(block))
        write_files(table, setting.out, blocks_text(table), partial(draw_blocks, blocks))
    print(blocks_text(table))


if __name__ == "__main__":
    command(main)
