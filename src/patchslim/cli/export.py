"""`patchslim export`: a run as a file for another runtime, checked against PyTorch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from patchslim.cli import options
from patchslim.cli.terminal import note_skipped, report, shown

if TYPE_CHECKING:
    from patchslim.exports import Exported


def export_run(
    context: Context,
    run: options.RunFolder,
    format: Annotated[str, Option(metavar="F", help="onnx, torch-export or openvino.")],
    int8: Annotated[bool, Option("--int8", help="Quantise to INT8, calibrated on the images of --data.")] = False,
    data: options.SomeData = None,
    images: Annotated[int, Option(min=1, help="How many of them to use.")] = 500,
    seed: options.Seed = 0,
    out: Annotated[Path | None, Option(metavar="F", help="The file [RUN/model.onnx, .pt2 or .xml].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a run as ONNX, torch.export or OpenVINO, and check that the file gives the model's own answers."""
    from patchslim.data import open_images
    from patchslim.exports import export, open_format
    from patchslim.exports.cpu import this_cpu
    from patchslim.exports.run import check_request
    from patchslim.runs.manifest import add_made
    from patchslim.runs.store import PLAN, load

    if data is None:
        options.refuse_idle(context, "without --data there is only noise to compare on", "images", "seed")
    kind = open_format(format)
    target = out or run / f"model{'.int8' if int8 else ''}{kind.suffix}"
    check_request(kind, target, int8, data is not None)
    slim = load(run)
    source = None if data is None else open_images(data, model=slim, limit=images, seed=seed)
    with shown("exporting"):
        done = export(slim, target, kind.name, images=source, int8=int8)
    add_made(run, done.files, PLAN)
    if source is not None:
        note_skipped(source.skipped, len(source))
    about: dict[str, Any] = {
        "run": str(run),
        "file": str(done.files[0]),
        "files": [str(path) for path in done.files],
        "format": done.format,
        "precision": "fp32" if done.int8 is None else "int8",
        "bytes": done.bytes,
        "data": data,
    }
    # The numbers on top are those of the file; `fp32` those of what it was quantised from.
    about |= asdict(done.int8 or done.fp32) | {"fp32": asdict(done.fp32), "cpu": asdict(this_cpu())}
    report(about, as_json, sentence(done))


def sentence(done: "Exported") -> str:
    """For reading."""
    found, precision = (done.fp32, "fp32") if done.int8 is None else (done.int8, "INT8")
    ties = f"; {found.ties} images are ties that the last bit decides" if found.ties else ""
    return (
        f"{done.files[0]}: {done.format}, {precision}, {done.bytes / 1e6:.1f} MB; {found.agreement:.2f} % of its "
        f"answers to {found.images} images are PyTorch's, logits differ by at most {found.max_difference:.2g}{ties}"
    )
