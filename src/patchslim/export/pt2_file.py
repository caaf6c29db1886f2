"""torch.export's own file, a .pt2: a zip archive with the graph, the weights and the metadata."""

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import ExportError, first_words
from patchslim.export.program import info_of, to_program
from patchslim.packages import quiet

EXTRA = "patchslim.json"  # the metadata's name among the archive's extra files


def write(model: nn.Module, path: Path, metadata: str) -> None:
    """Write one file with all weights in it."""
    program: Any = to_program(model)
    program.example_inputs = None  # images of zeros that torch would save beside the weights
    try:
        with quiet():
            torch.export.save(program, path, extra_files={EXTRA: metadata})
    except OSError:
        raise
    except Exception as error:
        raise ExportError(f"torch.export can't save {info_of(model).name}: {first_words(error)}.") from None


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Run a file: images (B, C, H, W) → logits (B, classes)."""
    with quiet():
        module: Any = torch.export.load(path).module()
    return lambda images: module(images)


def read_text(path: Path) -> str | None:
    """The metadata as it was written; nothing else in the archive is opened."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).parts[-2:] == ("extra", EXTRA):
                    return archive.read(name).decode("utf-8")
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise ExportError(f"{path} is not a readable .pt2 file: {first_words(error)}.") from None
    return None
