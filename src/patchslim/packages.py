"""Packages of the extras, imported only when asked for: `import patchslim` works without them."""

import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from patchslim.errors import ExportError, PatchslimError, first_words


def need(name: str, extra: str = "export", what: str = "This export") -> Any:
    """A package of an extra, or one of its modules; ExportError says who needs it and how to install it."""
    package, install = name.split(".")[0], f"pip install 'patchslim[{extra}]'"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ExportError(f"{what} needs the package {missing}, which is not installed: {install}.") from None
    except ImportError as error:
        raise ExportError(f"The package {package} is installed but does not load ({error}); try {install}.") from None


def need_nncf() -> Any:
    """nncf, imported so that it reports nothing to anybody: it takes this process for one of a build server."""
    before = {name: os.environ.get(name) for name in ("CI", "NNCF_CI")}
    os.environ.update(CI="true", NNCF_CI="1")
    try:
        return need("nncf")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters' own progress, advice and warnings off both outputs; standard output is for our results."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def told(what: str, remedy: str = "", kind: type[PatchslimError] = ExportError) -> Iterator[None]:
    """Keep a package quiet; whatever it fails with becomes one sentence: what can't be done, why, and what to do."""
    try:
        with quiet():
            yield
    except PatchslimError:
        raise
    except Exception as error:  # exporters and runtimes fail in many ways
        why = first_words(error)
        raise kind(f"{what} ({why}); {remedy}." if remedy else f"{what}: {why}.") from None
