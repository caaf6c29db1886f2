"""`export`: write, check, quantise, check again, and only then put the file where it was asked for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.data import AnyImages, ImageSource, as_source
from patchslim.errors import ExportError
from patchslim.exports.formats import Format, metadata_of, open_format
from patchslim.exports.parity import Parity, check, compare, noise
from patchslim.exports.pt2_file import check_exportable, info_of, portable
from patchslim.files import drafts, remove_leftovers
from patchslim.packages import need, need_nncf

WORST = 50.0  # percent of answers that an INT8 file has to share with the model: below, it is broken and not coarse


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked."""

    files: tuple[Path, ...]  # the one to open first
    format: str
    fp32: Parity  # the file, or the one it was quantised from, against the model
    int8: Parity | None

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.files)


def export(
    model: nn.Module,
    path: str | Path,
    format: str = "onnx",
    *,
    images: AnyImages | None = None,
    int8: bool = False,
) -> Exported:
    """Write a slim model, or a host, as a file for another runtime, and check that it says the same.

    `images` are those to compare on (else seeded noise) and, with `int8`, to calibrate on. The file takes images
    (B, C, H, W), float32 and normalised, for any B. Metadata travels in it: see `read_metadata`.
    """
    kind, target = open_format(format), Path(path)
    check_request(kind, target, int8, images is not None)
    check_exportable(model)
    info, told, model = info_of(model), metadata_of(model), portable(model)
    source = noise(info) if images is None else as_source(images, info)
    try:
        place = _nearest(target) / target.name
        remove_leftovers(place)
        with drafts(place) as folder:
            draft = folder / f"fp32{kind.suffix}"
            kind.write(model, draft, json.dumps(told))
            found, rough = compare(model, kind.runner(draft), source), None
            check(found)
            if int8:
                draft, rough = _quantised(kind, model, draft, source, told)
            return Exported(_place(draft, target), kind.name, found, rough)
    except OSError as error:
        raise ExportError(f"The file can't be written to {target}: {error.strerror or error}.") from None


def check_request(kind: Format, target: Path, int8: bool, has_images: bool) -> None:
    """Raise ExportError for what can be known to fail before anything is loaded."""
    if int8 and kind.quantise is None:
        raise ExportError(f"INT8 goes with onnx and openvino, not with {kind.name}; choose one of those.")
    if int8 and not has_images:
        raise ExportError("INT8 is calibrated on images; give some (on the command line with --data).")
    if target.suffix != kind.suffix:
        raise ExportError(f"A file of the format {kind.name} ends in {kind.suffix}, and {target} does not; rename it.")
    if target.is_dir():
        raise ExportError(f"{target} is a folder; give the name of a file.")
    for package in kind.needs:
        need(package)
    if int8 and "nncf" in kind.int8_needs:
        need_nncf()


def _nearest(target: Path) -> Path:
    """The closest folder above a file that is there already: what is written there can be moved at once."""
    return next(folder for folder in target.absolute().parents if folder.is_dir())


def _quantised(
    kind: Format, model: nn.Module, draft: Path, source: ImageSource, told: Mapping[str, Any]
) -> tuple[Path, Parity]:
    assert kind.quantise is not None
    coarse = draft.with_name(f"int8{kind.suffix}")
    kind.quantise(draft, coarse, source, json.dumps(dict(told) | {"precision": "int8"}))
    found = compare(model, kind.runner(coarse), source, find_ties=False)  # INT8 rounds everything
    if found.agreement < WORST:
        raise ExportError(
            f"In INT8 only {found.agreement:.1f} % of the answers are the model's, over {found.images} images; "
            "it was not kept. Calibrate on more images, or ones more like those it will see."
        )
    return coarse, found


def _place(draft: Path, target: Path) -> tuple[Path, ...]:
    """Move the files of a draft under the target's name, the one to open first last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    suffixes = sorted({path.suffix for path in draft.parent.glob(f"{draft.stem}.*")} - {draft.suffix})
    placed = [draft.with_suffix(suffix).replace(target.with_suffix(suffix)) for suffix in suffixes]
    return draft.replace(target), *placed
