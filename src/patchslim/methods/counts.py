"""From patches per block to steps: what methods that merge or choose per image share."""

from __future__ import annotations

from collections.abc import Callable

from patchslim.hosts import HostInfo
from patchslim.search import Drops
from patchslim.search.schedule import Counts
from patchslim.steps import Step
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice

MakeStep = Callable[[int, bool], Step]  # (patches that stay, whether the others leave) → step


def steps_by(info: HostInfo, make: MakeStep) -> Callable[[Counts, Drops], list[Step]]:
    """Steps for counts: `make` where some patches go and others stay, a slice where only the prefix is left."""

    def steps(counts: Counts, drops: Drops) -> list[Step]:
        entering, found = info.patches, list[Step]()
        for layer, count in enumerate(counts, start=1):
            if count == entering:
                found.append(Keep())
            elif count == 0:
                found.append(Slice(n=0))
            else:
                found.append(make(count, layer in drops))
            entering = count
        return found

    return steps
