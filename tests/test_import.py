"""Importing the package is light and touches no GPU."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import patchslim as ps


def test_import_is_lean_in_any_order() -> None:
    """A room first, then all names: nothing of the extras is imported, and each name is what it should be."""
    code = (
        "import sys, patchslim.methods, patchslim as ps; from patchslim import *; import torch; "
        "EXTRAS = ('matplotlib', 'sklearn', 'pandas', 'transformers', 'onnx', 'onnxscript', 'onnxruntime', 'nncf'); "
        "print([name for name in (*EXTRAS, 'openvino') if name in sys.modules], torch.cuda.is_initialized()); "
        "print(callable(ps.slim), ps.slim is slim, ps.methods is methods is sys.modules['patchslim.methods'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] False", "True True True"]


def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "patchslim", "inspect", "no_such_model"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no_such_model" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_public_names() -> None:
    assert [name for name in ps.__all__ if not hasattr(ps, name)] == []
    assert set(ps.__all__) <= set(dir(ps))
    with pytest.raises(AttributeError, match="has no attribute 'slimm'"):
        _ = ps.slimm
    assert {"Merge", "Cover", "Drop", "Predict", "PS", "DPS", "ToMe"} <= set(ps.methods.__all__)


def test_type_checkers_see_the_names_that_there_are() -> None:
    """What is imported for them alone is what is imported on demand."""
    tree = ast.parse(Path(ps.__file__).read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = [node for node in typed.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert all(alias.asname == alias.name for node in seen for alias in node.names)
    names = {(alias.name, node.module) for node in seen for alias in node.names}
    homes = {(name, f"patchslim.{module}") for name, module in ps._HOMES.items()}
    assert names == homes | {("methods", "patchslim")}


def test_no_room_has_a_public_name() -> None:
    """It would take the place of what the name stands for, as soon as anything imports the room."""
    rooms = {path.stem for path in Path(ps.__file__).parent.iterdir()}
    assert rooms & set(ps.__all__) == {"methods"}
