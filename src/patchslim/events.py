"""What long work tells whoever watches it: one mapping per event, with its name under `event`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = Mapping[str, Any]
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """A listener that does nothing."""
