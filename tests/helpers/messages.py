"""Check what an error says without its exact sentences: `from messages import raises`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Check that the block raises an error whose message contains every word, in any order."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    absent = [word for word in words if word not in text]
    assert not absent, f"{absent} not in: {text}"
