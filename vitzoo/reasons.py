"""What went wrong in somebody else's code, in one line, with the line it went wrong in."""

from __future__ import annotations

import importlib
from pathlib import Path

from vitzoo.errors import VitzooError

HERE = f"{Path(__file__).parent}/"  # vitzoo's own lines are not to blame
MAX_TEXT = 1000  # characters of what somebody's code says about its failure


def reason_of(error: BaseException, package: str) -> str:
    """Say what went wrong, and where: in the package's own line, if there is one.

    Args:
        error: what the code raised.
        package: top-level name of the package that is to blame.
    """
    if isinstance(error, VitzooError):
        return str(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    trace, own, deepest = error.__traceback__, "", ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen ", HERE)) and file != importlib.__file__:
            deepest = f" ({file}:{trace.tb_lineno})"
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
                own = deepest
        trace = trace.tb_next
    return f"{type(error).__name__}: {text_of(error)}{own or deepest}"


def text_of(value: object) -> str:
    """Write an object, whatever its own code does, shortened and printable."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # noqa: BLE001
        return f"an unprintable {type(value).__name__}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
