"""Add pins (commit, size and sha256) to the weights of a registry file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitzoo.authoring.registry_check import read
from vitzoo.errors import NetworkError, Offline, PinError
from vitzoo.files.access import write_atomic
from vitzoo.schema.rows import Weights
from vitzoo.store.hub_file import HubFile
from vitzoo.store.hub_metadata import request_pin


@dataclass(frozen=True)
class Pinned:
    """The result for one weights entry; `state` is `pinned`, `already` or `failed: cause`."""

    weights: str
    state: str
    sha256: str = ""
    size: int | None = None
    revision: str = ""


def pin(file: Path, *, write: bool = True) -> list[Pinned]:
    """Add commit, size and sha256 to unpinned entries, and missing sizes to pinned entries.

    Args:
        file: replaced atomically; comments, order, line ends and mode are kept.
        write: False only reports.

    Raises:
        RegistryError: the file breaks the schema.
        PinError: the Hub contradicts a pinned entry; nothing is written.
        Offline: a request is needed, but the network is switched off; nothing is written.
    """
    import tomlkit

    manifest = read(file, sized=False)
    before = file.read_bytes().decode()
    document: Any = tomlkit.parse(before)
    found = [Pinned(name, f"failed: {error}") for name, error in manifest.unusable.items()]
    for variant in manifest.variants:
        for row in variant.weights:
            if row.repo:
                table = document["variants"][variant.name]["weights"][row.name]
                found.append(_pin_row(f"{variant.name}:{row.name}", row, table))
    if write and any(row.state == "pinned" for row in found):
        write_atomic(file.resolve(), with_ends_of(before, tomlkit.dumps(document)))
    return found


def with_ends_of(before: str, after: str) -> bytes:
    """Return a text with the line ends of another one; lines that tomlkit adds end in LF."""
    crlf = before.count("\n") == before.count("\r\n") > 0
    return (after.replace("\r\n", "\n").replace("\n", "\r\n") if crlf else after).encode()


def _pin_row(label: str, row: Weights, table: Any) -> Pinned:
    try:
        stated = request_pin(HubFile(row, label))
    except Offline:
        raise
    except NetworkError as error:
        return Pinned(label, f"failed: {error}", row.sha256, row.size, row.revision)
    if row.sha256:
        if (row.sha256, row.size or stated.size) != (stated.sha256, stated.size):
            raise PinError(
                f"{label}: the entry has sha256 {row.sha256} and size {row.size}, but at "
                f"{stated.endpoint} the file has sha256 {stated.sha256} and size {stated.size}; "
                "nothing was written; correct the entry if you trust that file"
            )
        if row.size or row.predicted_size:
            return Pinned(label, "already", row.sha256, row.size, row.revision)
    else:
        table["pin"] = "reported"
        table["revision"] = stated.commit
        table["sha256"] = stated.sha256
    table["size"] = stated.size
    table.pop("predicted_size", None)
    return Pinned(label, "pinned", stated.sha256, stated.size, stated.commit)
