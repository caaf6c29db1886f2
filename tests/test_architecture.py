"""Imports go one way: a room knows the rooms before it, never those after it."""

import ast
from pathlib import Path

import patchslim

# Rooms in the order in which data passes through them.
ORDER = (
    *("version", "errors", "files", "packages", "timing", "models", "hosts", "plan", "macs", "data", "scores", "slim"),
    *("search", "recover", "api", "runs", "quantise", "measure", "export", "peers", "report", "cli", "__main__"),
)
SOURCE = Path(patchslim.__file__).parent


def room(name: str) -> str:
    """patchslim.search.run → search."""
    return name.split(".")[1]


def imported(path: Path) -> set[str]:
    """Rooms that a file imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {room(name) for name in names if name.startswith("patchslim.")}
    return found


def test_imports_never_point_back() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert len(files) > 40
    back = []
    for path in files:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        back += [f"{path.relative_to(SOURCE)} imports {other}" for other in imported(path) if rank(other) > rank(own)]
    assert back == []


def rank(name: str) -> int:
    """A room's place; every room has one."""
    return ORDER.index(name)
