"""A picture of the house: the rooms of `src/patchslim` in order, with the imports that the code really has.

The sources are read, not imported. `tests/test_architecture.py` holds the same order.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from patchslim.files import replacing
from patchslim.report.pictures import new_figure

ROOT = Path(__file__).parents[2]
SOURCE, PICTURE = ROOT / "src" / "patchslim", ROOT / "docs" / "architecture.png"
PACKAGE = "patchslim"
TITLE = "An arrow: imports from. Arrows along which a chain of others leads are left out; the basics serve all rooms."
# Rows of the picture from top to bottom; within a row, and from row to row, in the order of imports.
ROWS: dict[str, tuple[str, ...]] = {
    "basics": ("version", "errors", "events", "packages", "files", "folder"),
    "what a ViT is": ("kernels", "models", "hosts", "cache", "data"),
    "how it is slimmed": ("steps", "plan", "macs", "slimmed"),
    "what to remove": ("timing", "evidence", "search", "recover", "methods"),
    "what comes out": ("api", "quantise", "measure", "exports", "report", "runs"),
    "commands": ("cli", "__main__"),
}
BACKWARDS = "how it is slimmed"
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
    """Where each room stands: rows from the top; rooms from left to right, one row back, so that arrows stay short."""
    widest = max(len(rooms) for rooms in ROWS.values())
    found: dict[str, tuple[float, float]] = {}
    for row, (name, rooms) in enumerate(ROWS.items()):
        left = (widest - len(rooms)) / 2
        shown = rooms[::-1] if name == BACKWARDS else rooms
        found |= {room: (left + place, -float(row)) for place, room in enumerate(shown)}
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


def faults(source: Path = SOURCE) -> list[str]:
    """Rooms that have no place in the picture, and imports that point back."""
    strangers = [f"{room} has no place" for room in sorted(set(lines(source)) - set(ORDER) - {"__init__"})]
    known = sorted(edge for edge in imports(source) if set(edge) <= set(ORDER))
    back = [f"{own} imports {other}" for own, other in known if ORDER.index(other) > ORDER.index(own)]
    return strangers + back


def draw(path: Path) -> None:
    """An arrow for every import that no chain of others leads along; in red where it points back."""
    figure = new_figure(11, 7.5)
    axes, at, size = figure.subplots(), places(), lines()
    box = {"boxstyle": "round,pad=0.5", "fc": "#eef3f8", "ec": "#34495e", "lw": 1.0}
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5, "bbox": box, "zorder": 2}
    shown = {room: axes.text(*at[room], f"{room}\n{size[room]:,} lines", **style) for room in ORDER}
    for own, other in sorted(essential(drawn())):
        back, level = ORDER.index(other) > ORDER.index(own), at[own][1] == at[other][1]
        far = level and abs(at[own][0] - at[other][0]) > 1
        look: dict[str, Any] = {"color": "#c0392b" if back else "#2c5f8a", "lw": 1.4, "arrowstyle": "-|>"}
        look["connectionstyle"] = f"arc3,rad={0.35 if far else 0 if level else 0.08}"
        ends = {"patchA": shown[own].get_bbox_patch(), "patchB": shown[other].get_bbox_patch()}
        axes.annotate("", xy=at[other], xytext=at[own], arrowprops=look | ends | {"shrinkA": 0, "shrinkB": 1}, zorder=1)
    for row, name in enumerate(ROWS):
        axes.text(-1.35, -float(row), name, ha="left", va="center", fontsize=9.5, style="italic", color="#34495e")
    axes.set_xlim(-1.4, max(len(rooms) for rooms in ROWS.values()) - 0.4)
    axes.set_ylim(-len(ROWS) + 0.5, 0.5)
    axes.axis("off")
    axes.set_title(TITLE, fontsize=10)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def house(out: Annotated[Path, typer.Option("--out", help="The picture.")] = PICTURE) -> None:
    """Draw the rooms of the package and their imports; say which rooms have no place and which imports point back."""
    draw(out)
    print("\n".join([str(out), *faults()]))
