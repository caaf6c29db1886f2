"""Importing the package is light and touches no GPU."""

import subprocess
import sys


def test_import_is_lean() -> None:
    code = (
        "import sys, patchslim, torch; EXPORT = ('onnx', 'onnxscript', 'onnxruntime', 'openvino', 'nncf'); "
        "print([name for name in ('matplotlib', 'sklearn', 'pandas', 'transformers', *EXPORT) if name in sys.modules], "
        "torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] False"


def test_the_package_is_a_command_too() -> None:
    command = [sys.executable, "-m", "patchslim", "inspect", "no_such_model"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no_such_model" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_public_names() -> None:
    import patchslim as ps

    assert [name for name in ps.__all__ if not hasattr(ps, name)] == []
    assert callable(ps.slim)  # the verb, though a package within has its name
    assert {"Merge", "Cover", "Drop", "Predict", "PS", "DPS", "ToMe"} <= set(ps.methods.__all__)
