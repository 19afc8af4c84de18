"""The logger `vitzoo`. It never raises: stderr may be missing, closed or full."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from vitzoo.errors import printable
from vitzoo.text import UNWRITABLE


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message with escaped texts; the caller's line is that of the record."""
        texts = (printable(a) if isinstance(a, str | os.PathLike) else a for a in args)
        with contextlib.suppress(*UNWRITABLE):
            super().log(level, msg, *texts, **{"stacklevel": 2, **kwargs})


log = _Quiet(logging.getLogger("vitzoo"), {})


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Write what vitzoo logs from level INFO on to stderr."""
    logger, handler, before = log.logger, logging.StreamHandler(), log.logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextlib.contextmanager
def only_errors(name: str) -> Iterator[None]:
    """Let the logger of another library write errors only."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def hidden(name: str, text: str) -> Iterator[None]:
    """Let the logger of another library write no message with a text."""
    logger = logging.getLogger(name)

    def keeps(record: logging.LogRecord) -> bool:
        return text not in str(record.msg)

    logger.addFilter(keeps)
    try:
        yield
    finally:
        logger.removeFilter(keeps)
