"""Power cuts, for tests of what is left after one."""

import itertools
from collections.abc import Mapping
from typing import Any


class Interrupted(Exception):
    """Stands for a power cut."""


def interrupt_after(events: int) -> Any:
    """A listener that cuts the power at an event."""
    left = itertools.count(events, -1)

    def listen(event: Mapping[str, Any]) -> None:
        if next(left) <= 0:
            raise Interrupted

    return listen
