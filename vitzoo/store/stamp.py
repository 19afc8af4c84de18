"""Stamps: the state of a file when its bytes were last hashed; torch-free."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from vitzoo.files.access import read_own

GRAIN_NS = 50_000_000  # a change within this time of another might not show in a file's times


@dataclass(frozen=True)
class Stamp:
    """The state of a file when its bytes were hashed.

    Args:
        device, inode, size, mtime_ns, ctime_ns: of the file, by fstat.
        hashed_ns: wall-clock time at which the hashing began.
        sha256: of its bytes.
        finite: whether its tensors were checked for NaN and infinity, and had none.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    hashed_ns: int
    sha256: str
    finite: bool = False

    @property
    def state(self) -> tuple[int, int, int, int, int]:
        """The fields that `fits` compares."""
        return self.device, self.inode, self.size, self.mtime_ns, self.ctime_ns

    @classmethod
    def of(cls, status: os.stat_result, sha256: str, hashed_ns: int) -> Stamp:
        """Make the stamp of a file from its state right before it was hashed."""
        return cls(*_state(status), hashed_ns, sha256)

    def fits(self, status: os.stat_result) -> bool:
        """Tell whether the file is the hashed one and, by its times, unchanged since."""
        newest = max(self.mtime_ns, self.ctime_ns)
        unchanged = 0 < newest <= self.hashed_ns - GRAIN_NS and self.hashed_ns <= time.time_ns()
        return self.state == _state(status) and unchanged


def _state(status: os.stat_result) -> tuple[int, int, int, int, int]:
    s = status
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def read_stamp(path: Path) -> Stamp | None:
    """Read a stamp; None if another user may write to it, or it is none."""
    try:
        stamp = Stamp(**json.loads(read_own(path) or b""))
    except (OSError, ValueError, TypeError):
        return None
    good = all(type(number) is int for number in (*stamp.state, stamp.hashed_ns))
    good = good and type(stamp.sha256) is str
    return stamp if good and type(stamp.finite) is bool else None
