"""The Hugging Face hub: whether it can be reached, and no bars where nobody watches them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, get_session

PATIENCE = 10.0  # seconds


def answers(url: str | None = None) -> bool:
    """Whether the hub, or another place, answers within ten seconds. The hub's own client tries for a minute."""
    came = []

    def ask() -> None:
        with suppress(Exception):  # no network, no such name, no permission: clients fail in many ways
            get_session().head(url or constants.ENDPOINT, timeout=PATIENCE)
            came.append(True)

    asking = Thread(target=ask, daemon=True)  # looking up a name knows no timeout
    asking.start()
    asking.join(PATIENCE)
    return bool(came)


@contextmanager
def bars_for_eyes(
    off: Callable[[], bool] = are_progress_bars_disabled,
    disable: Callable[[], object] = disable_progress_bars,
    enable: Callable[[], object] = enable_progress_bars,
) -> Iterator[None]:
    """Switch a library's progress bars off where standard error is no terminal; as they were afterwards."""
    if off() or (sys.stderr is not None and sys.stderr.isatty()):
        yield
        return
    disable()
    try:
        yield
    finally:
        enable()
