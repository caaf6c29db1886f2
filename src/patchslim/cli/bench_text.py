"""What `patchslim bench` says for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAMES = {
    "slim": "the slim model",
    "baseline": "the host",
    "baseline_same_embedding": "the host with the same patch embedding",
    "quantised": "the slim model, quantised",
    "baseline_quantised": "the host with the same patch embedding, quantised",
}


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """What did not go as asked: batches that did not fit, modes that failed."""
    for row in result["rows"]:
        if row["reduced_batch"] is not None:
            yield (
                f"A batch of {row['asked_batch_size']} in {row['dtype']} does not fit in memory; "
                f"timed with {row['reduced_batch']} instead."
            )
        for name, model in row["models"].items():
            for mode, reason in model["failed"].items():
                case = f"batch {row['batch_size']}, {row['dtype']}"
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
        f"batch {row['batch_size']}{asked}, {row['dtype']}: {row['throughput']:.1f} images/s ({row['mode']}"
        f"{_memory(row['peak_memory'])}); the MACs promise {row['ideal_speedup']:.2f}×"
    ]
    for name, end in (("baseline", ""), ("baseline_same_embedding", "_same_embedding")):
        lines.append(
            f"  against {NAMES[name]}, {row[f'{name}_throughput']:.1f} ({row[f'{name}_mode']}"
            f"{_memory(row[f'{name}_peak_memory'])}): {row[f'speedup{end}']:.2f}×, "
            f"{row[f'share_of_ideal{end}']:.0%} of that"
        )
    if row["predicted_speedup"] is not None:
        lines.append(
            f"  the plan predicted {row['predicted_speedup']:.2f}× against the host: measured "
            f"{row['speedup'] / row['predicted_speedup'] - 1:+.1%}"
        )
    return lines + (_quantised(row) if "quantised_throughput" in row else [])


def _quantised(row: Mapping[str, Any]) -> list[str]:
    """What quantising adds."""
    return [
        f"  {NAMES['quantised']}, {row['quantised_throughput']:.1f} ({row['quantised_mode']}"
        f"{_memory(row['quantised_peak_memory'])}): {row['quantised_over_slim']:.2f}× of the slim model, "
        f"{row['quantised_over_baseline']:.2f}× of the host",
        f"  against {NAMES['baseline_quantised']}, {row['baseline_quantised_throughput']:.1f} "
        f"({row['baseline_quantised_mode']}{_memory(row['baseline_quantised_peak_memory'])}): "
        f"{row['speedup_quantised']:.2f}×, {row['share_of_ideal_quantised']:.0%} of what the MACs promise",
    ]


def _memory(peak: int | None) -> str:
    return "" if peak is None else f", {peak / 2**20:.0f} MiB"


def _profile(profile: Mapping[str, Any]) -> list[str]:
    """Milliseconds of every part, eager."""
    lines = [f"  {'ms, eager':<12}{'host':>10}{'same emb.':>11}{'slim':>10}{'host/slim':>11}"]
    columns = [profile[name] for name in ("baseline", "baseline_same_embedding", "slim")]
    rows = [*zip(profile["parts"], *columns, strict=True), ("total", *(sum(column) for column in columns))]
    for part, host, same, slim in rows:
        ratio = f"{host / slim:.2f}×" if slim else ""
        lines.append(f"  {part:<12}{host * 1e3:>10.3f}{same * 1e3:>11.3f}{slim * 1e3:>10.3f}{ratio:>11}")
    return lines
