"""Plugin of pytest for `run.py map`: coverage also measures the processes that a test starts.

They need coverage's own .pth file, which pip installs beside coverage.
"""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Name the settings of these processes, and the test as their context."""
    os.environ["COVERAGE_PROCESS_START"] = os.environ["COVERAGE_CHILDREN"]
    os.environ["COVERAGE_TEST"] = f"{item.nodeid}|child"
