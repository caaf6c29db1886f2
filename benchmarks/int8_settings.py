"""Settings of INT8 compared: how close the files' answers stay to the fp32 model's, on images they never saw.

    python benchmarks/int8_settings.py RUN --data TRAIN --out results/int8_settings_deit_tiny.json

All images are training images: --images of them calibrate, --judges others judge, by the KL divergence from the fp32
model's output, in nats, and by how often the answer is the same. Both the run's slim model and its host are quantised.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from harness import closeness, in_memory
from patchslim.data import ImageSource
from patchslim.data.tensors import TensorImages
from patchslim.export import FORMATS, onnx_file, openvino_file
from patchslim.export.program import portable
from patchslim.files import write_json
from patchslim.measure import device_name
from patchslim.slim import load_host

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "onnx": [
        {"options": {}},
        {"signed": True, "options": {"ActivationSymmetric": True}},
        {"options": {"CalibMovingAverage": True}},
        {"ranges": "Percentile", "options": {"CalibTensorRangeSymmetric": False, "CalibPercentile": 99.999}},
        {"ranges": "Percentile", "options": {"CalibTensorRangeSymmetric": False, "CalibPercentile": 99.99}},
        {"ranges": "Entropy", "options": {}},
    ],
    "openvino": [
        {"smooth": alpha, "correct_biases": correct}
        for correct, alphas in ((False, (-1.0, 0.15, 0.3, 0.5, 0.7, 0.95)), (True, (-1.0, 0.5)))
        for alpha in alphas
    ],
}
HISTOGRAM_IMAGES = 64  # ONNX Runtime keeps all that these give in memory


def main() -> None:
    """Quantise in every way, judge each."""
    args = options()
    host, slim = load_host(args.run), ps.load(args.run)
    both = ps.open_images(args.data, model=host, limit=args.images + args.judges, seed=args.seed)
    # In the file classes stand in order.
    mixed = torch.randperm(len(both), generator=torch.Generator().manual_seed(args.seed)).tolist()
    source, judges = (in_memory(both.subset(part)) for part in (mixed[: args.images], mixed[args.images :]))
    rows: list[dict[str, Any]] = []
    for name, model in (("host", host), ("slim", slim)):
        wanted = answers(portable(model), judges)
        for runtime in args.runtimes:
            rows += [{"model": name} | row for row in judge(runtime, model, wanted, source, judges)]
    table = {
        "model": slim.host_info.name,
        "device": device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "macs_ratio": ps.count_macs(slim) / ps.count_macs(host),
        "calibration_images": len(source),
        "judging_images": len(judges),
        "seed": args.seed,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, table)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--judges", type=int, default=700)
    parser.add_argument("--runtimes", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def judge(
    runtime: str, model: nn.Module, wanted: Tensor, source: TensorImages, judges: ImageSource
) -> list[dict[str, Any]]:
    """A row for every setting of a runtime; wanted (images, classes) are the fp32 model's logits."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / f"fp32{FORMATS[runtime].suffix}"
        FORMATS[runtime].write(portable(model), plain, "{}")
        for setting in SETTINGS[runtime]:
            coarse = plain.with_stem("int8")
            quantise(runtime, plain, coarse, source, setting)
            found = answers(FORMATS[runtime].runner(coarse), judges)
            rows.append({"runtime": runtime, "setting": setting} | closeness(nn.Identity(), found, wanted))
            print(rows[-1], flush=True)
    return rows


def quantise(runtime: str, plain: Path, coarse: Path, source: TensorImages, setting: Mapping[str, Any]) -> None:
    """One INT8 file."""
    if runtime == "openvino":
        openvino_file.quantise(plain, coarse, source, "{}", **setting)
        return
    if "ranges" in setting:
        source = source.subset(range(HISTOGRAM_IMAGES))
    onnx_file.quantise(plain, coarse, source, "{}", **{"options": {}, **setting})


@torch.no_grad()
def answers(run: Any, images: ImageSource) -> Tensor:
    """Logits of all images: (images, classes)."""
    return torch.cat([run(pixels) for pixels, _ in images.batches(50)])


if __name__ == "__main__":
    main()
