"""Table 3 of the paper: patches per block as they are learnt, against the same number in every block, at equal MACs.

    python benchmarks/paper_table3.py --weights deit_tiny_patch16_224=deit_tiny.safetensors --data TRAIN --val VAL \
        --recover 12 --out results/paper_table3_deit_tiny.json

The paper has DeiT-S, after tuning; `--models` names what to measure, at the same ratio. Uniform pruning keeps patches
by the paper's score, as `PS, as the paper says` does; `PS, patchslim's` is `patchslim slim` with its defaults.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import published
from paper_cells import table3
from paper_harness import Setting, command, options, write_files
from paper_picture import draw_blocks
from paper_text import blocks_text

TITLE = "Table 3: learned against uniform"


def main() -> None:
    """Measure block by block, writing after each."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=[published.TI, published.S], metavar="MODEL")
    args = parser.parse_args()
    setting = Setting(args, "paper_table3")
    blocks: list[dict[str, Any]] = []
    table = {"title": TITLE, "blocks": blocks}
    for block in table3(args.models):
        blocks.append(setting.block(block))
        write_files(table, setting.out, blocks_text(table), partial(draw_blocks, blocks))
    print(blocks_text(table))


if __name__ == "__main__":
    command(main)
