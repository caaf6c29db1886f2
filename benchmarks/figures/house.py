"""A picture of the house: the rooms of `src/patchslim` in order, with the imports that the code really has.

`python -m benchmarks figures house` or `python benchmarks/figures/house.py [FILE]`; nothing of patchslim is imported.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, PICTURE = ROOT / "src" / "patchslim", ROOT / "docs" / "architecture.png"
PACKAGE = "patchslim"
# Rows of the picture from top to bottom; within a row, and from row to row, in the order of imports.
ROWS: dict[str, tuple[str, ...]] = {
    "basics": ("version", "errors", "files", "packages", "events"),
    "what a ViT is": ("kernels", "models", "hosts", "data"),
    "how it is slimmed": ("steps", "plan", "macs", "slim"),
    "what to remove": ("timing", "evidence", "search", "recover", "methods"),
    "what comes out": ("api", "measure", "export", "report", "runs"),
    "commands": ("cli", "__main__"),
}
ORDER = tuple(room for rooms in ROWS.values() for room in rooms)


def room_of(path: Path) -> str:
    """The room a file of the package belongs to: its folder, or its own name."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_named(node: ast.AST) -> set[str]:
    """Rooms that one import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        single = node.module == PACKAGE
        names = [f"{PACKAGE}.{alias.name}" for alias in node.names] if single else [node.module]
    else:
        names = []
    return {name.split(".")[1] for name in names if name.startswith(PACKAGE + ".")}


def imports(source: Path = SOURCE) -> Counter[tuple[str, str]]:
    """(room, room it imports from) → how many of its files do, the public names of `__init__.py` aside."""
    known = {room_of(path) for path in source.rglob("*.py")}
    found: Counter[tuple[str, str]] = Counter()
    for path in source.rglob("*.py"):
        if path == source / "__init__.py":
            continue
        own = room_of(path)
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named |= rooms_named(node)
        found.update((own, other) for other in named & known if other != own)
    return found


def lines(source: Path = SOURCE) -> Counter[str]:
    """Lines of code in each room."""
    found: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        found[room_of(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def places() -> dict[str, tuple[float, float]]:
    """Where each room stands: rows from the top, rooms from left to right."""
    widest = max(len(rooms) for rooms in ROWS.values())
    found = {}
    for row, rooms in enumerate(ROWS.values()):
        left = (widest - len(rooms)) / 2
        found |= {room: (left + place, -float(row)) for place, room in enumerate(rooms)}
    return found


def essential(edges: Counter[tuple[str, str]]) -> set[tuple[str, str]]:
    """Imports that no chain of other imports leads along: those that make the picture."""
    below = {room: {other for own, other in edges if own == room} for room in ORDER}

    def reached(room: str) -> set[str]:
        return below[room].union(*(reached(other) for other in below[room] if ORDER.index(other) < ORDER.index(room)))

    return {
        (own, other)
        for own, other in edges
        if not any(other in reached(step) for step in below[own] - {other} if ORDER.index(step) < ORDER.index(own))
    }


def drawn(source: Path = SOURCE) -> Counter[tuple[str, str]]:
    """The imports between rooms of the picture, less those of the basics, which everything imports."""
    basics = ROWS["basics"]
    found = imports(source)
    return Counter({edge: n for edge, n in found.items() if set(edge) <= set(ORDER) and edge[1] not in basics})


def draw(path: Path = PICTURE) -> None:
    """Every import as a line, one that points the other way in red; faint where a chain of others leads there too."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    at, size, edges = places(), lines(), drawn()
    strong = essential(edges)
    figure, axes = plt.subplots(figsize=(10, 7))
    for own, other in sorted(edges, key=lambda edge: edge in strong):
        back, main = ORDER.index(other) > ORDER.index(own), (own, other) in strong
        look = {"color": "#c0392b" if back else "#2c5f8a" if main else "#b8c6d6", "lw": 1.6 if main or back else 0.7}
        bend = {"connectionstyle": "arc3,rad=0.12", "shrinkA": 14, "shrinkB": 20, "arrowstyle": "->" if main else "-"}
        axes.annotate("", xy=at[other], xytext=at[own], arrowprops=look | bend, zorder=1)
    for room, (x, y) in at.items():
        text = f"{room}\n{size[room]:,} lines" if size[room] else room
        box = {"boxstyle": "round,pad=0.45", "fc": "#eef3f8" if size[room] else "white", "ec": "#34495e", "lw": 1.0}
        axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=box, zorder=2)
    for row, name in enumerate(ROWS):
        axes.text(-1.35, -float(row), name, ha="left", va="center", fontsize=9, style="italic", color="#34495e")
    axes.set_xlim(-1.4, max(len(rooms) for rooms in ROWS.values()) - 0.3)
    axes.set_ylim(-len(ROWS) + 0.4, 0.5)
    axes.axis("off")
    title = (
        "A room imports from rooms before it (arrow); faint where a chain of arrows leads there too; basics serve all"
    )
    axes.set_title(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw it, and tell of rooms that the picture does not know and imports that point back."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    draw(path)
    strangers = sorted(set(lines()) - set(ORDER) - {"__init__"})
    back = [
        f"{own} imports {other}"
        for own, other in imports()
        if {own, other} <= set(ORDER) and ORDER.index(other) > ORDER.index(own)
    ]
    print(
        f"{path}; rooms it does not know: {', '.join(strangers) or 'none'}; imports back: {', '.join(back) or 'none'}"
    )


if __name__ == "__main__":
    main()
