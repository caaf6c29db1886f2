"""The table of GPU speed in docs/results.md: hosts, slim models and peers' own code, in turns in one process.

    python benchmarks/gpu_speed.py --models deit_small_patch16_224 --batch-sizes 256 1 --dtype bfloat16 \
        --tome path/to/ToMe --evit path/to/evit --out results/gpu_speed.json

Speed does not depend on what the weights are, so they are random, and so are the masks of static plans. Every model
runs in every mode that works for it (eager, compiled, recorded as a CUDA graph, both) and counts by its best. Peers run
from checkouts of their repositories, at their own setting with the most MACs not above ours. `--warm` only fills the
compiler's cache, so that several models can be compiled at once before anything is timed.
"""

from __future__ import annotations

import argparse
import copy
import signal
import sys
import time
import types
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from drawn import THREE_STEPS, matched_by_distance, matched_plan, static_plan
from paper_harness import command
from patchslim.cli.common import open_device
from patchslim.files import write_json
from patchslim.hosts import HostInfo, open_host, with_matmul_embed
from patchslim.macs import host_macs
from patchslim.measure import device_name
from patchslim.timing.latency import in_turns
from patchslim.timing.modes import Ready, modes_for, prepare
from patchslim.timing.running import DTYPES, forget_compiled


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["deit_tiny_patch16_224"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[256])
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--ratio", type=float, default=0.57, help="of the host's MACs")
    parser.add_argument("--modes", nargs="+", default=["auto"])
    parser.add_argument("--tome", type=Path, help="a checkout of ToMe's repository")
    parser.add_argument("--evit", type=Path, help="a checkout of EViT's repository")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row in each mode")
    parser.add_argument(
        "--patience", type=int, default=600, help="seconds to make a row ready; compilers may take longer"
    )
    parser.add_argument("--sort", choices=["library", "compiler"], default="library", help="of compiled models")
    parser.add_argument("--device")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def counted(model: nn.Module, info: HostInfo) -> int:
    """MACs per image of a model whose attention is not fused."""
    shapes = copy.deepcopy(model).to("meta")  # nothing is computed
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes(torch.zeros(1, info.channels, *info.image_size, device="meta"))
    return int(counter.get_total_flops()) // 2


def most_within(make: Callable[[int], nn.Module], settings: Sequence[int], info: HostInfo, ratio: float) -> nn.Module:
    """The model with the most MACs within the ratio, of settings in order of falling MACs."""
    place = bisect_left(settings, True, key=lambda own: counted(make(own), info) <= ratio * host_macs(info))
    if place == len(settings):
        raise ValueError(f"a peer can't come down to {ratio} of the MACs")
    return make(settings[place])


def tome(host: nn.Module, info: HostInfo, ratio: float, folder: Path) -> nn.Module:
    """ToMe's own code with the least r that comes down to the ratio."""
    sys.path.insert(0, str(folder))
    from tome.patch import timm as patch  # type: ignore[import-not-found]

    model: Any = copy.deepcopy(host)
    patch(model)

    def make(r: int) -> nn.Module:
        model.r = r
        return model  # type: ignore[no-any-return]

    return most_within(make, range(1, info.patches), info, ratio)


def evit(host: Any, info: HostInfo, ratio: float, folder: Path) -> nn.Module:
    """EViT's own code, tokens leaving at its three places and fused, at the highest rate within the ratio."""
    sys.path.insert(0, str(folder))
    for name, has in _old_timm().items():  # it is written for a timm of 2021
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(has)
    from evit import EViT  # type: ignore[import-not-found]

    third = info.depth // 4
    shape = {"embed_dim": info.width, "depth": info.depth, "num_heads": info.heads, "qkv_bias": True}

    def make(percent: int) -> nn.Module:
        rates = [percent / 100 if block in (third, 2 * third, 3 * third) else 1.0 for block in range(info.depth)]
        return EViT(keep_rate=tuple(rates), fuse_token=True, **shape).eval()  # type: ignore[no-any-return]

    return most_within(make, range(99, 0, -1), info, ratio)


def _old_timm() -> dict[str, dict[str, Any]]:
    """Modules that EViT imports, with what it uses of them."""
    from timm import layers

    def unused(*args: Any, **settings: Any) -> Any:
        return args[0] if args else None

    return {
        "torchprofile": {"profile_macs": unused},
        "timm.models.helpers": dict.fromkeys(("build_model_with_cfg", "named_apply", "adapt_input_conv"), unused),
        "timm.models.layers": {name: getattr(layers, name) for name in ("trunc_normal_", "lecun_normal_", "to_2tuple")},
        "timm.models.registry": {"register_model": unused},
    }


def sort_by_library() -> None:
    """Have compiled models sort by ATen's kernel, as they do eagerly: with one made for every length, ToMe was not
    compiled after five minutes for batches of 256. It may cost peers speed (docs/results.md)."""
    from torch._inductor.lowering import make_fallback

    for sort in (torch.ops.aten.sort.default, torch.ops.aten.sort.stable):
        make_fallback(sort, warn=False, override_decomp=True)


def makers(host: nn.Module, info: HostInfo, args: argparse.Namespace) -> dict[str, Callable[[], nn.Module]]:
    """What makes the model of each row."""
    found: dict[str, Callable[[], nn.Module]] = {
        "host": lambda: copy.deepcopy(host),
        "host, same embedding": lambda: with_matmul_embed(host),
        "static drop": lambda: ps.apply(host, static_plan(info, args.ratio)),
        "matched merge": lambda: ps.apply(host, *matched_by_distance(open_host(host), args.ratio)),
        "matched merge, 3 steps": lambda: ps.apply(
            host, *matched_by_distance(open_host(host), args.ratio, THREE_STEPS)
        ),
        "matched merge, keys": lambda: ps.apply(host, matched_plan(info, args.ratio)),
    }
    if args.evit is not None:
        found["EViT"] = lambda: evit(host, info, args.ratio, args.evit)
    if args.tome is not None:
        found["ToMe"] = lambda: tome(host, info, args.ratio, args.tome)
    return {name: make for name, make in found.items() if args.rows is None or name in args.rows}


def _macs(row: str, model: nn.Module, info: HostInfo) -> int:
    if row.startswith("host"):
        return host_macs(info)
    return counted(model, info) if row in ("ToMe", "EViT") else ps.count_macs(model)


def measured(name: str, args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows of one model, batch size by batch size."""
    torch.manual_seed(0)
    host = timm.create_model(name).eval()
    info = ps.inspect(host)
    models = {row: make() for row, make in makers(host, info, args).items()}
    macs = {row: _macs(row, own, info) for row, own in models.items()}
    models = {row: own.to(device, DTYPES[args.dtype]).eval() for row, own in models.items()}
    for size in args.batch_sizes:
        batch = torch.randn(size, info.channels, *info.image_size, device=device, dtype=DTYPES[args.dtype])
        for row, own in timed(models, batch, args).items():
            yield {"model": name, "batch_size": size, "row": row, "macs": macs[row]} | own


def timed(models: dict[str, nn.Module], batch: Tensor, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every model in every mode, in turns."""
    modes = modes_for(args.modes, batch.device, False)
    ready: dict[tuple[str, str], Ready] = {}
    failed: dict[str, dict[str, str]] = {}
    forget_compiled(4 * len(models))
    for row, model in models.items():
        start = time.monotonic()
        with at_most(args.patience):
            prepared = prepare(model, batch, modes)
        print(f"{row}: ready in {time.monotonic() - start:.0f} s {prepared.failed or ''}", file=sys.stderr, flush=True)
        ready |= {(row, mode): own for mode, own in prepared.ready.items()}
        failed[row] = prepared.failed
    if args.warm:
        return {}
    timings = in_turns([own.call for own in ready.values()], batch.device, args.seconds)
    found: dict[str, dict[str, Any]] = {}
    for (row, mode), timing in zip(ready, timings, strict=True):
        found.setdefault(row, {"failed": failed[row], "modes": {}})
        found[row]["modes"][mode] = {"throughput": timing.throughput(len(batch)), "seconds": timing.seconds}
    return {row: own | _best(own["modes"]) for row, own in found.items()}


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError, once, in whatever takes longer; the mode at work counts as failed, and others follow."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _best(modes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    best = max(modes, key=lambda mode: float(modes[mode]["throughput"]))
    return {"best": best, "throughput": modes[best]["throughput"]}


def main() -> None:
    """Measure all models, writing after each."""
    args = parse()
    device = open_device(args.device)
    if args.sort == "library":
        sort_by_library()
    table: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "dtype": args.dtype, "rows": []}
    for name in args.models:
        for row in measured(name, args, device):
            table["rows"].append(row)
            short = {key: value for key, value in row.items() if key not in ("modes", "failed")}
            print(short, flush=True)
        if not args.warm:
            write_json(args.out, table)


if __name__ == "__main__":
    command(main)
