"""The lock: what the user's first use of unpinned weights found, binding from then on; torch-free.

A JSON file, `hf://owner/repo@revision/file` to commit, size, sha256 and the authority that said so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitzoo.errors import PinError
from vitzoo.files.access import make_folder, write_atomic
from vitzoo.files.names import COMMIT, SHA256

VERSION = 1
MAX_LOCK = 16 * 1024 * 1024
HELD = 30.0  # seconds to wait for another writer


@dataclass(frozen=True)
class Pin:
    """What a file must be.

    Args:
        commit: 40 hex digits.
        size: bytes.
        sha256: 64 hex digits.
        authority: address that said so.
    """

    commit: str
    size: int
    sha256: str
    authority: str


UNPINNED = Pin("", 0, "", "")


class Lock:
    """The pins in one lock file.

    Args:
        path: the file; None where nothing is kept on disk, and nothing is ever locked.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def pins(self) -> dict[str, Pin]:
        """Return all pins by source.

        Raises:
            PinError: the file is damaged; it is never treated as empty.
        """
        if self.path is None:
            return {}
        try:
            if self.path.stat().st_size > MAX_LOCK:
                raise self._broken(f"is larger than {MAX_LOCK} bytes")
            data = json.loads(self.path.read_bytes().decode())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._broken(f"cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise self._broken(f"is not JSON: {error}") from error
        if not isinstance(data, dict) or set(data) != {"version", "weights"}:
            raise self._broken("must hold version and weights")
        if data["version"] != VERSION or not isinstance(data["weights"], dict):
            raise self._broken(f"must be of version {VERSION}, got {str(data['version'])[:20]!r}")
        return {source: self._pin(source, row) for source, row in data["weights"].items()}

    def add(self, source: str, pin: Pin) -> None:
        """Note a pin, unless another process noted one meanwhile, which then must agree."""

        def change(pins: dict[str, Pin]) -> None:
            known = pins.setdefault(source, pin)
            if known.sha256 != pin.sha256:
                raise PinError(
                    f"{self.path} pins {source} to sha256 {known.sha256}, {pin.authority} "
                    f"now says {pin.sha256}; find out why, then `vitzoo lock --update`"
                )

        self._change(change)

    def replace(self, source: str, pin: Pin) -> None:
        """Note a pin over whatever was noted before."""
        self._change(lambda pins: pins.update({source: pin}))

    def _change(self, change: Callable[[dict[str, Pin]], Any]) -> None:
        if self.path is None:
            return
        try:
            make_folder(self.path.parent)
            with FileLock(f"{self.path}.writing", timeout=HELD):
                pins = self.pins()
                change(pins)
                rows = {source: asdict(pins[source]) for source in sorted(pins)}
                data = {"version": VERSION, "weights": rows}
                write_atomic(self.path, json.dumps(data, indent=2).encode() + b"\n")
        except Timeout as error:
            raise PinError(
                f"{self.path} is being written by another process for {HELD:.0f} s; if none is "
                f"running, remove {self.path}.writing"
            ) from error
        except OSError as error:
            raise PinError(
                f"cannot write {self.path}: {error.strerror}; make it writable, set VITZOO_LOCK "
                "or pin the weights in a registry"
            ) from error

    def _pin(self, source: str, row: object) -> Pin:
        try:
            pin = Pin(**row)  # type: ignore[arg-type]  # checked right below
        except TypeError as error:
            raise self._broken(f"has a broken row {source[:200]!r}") from error
        good = (
            isinstance(pin.sha256, str) and SHA256.fullmatch(pin.sha256)
            and isinstance(pin.commit, str) and COMMIT.fullmatch(pin.commit)
            and type(pin.size) is int and pin.size > 0
            and isinstance(pin.authority, str)
        )  # fmt: skip
        if not good:
            raise self._broken(f"has a broken row {source[:200]!r}")
        return pin

    def _broken(self, what: str) -> PinError:
        return PinError(
            f"the lock {self.path} {what}; restore it, or remove it to trust on first use again"
        )
