"""`patchslim bench`: throughput of a run against its host, both in one run."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from patchslim.cli import options
from patchslim.cli.terminal import console, report, shown
from patchslim.errors import PatchslimError, first_words
from patchslim.files import read_json, write_json

FOLDER = "bench"  # in the run's
NAMES = {
    "slim": "the slim model",
    "baseline": "the host",
    "baseline_same_embedding": "the host with the same patch embedding",
    "quantised": "the slim model, quantised",
    "baseline_quantised": "the host with the same patch embedding, quantised",
}


def bench(
    context: Context,
    run: options.RunFolder,
    data: options.SomeData = None,
    batch_size: Annotated[str | None, Option(metavar="B[,B…]", help="Images at a time [32, or the run's].")] = None,
    dtype: Annotated[str | None, Option(metavar="D[,D…]", help="float32, bfloat16, float16 [or the run's].")] = None,
    mode: Annotated[str | None, Option(metavar="M[,M…]", help=f"{options.MODES}, auto [auto, or the run's].")] = None,
    compiled: Annotated[bool, Option("--compile", help="Also with torch.compile: one more --mode.")] = False,
    every: Annotated[bool, Option("--all", help="In every mode that the device has.")] = False,
    autocast: Annotated[bool, Option("--autocast", help="Autocast to the dtype, the weights in float32.")] = False,
    seconds: Annotated[float, Option(min=0.01, help="Time to spend on each model in each mode.")] = 5.0,
    quantize: Annotated[str | None, Option(metavar="W", help="Also with linear layers in int8 or float8.")] = None,
    profile: Annotated[bool, Option("--profile", help="Also show where the time goes, per block.")] = False,
    out: Annotated[Path | None, Option(metavar="F", help="Results go here [RUN/bench/….json].")] = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Time the slim model and its host side by side, and compare with what the MACs and the plan promise."""
    from patchslim.cli.opening import open_device
    from patchslim.data import open_images
    from patchslim.measure import BenchConfig
    from patchslim.measure import bench as measure
    from patchslim.measure.bench import by_dtype, forecast
    from patchslim.plan import SlimPlan
    from patchslim.runs.manifest import add_made
    from patchslim.runs.store import PLAN, load, load_host
    from patchslim.timing import device_name
    from patchslim.timing.memory import out_of_memory
    from patchslim.timing.modes import MODES

    if every:
        options.refuse_idle(context, "--all times every mode", "mode", "compiled")
    place = open_device(device)
    own = forecast(SlimPlan.load(run / PLAN)) if (run / PLAN).exists() else None
    own = own if own and own.device == device_name(place) else None  # it says nothing of other devices
    usual = own.modes if own else ["auto"]
    if every:
        usual = [name for name in MODES if place.type == "cuda" or not name.endswith("graph")]
    config = BenchConfig(
        batch_sizes=_numbers(batch_size) if batch_size is not None else [own.batch_size if own else 32],
        dtypes=_words(dtype) if dtype is not None else [own.dtype if own else "float32"],
        modes=(_words(mode) if mode is not None else usual) + (["compiled"] if compiled else []),
        seconds=seconds,
        autocast=autocast,
        profile=profile,
        quantise=quantize,
    )
    try:
        slim, host = load(run).to(place), load_host(run).to(place)
        check_place(run / FOLDER / "results.json" if out is None else out)
        images, most = None, max(config.batch_sizes)
        if data is not None:
            images = next(iter(open_images(data, model=slim, limit=most, split="test").batches(most)))[0]
        with shown("preparing") as move:
            found = measure(slim, host, config, images=images, tell=lambda what: move(description=what))
    except Exception as error:
        if isinstance(error, PatchslimError) or not out_of_memory(error):
            raise
        raise PatchslimError(f"There is not enough memory for the models ({first_words(error)}); free some.") from None
    result = {"run": str(run), "data": data} | found
    results = {run / FOLDER / name: own for name, own in by_dtype(result).items()} if out is None else {out: result}
    for path, content in results.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    add_made(run, results, PLAN)
    for note in notes(result):
        console.print(note, highlight=False)
    files = [str(path) for path in results]
    report(result | {"files": files}, as_json, text_of(result, files))


def check_place(path: Path) -> None:
    """Raise PatchslimError before anything is timed when the results could not be written."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise PatchslimError(f"The results can't be written to {path}; choose another file with --out.")
    options.check_ending(path, ".json", "A file of results")
    if path.exists() and "baseline_throughput" not in read_json(path, PatchslimError, "file"):
        raise PatchslimError(f"{path} holds something else than results; choose another file with --out.")


def _words(text: str) -> list[str]:
    """`a,b` → a, b."""
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise PatchslimError(f"--batch-size takes whole numbers such as 1,16,256, and {text!r} is not that.") from None


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """What did not go as asked: batches that did not fit, modes that failed."""
    for row in result["rows"]:
        if row["reduced_batch"] is not None:
            yield (
                f"A batch of {row['asked_batch_size']} in {row['dtype']} does not fit in memory; "
                f"timed with {row['reduced_batch']} instead."
            )
        case = f"batch {row['batch_size']}, {row['dtype']}"
        for name, model in row["models"].items():
            for mode, reason in model["failed"].items():
                yield f"Mode {mode} does not work for {NAMES[name]} ({case}: {reason}); it was timed without."


def text_of(result: Mapping[str, Any], files: Sequence[str]) -> str:
    """A few lines per row, its profile if there is one, and where it was saved."""
    lines = [f"{result['device']}, torch {result['torch']}, {result['threads']} threads"]
    for row in result["rows"]:
        lines += _row(row)
        if "profile" in row:
            lines += _profile(row["profile"])
    return "\n".join([*lines, f"saved in {', '.join(files)}"])


def _row(row: Mapping[str, Any]) -> list[str]:
    asked = "" if row["reduced_batch"] is None else f" ({row['asked_batch_size']} did not fit)"
    lines = [
        f"batch {row['batch_size']}{asked}, {row['dtype']}: {row['throughput']:.1f} images/s {_how(row, '')}; "
        f"the MACs promise {row['ideal_speedup']:.2f}×",
        _against(row, "baseline", "", "that"),
        _against(row, "baseline_same_embedding", "_same_embedding", "that"),
    ]
    if row["predicted_speedup"] is not None:
        lines.append(
            f"  the plan predicted {row['predicted_speedup']:.2f}× against the host: measured "
            f"{row['speedup'] / row['predicted_speedup'] - 1:+.1%}"
        )
    if "quantised_throughput" in row:
        lines += [
            f"  {NAMES['quantised']}, {row['quantised_throughput']:.1f} {_how(row, 'quantised_')}: "
            f"{row['quantised_over_slim']:.2f}× of the slim model, {row['quantised_over_baseline']:.2f}× of the host",
            _against(row, "baseline_quantised", "_quantised", "what the MACs promise"),
        ]
    return lines


def _against(row: Mapping[str, Any], name: str, end: str, of: str) -> str:
    """What is gained on another model; `end`: how the names of those numbers end."""
    return (
        f"  against {NAMES[name]}, {row[f'{name}_throughput']:.1f} {_how(row, f'{name}_')}: "
        f"{row[f'speedup{end}']:.2f}×, {row[f'share_of_ideal{end}']:.0%} of {of}"
    )


def _how(row: Mapping[str, Any], start: str) -> str:
    """A model's best mode and its memory; `start`: how the names of its numbers start."""
    peak = row[f"{start}peak_memory"]
    return f"({row[f'{start}mode']}{'' if peak is None else f', {peak / 2**20:.0f} MiB'})"


def _profile(profile: Mapping[str, Any]) -> list[str]:
    """Milliseconds of every part, eager."""
    lines = [f"  {'ms, eager':<12}{'host':>10}{'same emb.':>11}{'slim':>10}{'host/slim':>11}"]
    columns = [profile[name] for name in ("baseline", "baseline_same_embedding", "slim")]
    rows = [*zip(profile["parts"], *columns, strict=True), ("total", *map(sum, columns))]
    for part, host, same, slim in rows:
        ratio = f"{host / slim:.2f}×" if slim else ""
        lines.append(f"  {part:<12}{host * 1e3:>10.3f}{same * 1e3:>11.3f}{slim * 1e3:>10.3f}{ratio:>11}")
    return lines
