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
    import patchslim

    command = [sys.executable, "-m", "patchslim"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{patchslim.__version__}\n"
    refused = subprocess.run([*command, "inspect", "no_such_model"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no_such_model" in refused.stderr


def test_public_names_exist() -> None:
    import patchslim

    missing = [name for name in patchslim.__all__ if not hasattr(patchslim, name)]
    assert not missing
    assert callable(patchslim.slim)
    assert callable(patchslim.search)
