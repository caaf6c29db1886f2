"""The house of docs/architecture.md: imports go one way, files fit on a few screens, and nothing outside `methods/` or
`steps/` goes by a method's name or a step's kind."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import patchslim
from patchslim import methods
from patchslim.methods.base import METHODS
from patchslim.steps import KINDS as STEP_KINDS

ROOT = Path(__file__).parents[1]
SOURCE = Path(patchslim.__file__).parent
# Rooms in the order in which data passes through them. A room imports from those before it.
ORDER = (
    *("version", "errors", "events", "packages", "files", "folder"),
    *("kernels", "models", "hosts", "cache", "data"),
    *("steps", "plan", "macs", "slimmed"),
    *("timing", "evidence", "search", "recover", "methods", "api"),
    *("quantise", "measure", "exports", "report", "runs", "cli", "__main__"),
)
MOST_LINES, MOST_BODY = 300, 60
# Words that name a method and something else too: a step's kind, a score, a part of a model, how far times lie apart.
OTHER_WORDS = {
    "steps": {"cover", "dynamicvit", "evit", "merge", "power", "predict", "tome"},
    "plan": {"cover"},
    "evidence": {"attention", "radial", "random", "spread"},
    "hosts": {"attention"},
    "search": {"spread"},
    "timing": {"spread"},
}
FINDS_THRESHOLDS = "search/threshold.py"  # the numbers of one kind of step, from images
TELLS_OLD_NAMES = "cli/old.py"  # what a method is called now, in a sentence for users
REGISTRY = {  # what other rooms may take from `methods`
    *("DEFAULT", "PLAINEST", "Fitted", "Method", "Task", "describe", "fit", "make", "model_of", "names", "package_of"),
    *("register", "set_to", "settings_of", "sketches_beside"),
}


def files(source: Path) -> Iterator[tuple[str, ast.Module]]:
    """Every file of a package by its path, parsed."""
    for path in sorted(source.rglob("*.py")):
        yield path.relative_to(source).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def room_of(name: str) -> str:
    """The room a file belongs to: its folder, or its own name."""
    return name.split("/")[0].removesuffix(".py")


def named(node: ast.AST) -> list[str]:
    """Dotted names that an import statement takes from the package."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        found = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    return [name for name in found if name.split(".")[0] == "patchslim"]


def imports_back(source: Path) -> list[str]:
    """Imports of later rooms, of the public names, and of rooms that have no place."""
    wrong = []
    for name, tree in files(source):
        if name == "__init__.py":
            continue
        own = ORDER.index(room_of(name)) if room_of(name) in ORDER else -1
        for node in ast.walk(tree):
            for full in named(node):
                other = full.split(".")[1] if "." in full else "__init__"
                if other not in ORDER or ORDER.index(other) > own:
                    wrong.append(f"{name} imports {full}")
    return wrong


def too_long(source: Path) -> list[str]:
    """Files and function bodies that do not fit."""
    wrong = []
    for name, tree in files(source):
        lines = len((source / name).read_text(encoding="utf-8").splitlines())
        wrong += [f"{name} has {lines} lines"] if lines > MOST_LINES else []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and room_of(name) != "kernels":
                body = (node.end_lineno or 0) - node.body[0].lineno + 1
                wrong += [f"{name}: {node.name} has {body} lines"] if body > MOST_BODY else []
    return wrong


def methods_named(source: Path) -> list[str]:
    """Where files outside `methods/` know a method: by its name as a word of its own, its class, or its module."""
    classes, wrong = {cls.__name__ for cls in METHODS.values()}, []
    for name, tree in files(source):
        room = room_of(name)
        if room == "methods" or name == TELLS_OLD_NAMES:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                known = node.value in METHODS and node.value not in OTHER_WORDS.get(room, ())
                wrong += [f"{name}:{node.lineno} says {node.value!r}"] if known else []
            taken = [full.split(".")[2:] for full in named(node) if full.startswith("patchslim.methods.")]
            wrong += [f"{name} takes {'.'.join(own)}" for own in taken if not {*own} & REGISTRY]
            if isinstance(node, ast.Attribute) and node.attr in classes and "methods" in ast.dump(node.value):
                wrong.append(f"{name}:{node.lineno} takes {node.attr}")
    return wrong


def kinds_asked(source: Path) -> list[str]:
    """Where files outside `steps/` ask for a step's `kind`, or whether it is of the class of one kind."""
    classes, wrong = {cls.__name__ for cls in STEP_KINDS.values()}, []
    for name, tree in files(source):
        if room_of(name) == "steps" or name == FINDS_THRESHOLDS:
            continue
        for node in ast.walk(tree):
            asks = isinstance(node, ast.Attribute) and node.attr == "kind" and "step" in ast.dump(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asks = bool(classes & {own.id for own in ast.walk(node.args[1]) if isinstance(own, ast.Name)})
            wrong += [f"{name}:{getattr(node, 'lineno', 0)} asks for a kind"] if asks else []
    return wrong


def test_imports_never_point_back() -> None:
    assert len(list(files(SOURCE))) > 100
    assert imports_back(SOURCE) == []


def test_every_room_has_a_place_and_every_place_a_room() -> None:
    assert {room_of(name) for name, _ in files(SOURCE)} - {"__init__"} == set(ORDER)


def test_the_page_has_the_rooms_in_this_order() -> None:
    """docs/architecture.md: its table of rooms."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| room | purpose |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    rooms = [room.removesuffix(".py").rstrip("/") for cell in cells for room in re.findall(r"`([\w/.]+)`", cell)]
    assert (*rooms, "__main__") == ORDER


def test_files_and_functions_are_short() -> None:
    assert too_long(SOURCE) == []


def test_nothing_outside_methods_names_a_method() -> None:
    assert methods_named(SOURCE) == []
    assert set(METHODS) & {word for words in OTHER_WORDS.values() for word in words}  # the exceptions are of use
    assert all(hasattr(methods, name) for name in REGISTRY)


def test_nothing_outside_steps_asks_for_a_kind() -> None:
    assert kinds_asked(SOURCE) == []


@pytest.mark.parametrize(
    ("name", "text", "check", "words"),
    [
        (
            "steps/new.py",
            "from patchslim.slimmed import apply",
            imports_back,
            "imports patchslim.slimmed.apply",
        ),
        ("steps/new.py", "import patchslim.methods.merge", imports_back, "imports patchslim.methods.merge"),
        ("steps/new.py", "def f():\n    from patchslim import slimmed", imports_back, "imports patchslim.slimmed"),
        ("cli/new.py", "from patchslim import __version__", imports_back, "imports patchslim.__version__"),
        ("cli/new.py", "import patchslim", imports_back, "imports patchslim"),
        ("attic/new.py", "from patchslim.errors import PlanError", imports_back, "attic/new.py imports"),
        ("slimmed/new.py", "x = 1\n" * 301, too_long, "slimmed/new.py has 301 lines"),
        ("slimmed/new.py", "def f():\n" + "    x = 1\n" * 61, too_long, "slimmed/new.py: f has 61 lines"),
        ("cli/new.py", "method = 'merge'", methods_named, "cli/new.py:1 says 'merge'"),
        ("search/new.py", "if name == 'attention': pass", methods_named, "search/new.py:1 says 'attention'"),
        ("cli/new.py", "from patchslim.methods import Merge", methods_named, "cli/new.py takes Merge"),
        ("cli/new.py", "from patchslim.methods.merge import check_blocks", methods_named, "takes merge.check_blocks"),
        ("runs/new.py", "import patchslim as ps\nps.methods.PS()", methods_named, "runs/new.py:2 takes PS"),
        ("runs/new.py", "x = isinstance(step, (Cover, Merge))", kinds_asked, "runs/new.py:1 asks for a kind"),
        ("search/new.py", "if plan.steps[0].kind == 'merge': pass", kinds_asked, "search/new.py:1 asks for a kind"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, name: str, text: str, check: object, words: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert callable(check)
    (found,) = check(tmp_path)
    assert words in found
