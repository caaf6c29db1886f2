"""From finished cells to the table: every row against the base and against the best row of its MAC ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from patchslim.measure.hits import from_hex
from patchslim.measure.paired import paired
from patchslim.measure.store import Row

STATES = ("untuned", "recovered")


def with_intervals(base: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """The rows, the paired difference in top-1 added to each state that was measured: `against_base`, and
    `against_first` with the name of the `first`, the row of the highest top-1 at the same ratio and in the same state.
    """
    found = [dict(row) for row in rows]
    for state in STATES:
        for ratio in dict.fromkeys(row["target_macs"] for row in found):
            alike = [row for row in found if row["target_macs"] == ratio and row.get(state)]
            if alike:
                first = max(alike, key=lambda row: row[state]["top1"])
                for row in alike:
                    row[state] = row[state] | {
                        "first": first["method"],
                        "against_first": _difference(row[state], first[state]),
                        "against_base": _difference(row[state], base["untuned"]),
                    }
    return found


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return asdict(paired(*(from_hex(score["right"], score["images"]) for score in (one, other))))
