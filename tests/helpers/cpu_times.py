"""A plugin of pytest that notes the time of each test, for `tests/measure.py`.

Each process writes a JSON file into the folder `$CPU_TIMES`: a list of [test, seconds of processor
time with that of its child processes, seconds], and under the name "" the time of its collection.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

ROWS: list[tuple[str, float, float]] = []


def cpu_seconds() -> float:
    """Return the processor time of this process and of its child processes that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Note the time of a test with its fixtures."""
    cpu, start = cpu_seconds(), time.perf_counter()
    result = yield
    ROWS.append((item.nodeid, cpu_seconds() - cpu, time.perf_counter() - start))
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the time until here: of the start, the imports and the collection."""
    if session.items:
        ROWS.append(("", cpu_seconds(), 0.0))


def pytest_sessionfinish() -> None:
    """Write the file."""
    if ROWS:
        file = Path(os.environ["CPU_TIMES"], f"{os.getpid()}.json")
        file.write_text(json.dumps(ROWS), encoding="utf-8")
