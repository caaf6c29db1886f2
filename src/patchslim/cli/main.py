"""What `patchslim` starts with. It imports next to nothing, so that Ctrl-C is heard from the first moment on; mistakes
end in one sentence and exit code 2."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from patchslim.cli.signals import Signals
from patchslim.cli.table import COMMANDS
from patchslim.errors import PatchslimError, PatchslimWarning, one_sentence


def main() -> None:
    """Run the command line and exit.

    The exit code is 0 when done, 2 with one sentence on standard error when something is wrong, 130 after Ctrl-C,
    143 after SIGTERM.
    """
    words = sys.argv[1:]
    signals = Signals(how_to_go_on(words[0] if words else ""))
    try:
        with signals:
            make_tolerant()
            code, sentence = run(words)
            if signals.number:  # a library swallowed what told of the signal
                raise KeyboardInterrupt
            say(sentence)
    except BaseException as error:
        if not (signals.number or isinstance(error, KeyboardInterrupt)):
            raise
        code = signals.code
        say(signals.sentence)
        signals.said = True
    close_outputs()
    sys.exit(code)


def how_to_go_on(command: str) -> str:
    """What to tell who interrupts a command."""
    if command not in COMMANDS or not COMMANDS[command].resumes:
        return ""
    return f"`patchslim {command}` goes on where it was with the same command and --resume"


def run(words: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command line, and what is wrong with it, in a sentence, if anything is."""
    warnings.showwarning = show_warning(warnings.showwarning)
    try:
        from patchslim.cli.app import app

        code = app([*words] or ["--help"], prog_name="patchslim", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except PatchslimError as error:
        return 2, str(error)
    except BrokenPipeError:  # nobody reads on, as after `| head`
        return 1, ""
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return (
            2,
            f"A file can't be read or written ({error.strerror or error}{where}); check the path and the space left.",
        )
    except Exception as error:
        # Typer's own complaints about options and arguments, or what replaced an option that a command had once;
        # anything else is a bug and keeps its traceback.
        if not hasattr(error, "format_message"):
            raise
        from patchslim.cli.old import instead_of

        command = getattr(getattr(error, "ctx", None), "command", None)
        old = instead_of(getattr(command, "name", None), getattr(error, "option_name", None))
        return 2, old or f"{error.format_message().rstrip('.')} (see patchslim --help)."
    if code == 130:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0, ""


def make_tolerant() -> None:
    """Let what a stream's encoding lacks become `?`: nothing is lost for want of a character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def close_outputs() -> None:
    """Write out what is left. Python itself would complain where nobody reads it any more, or the disk is full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_warning(usual: Callable[..., None]) -> Callable[..., None]:
    """Our own warnings as one line on standard error; others as usual."""

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, PatchslimWarning):
            print(message, file=sys.stderr)
        else:
            usual(message, category, *where)

    return show


def say(sentence: str) -> None:
    """A sentence on standard error, if there is one and somebody reads it."""
    if sentence:
        with suppress(OSError):
            print(f"patchslim: {one_sentence(sentence)}", file=sys.stderr, flush=True)
