"""The command `patchslim`, and `python -m patchslim`: Ctrl-C is heard before anything else is imported."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, interrupted)
    from patchslim.cli.main import main as run  # takes over the signals

    run()


def interrupted(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun."""
    os.write(2, b"patchslim: Interrupted.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
