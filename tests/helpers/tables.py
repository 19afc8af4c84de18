"""Run one check over a table of cases: `from tables import check_all`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest


def check_all(cases: Mapping[str, Any], check: Callable[[Any], object]) -> None:
    """Call `check` with every case, then fail with the names of all cases that failed, and why."""
    failures = []
    for name, case in cases.items():
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # reported below
            failures.append(f"{name}: {type(error).__name__}: {error}")
    assert cases, "an empty table checks nothing"
    assert not failures, f"{len(failures)} of {len(cases)} cases failed\n" + "\n".join(failures)
