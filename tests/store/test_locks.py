"""Lock files: one process at a time, one line about a wait, and a bounded wait."""

from __future__ import annotations

import pytest
from filelock import FileLock, Timeout

from helpers import says
from vitzoo.store import locks
from vitzoo.store.locks import locked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.lock"


def test_the_lock_is_held_in_the_block_alone(path):
    with locked(path, "it", 0.0), pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)
    with FileLock(path).acquire(timeout=0):
        pass


def test_a_wait_ends_after_its_limit_and_says_so_once(path, monkeypatch, caplog):
    assert locks.NOTICE == 2.0
    monkeypatch.setattr(locks, "NOTICE", 0.1)
    with FileLock(path), pytest.raises(Timeout), locked(path, "the file net", 0.7):
        raise AssertionError("two processes have the lock")
    (said,) = caplog.messages
    says(said, "the file net", "waiting for another process", path)
    assert caplog.records[0].levelname == "WARNING"


def test_a_short_wait_is_silent(path, caplog):
    with FileLock(path), pytest.raises(Timeout), locked(path, "it", 0.3):
        pass
    assert caplog.messages == []


CODE = """
import io, sys
from pathlib import Path
from filelock import FileLock, Timeout
from vitzoo.store import locks
locks.NOTICE, sys.stderr = 0.1, io.StringIO()
path = Path(sys.argv[-1]) / "file.lock"
with FileLock(path):
    try:
        with locks.locked(path, "it", 0.5):
            pass
    except Timeout:
        print(sys.stderr.getvalue(), end="")
"""


def test_a_command_prints_the_line_on_stderr(python, tmp_path):
    (said,) = python(CODE.replace("sys.argv[-1]", repr(str(tmp_path)))).splitlines()
    says(said, "it", "waiting for another process", tmp_path / "file.lock")
