"""The snippets of docs/export.md run as they stand, on the files of a small model."""

import re
import shutil
from pathlib import Path

import pytest

import patchslim as ps
from commands import image_folder
from exports.exported import exported, slim_way

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    ps.save(slim_way("drop"), "runs/deit_s")
    image_folder(tmp_path / "my_images")
    for format in ("onnx", "openvino", "torch-export"):
        for path in exported("drop", format)[1].files:
            shutil.copy(path, Path("runs/deit_s") / path.name)
    every = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    snippets = [snippet for snippet in every if "quantised(" not in snippet]  # tests/test_quantise.py runs that one
    assert (len(every), len(snippets)) == (6, 5)
    for snippet in snippets:
        scope: dict[str, object] = {}
        exec(snippet, scope)
        if "logits" in scope:
            assert tuple(scope["logits"].shape) == (2, 7)  # type: ignore[attr-defined]
    assert Path("deit_s.pt2").exists()
