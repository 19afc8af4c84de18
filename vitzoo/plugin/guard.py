"""Descriptions of errors in the code of plugins: the error and the line that raised it."""

from __future__ import annotations

import importlib
from pathlib import Path

from vitzoo.errors import VitzooError, printable

HERE = f"{Path(__file__).parents[1]}/"  # lines of vitzoo are not reported
MAX_TEXT = 1000  # characters of an error's text


def reason_of(error: BaseException, package: str) -> str:
    """Describe an error in the code of a plugin, with its line in the plugin's package."""
    if isinstance(error, VitzooError):
        return str(error)
    at = raised_at(error, package)
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    return f"{type(error).__name__}: {text}" + (f" ({at})" if at else "")


def text_of(value: object) -> str:
    """Return the printable, shortened text of an object, even if its `__str__` fails."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # noqa: BLE001
        return f"an unprintable {type(value).__name__}"
    return printable(text, MAX_TEXT) + ("..." if len(text) > MAX_TEXT else "")


def raised_at(error: BaseException, package: str = "") -> str:
    """Return `file:line` of the innermost frame outside vitzoo, in `package` if possible.

    An error of vitzoo or of a conformance test is replaced by its cause.
    """
    while isinstance(error, VitzooError | AssertionError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    from traceback import walk_tb  # costs milliseconds, and only errors need it

    own = innermost = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(("<", HERE)) and file != importlib.__file__:
            innermost = f"{file}:{line}"
            if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                own = innermost
    return own or innermost
