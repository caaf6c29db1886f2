"""Prints the paper's tables from the raw files under results/, or puts them into docs/paper.md where they belong, and
the methods at 55 % of DeiT-Ti's MACs into the README.

python benchmarks/paper_tables.py [--write]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import RESULTS
from paper_text import blocks_text, models_text, ratio_lines, throughput_text
from patchslim.files import write_text

PAGE = RESULTS.parent / "docs" / "paper.md"
README, SHORT = RESULTS.parent / "README.md", ("paper_table1_deit_tiny_h200_*.json", 0.55)
NOTHING = "Not measured yet at full size: no raw file under `results/`.\n"
TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "paper_table1": blocks_text,
    "paper_table2": models_text,
    "paper_table3": blocks_text,
    "paper_throughput": throughput_text,
}


def body(name: str, folder: Path) -> str:
    """All measured tables of one kind, below the heading that the page gives them."""
    parts = []
    for path in sorted(folder.glob(f"{name}_*.json")):
        _, _, text = TEXTS[name](json.loads(path.read_text(encoding="utf-8"))).partition("\n\n")
        parts.append(f"`results/{path.name}`:\n\n{text.replace('## ', '#### ').rstrip()}\n")
    return "\n".join(parts)


def filled(page: str, folder: Path = RESULTS) -> str:
    """The page with every table between its marks as the raw files have it."""
    for name in TEXTS:
        page = _between(page, name, body(name, folder) or NOTHING)
    return page


def shortened(page: str) -> str:
    """The README with the methods at one ratio."""
    pattern, ratio = SHORT
    (path,) = RESULTS.glob(pattern)
    (block,) = json.loads(path.read_text(encoding="utf-8"))["blocks"]
    return _between(page, "paper_table1", "\n".join(ratio_lines(block, ratio)) + "\n")


def _between(page: str, name: str, text: str) -> str:
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    page, found = re.subn(f"{start}.*?{end}", lambda _: f"{start}\n{text}\n{end}", page, flags=re.S)
    assert found == 1, name
    return page


def main() -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/paper.md and the README")
    if parser.parse_args().write:
        write_text(PAGE, filled(PAGE.read_text(encoding="utf-8")))
        write_text(README, shortened(README.read_text(encoding="utf-8")))
    else:
        print("\n".join(body(name, RESULTS) for name in TEXTS))


if __name__ == "__main__":
    main()
