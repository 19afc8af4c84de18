"""Errors of plugins' code: what went wrong, and in which line."""

from __future__ import annotations

import importlib
from pathlib import Path

from vitzoo.errors import VitzooError, printable

HERE = f"{Path(__file__).parents[1]}/"  # vitzoo's own lines are not to blame
MAX_TEXT = 1000  # characters of an error's own text


def reason_of(error: BaseException, package: str) -> str:
    """Say what went wrong, and where: in the package's own line, if there is one.

    Args:
        error: what the code raised.
        package: top-level name of the package that is to blame.
    """
    if isinstance(error, VitzooError):
        return str(error)
    at = raised_at(error, package)
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    return f"{type(error).__name__}: {text}" + (f" ({at})" if at else "")


def text_of(value: object) -> str:
    """Write an object, whatever its own code does, shortened and printable."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # noqa: BLE001
        return f"an unprintable {type(value).__name__}"
    return printable(text, MAX_TEXT) + ("..." if len(text) > MAX_TEXT else "")


def raised_at(error: BaseException, package: str = "") -> str:
    """Return `file:line` of the innermost code outside vitzoo that an error came through.

    Args:
        error: one of vitzoo, or of a conformance test, stands for its cause.
        package: top-level name of a package whose lines are preferred.
    """
    while isinstance(error, VitzooError | AssertionError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    from traceback import walk_tb  # costs milliseconds; only errors need it

    own = innermost = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(("<", HERE)) and file != importlib.__file__:
            innermost = f"{file}:{line}"
            if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                own = innermost
    return own or innermost
