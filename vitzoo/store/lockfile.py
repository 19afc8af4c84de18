"""The lock file: pins of weights that were trusted on first use, required from then on; torch-free.

A JSON table from `hf://owner/repo@revision/file` to commit, size, sha256 and the endpoint that
stated them, or `hub-cache`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import Timeout

from vitzoo.errors import PinError, StoreError
from vitzoo.files.access import fix_of, make_folder, read_regular, write_atomic
from vitzoo.files.names import COMMIT, SHA256
from vitzoo.files.strict_json import DuplicateKey, strict_json
from vitzoo.store.locks import locked
from vitzoo.text import escaped

VERSION = 1
MAX_LOCK = 16 * 1024 * 1024
PATIENCE = 30.0  # seconds to wait for another writer


@dataclass(frozen=True)
class Pin:
    """The identity of a file.

    Args:
        commit: 40 hex digits.
        size: bytes.
        sha256: 64 hex digits.
        endpoint: address of the trusted Hub endpoint that stated them, `registry`, or `hub-cache`.

    A pin of size 0 with the sha256 `ABSENT` states that the commit has no such file.
    """

    commit: str
    size: int
    sha256: str
    endpoint: str

    @property
    def absent(self) -> bool:
        """Whether the commit has no such file."""
        return self.sha256 == ABSENT


UNPINNED = Pin("", 0, "", "")
HUB_CACHE = "hub-cache"  # in place of an endpoint: hashed from the user's own Hub cache
ABSENT = "0" * 64  # stands for the sha256 of a file that the repository does not have


class Lock:
    """The pins in one lock file.

    Args:
        path: the file; with None there are no pins and none are written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def pins(self) -> dict[str, Pin]:
        """Return all pins by source.

        Raises:
            PinError: the file is damaged; a damaged file does not count as empty.
        """
        try:
            text = None if self.path is None else read_regular(self.path, MAX_LOCK)
            if text is None:
                return {}
            data = strict_json(text)
        except StoreError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                return {}
            raise self._broken(f"cannot be used: {error}") from error
        except DuplicateKey as error:
            raise self._broken(f"has two entries {_two(error)}") from error
        except ValueError as error:
            raise self._broken(f"is not JSON: {error}") from error
        if not isinstance(data, dict) or set(data) != {"version", "weights"}:
            raise self._broken("must be a table of version and weights")
        if data["version"] != VERSION or not isinstance(data["weights"], dict):
            raise self._broken(f"must be of version {VERSION}, got {str(data['version'])[:20]!r}")
        return {source: self._pin(source, entry) for source, entry in data["weights"].items()}

    def add(self, source: str, pin: Pin, *, replace: bool = False) -> None:
        """Write a pin.

        Raises:
            PinError: the file names another sha256, which another process may have written
                meanwhile, and `replace` is False; or the file cannot be written.
        """
        if self.path is None:
            return
        target = Path(os.path.realpath(self.path))  # a link stays a link
        writing = target.with_name(f"{target.name}.writing")
        try:
            make_folder(target.parent)
            with locked(writing, f"the lock file {self.path}", PATIENCE):
                pins = self.pins()
                known = pin if replace else pins.get(source, pin)
                if known.sha256 != pin.sha256:
                    raise PinError(
                        f"{self.path} pins {source} to sha256 {known.sha256}, {pin.endpoint} "
                        f"now states {pin.sha256}; find out why, then `vitzoo lock --update`"
                    )
                pins[source] = known
                entries = {source: asdict(pins[source]) for source in sorted(pins)}
                data = {"version": VERSION, "weights": entries}
                write_atomic(target, json.dumps(data, indent=2).encode() + b"\n")
        except Timeout as error:
            raise PinError(
                f"another process has been writing {self.path} for {PATIENCE:.0f} s; if no such "
                f"process is running, remove {writing}"
            ) from error
        except OSError as error:
            fix = "make it writable, name another lock file in VITZOO_LOCK"
            fix = fix_of(error, fix, "name a lock file on a local disk in VITZOO_LOCK")
            raise PinError(
                f"cannot write {self.path}: {error.strerror}; {fix}, or pin the weights in a "
                "registry file"
            ) from error

    def _pin(self, source: str, entry: object) -> Pin:
        try:
            pin = Pin(**entry)  # type: ignore[arg-type]  # checked right below
            good = (
                COMMIT.fullmatch(pin.commit) and SHA256.fullmatch(pin.sha256)
                and type(pin.size) is int and (pin.size > 0) == (pin.sha256 != ABSENT)
                and pin.size >= 0
                and isinstance(pin.endpoint, str)
            )  # fmt: skip
        except TypeError:
            good = None
        if not good:
            raise self._broken(f"has a broken entry {source[:200]!r}")
        return pin

    def _broken(self, what: str) -> PinError:
        return PinError(
            f"the lock file {self.path} {what}; restore the file, or remove it to trust on first "
            "use again"
        )


def _two(error: DuplicateKey) -> str:
    """Return the source of two entries, and the sha256 of each."""
    hashes = (value.get("sha256") if isinstance(value, dict) else value for value in error.values)
    stated = " and ".join(f"sha256 {escaped(str(sha256)[:64])}" for sha256 in hashes)
    return f"of {escaped(error.key[:200])}, with {stated}"
