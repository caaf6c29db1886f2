"""Speed of exported files on the CPU: host and slim model, ONNX Runtime and OpenVINO, fp32 and INT8, in turns.

    python benchmarks/export_speed.py --threads 2 --seconds 90 --out results/export_speed_deit_small.json

Random weights serve: speed does not depend on them. INT8 is calibrated on noise, so nothing here tells of accuracy;
`export_accuracy.py` does. The host is timm's, exported as it is, with its convolution for the patch embedding, and once
more with the slim model's. Threads of one session rest while another's turn is on: ONNX Runtime's would look
for work otherwise, and take the cores from the next call.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.export import FORMATS, onnx_file, openvino_file
from patchslim.export.cpu import this_cpu
from patchslim.export.program import portable
from patchslim.files import write_json

RUNTIMES = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
Key = tuple[str, str]  # model, precision


def main() -> None:
    """Export, then time at each batch size."""
    args = options()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    host = timm.create_model(args.model).eval()
    info = ps.inspect(host)
    noise = torch.randn(16, info.channels, *info.image_size)
    config = ps.SearchConfig(target_macs=args.ratio, score="radial", tune_epochs=0)
    plan, _ = ps.search(host, noise[:8], config)
    models = {"host": host, "same_embedding": ps.apply(host, ps.full_plan(host)), "slim": ps.apply(host, plan)}
    ideal = ps.count_macs(host) / ps.count_macs(models["slim"])
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for runtime in args.runtimes:
            files = write_files(models, runtime, noise, Path(folder))
            for batch_size in args.batch_sizes:
                calls = {key: prepare(runtime, path, batch_size, info, args.threads) for key, path in files.items()}
                found = rows_of(runtime, batch_size, time_in_turns(calls, args.seconds), ideal)
                rows += found
                for row in found:
                    print(sentence(row), flush=True)
    table = about(args) | {"patches_per_block": list(plan.counts), "ideal_speedup": ideal, "rows": rows}
    print(f"INT8 instructions of this CPU ({table['cpu']}): {', '.join(table['int8_instructions']) or 'none known'}")
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, table)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--ratio", type=float, default=0.57)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 16])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="for each batch size and runtime, all files together"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def write_files(models: Mapping[str, Any], runtime: str, noise: torch.Tensor, folder: Path) -> dict[Key, Path]:
    """All models in both precisions. Unchecked: the answers of random weights to noise hang on nothing."""
    kind = FORMATS[runtime]
    files: dict[Key, Path] = {}
    assert kind.quantise is not None
    for name, model in models.items():
        plain, coarse = (folder / f"{name}-{precision}{kind.suffix}" for precision in ("fp32", "int8"))
        kind.write(portable(model), plain, "{}")
        kind.quantise(plain, coarse, tensor_images(noise), "{}")
        files |= {(name, "fp32"): plain, (name, "int8"): coarse}
    return files


def prepare(runtime: str, path: Path, batch_size: int, info: ps.HostInfo, threads: int) -> Callable[[], Any]:
    """A call that runs a file once on one batch of noise."""
    images = torch.randn(batch_size, info.channels, *info.image_size).numpy()
    if runtime == "onnx":
        session = onnx_file.session(path, threads)
        return lambda: session.run(None, {onnx_file.INPUT: images})
    request = openvino_file.compiled(path, threads).create_infer_request()
    return lambda: request.infer([images])


def time_in_turns(calls: Mapping[Key, Callable[[], Any]], seconds: float) -> dict[Key, list[float]]:
    """Seconds of each call, one after the other in rounds: a slow moment of the machine falls on all alike."""
    for call in calls.values():
        call()
        call()
    times: dict[Key, list[float]] = {key: [] for key in calls}
    begin = time.perf_counter()
    while len(next(iter(times.values()))) < 5 or time.perf_counter() - begin < seconds:
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
    return times


def rows_of(runtime: str, batch_size: int, times: Mapping[Key, list[float]], ideal: float) -> list[dict[str, Any]]:
    """A row per precision: medians, the slim model's speed-up and its share of the ideal, and what INT8 adds."""
    median = {key: statistics.median(own) for key, own in times.items()}
    rows = []
    for precision in ("fp32", "int8"):
        host, same, slim = (median[name, precision] for name in ("host", "same_embedding", "slim"))
        rows.append(
            {
                "runtime": runtime,
                "precision": precision,
                "batch_size": batch_size,
                "rounds": len(times["host", precision]),
                "host_seconds": host,
                "same_embedding_seconds": same,
                "slim_seconds": slim,
                "host_quartiles": statistics.quantiles(times["host", precision], n=4),
                "slim_quartiles": statistics.quantiles(times["slim", precision], n=4),
                "throughput": batch_size / slim,
                "baseline_throughput": batch_size / host,
                "speedup": host / slim,
                "share_of_ideal": host / slim / ideal,
                "speedup_same_embedding": same / slim,
                "share_of_ideal_same_embedding": same / slim / ideal,
                "host_over_fp32": median["host", "fp32"] / host,
                "slim_over_fp32": median["slim", "fp32"] / slim,
                "over_host_fp32": median["host", "fp32"] / slim,
            }
        )
    return rows


def sentence(row: Mapping[str, Any]) -> str:
    """A row for reading."""
    text = (
        f"{RUNTIMES[row['runtime']]}, {row['precision']}, batch {row['batch_size']}: {row['throughput']:.2f} images/s "
        f"against {row['baseline_throughput']:.2f}, {row['speedup']:.3f}×: {row['share_of_ideal']:.1%} of ideal "
        f"({row['share_of_ideal_same_embedding']:.1%} against the host with the same embedding)"
    )
    if row["precision"] == "int8":
        text += (
            f"; INT8 over fp32 {row['host_over_fp32']:.2f}× (host) and {row['slim_over_fp32']:.2f}× (slim), "
            f"both together {row['over_host_fp32']:.2f}×"
        )
    return text


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Where and with what the rows are measured."""
    cpu = this_cpu()
    versions = {name: str(__import__(name).__version__) for name in ("onnxruntime", "openvino", "nncf")}
    return {
        "model": args.model,
        "ratio": args.ratio,
        "threads": args.threads,
        "cpu": cpu.name,
        "int8_instructions": cpu.int8_instructions,
        "versions": {"torch": torch.__version__} | versions,
    }


if __name__ == "__main__":
    main()
