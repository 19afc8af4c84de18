"""Stamps: the state of a file when its bytes were last hashed; torch-free."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from vitzoo.files.access import read_own, write_atomic
from vitzoo.files.names import SHA256
from vitzoo.files.platform import files as system
from vitzoo.files.platform.files import State

GRAIN_NS = 50_000_000  # a change within this time of another might not show in a file's times
OWN_STAMPS = 1024  # files of the user's own; a later file replaces the stamp of an earlier one


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

    @classmethod
    def of(cls, state: State, sha256: str, hashed_ns: int) -> Stamp:
        """Make the stamp of a file from its state right before it was hashed."""
        return cls(*state, hashed_ns, sha256)

    def fits(self, state: State) -> bool:
        """Tell whether the file is the hashed one and, by its times, unchanged since."""
        then = self.device, self.inode, self.size, self.mtime_ns, self.ctime_ns
        newest = max(self.mtime_ns, self.ctime_ns) if self.ctime_ns else 0
        unchanged = 0 < newest <= self.hashed_ns - GRAIN_NS and self.hashed_ns <= time.time_ns()
        return then == state and unchanged


def stamps_folder(home: Path) -> Path:
    """Return the folder of the stamps of this machine; on Linux, those of all such machines."""
    return home.joinpath("stamps", system.machine())


class Stamps:
    """The stamps in a store.

    Args:
        home: the folder of the store; with None there are no stamps and none are written.
    """

    def __init__(self, home: Path | None) -> None:
        self.folder = home and stamps_folder(home)

    def find(self, state: State, sha256: str = "") -> Stamp | None:
        """Return the stamp of a file in this state; None if there is none, or it does not fit.

        Args:
            state: of the open file.
            sha256: of a file in the store; empty for a file of the user's own.
        """
        path = self._path(state.inode, sha256)
        stamp = read_stamp(path) if path else None
        fits = stamp and sha256 in ("", stamp.sha256) and stamp.fits(state)
        return stamp if fits else None

    def write(self, stamp: Stamp, *, own: bool = False) -> None:
        """Write the stamp of a file in the store, or of a file of the user's own."""
        if path := self._path(stamp.inode, "" if own else stamp.sha256):
            with contextlib.suppress(OSError):  # without a stamp the file is hashed again
                path.unlink(missing_ok=True)  # others might write to it; the new file is the user's
                write_atomic(path, json.dumps(asdict(stamp)).encode(), lasting=not own)

    def _path(self, inode: int, sha256: str) -> Path | None:
        """Return the path of a stamp; files of the user's own share a bounded number of paths."""
        name = sha256 or f"own/{inode % OWN_STAMPS}"
        return self.folder and self.folder / f"{name}.json"


def read_stamp(path: Path) -> Stamp | None:
    """Read a stamp; None if another user may write to it, or it is none."""
    try:
        stamp = Stamp(**json.loads(read_own(path) or b""))
        *numbers, sha256, finite = vars(stamp).values()
        good = all(type(number) is int for number in numbers) and type(finite) is bool
        return stamp if good and SHA256.fullmatch(sha256) else None
    except (OSError, ValueError, TypeError):
        return None
