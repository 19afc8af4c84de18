"""Add pins (commit, size and sha256) to the weights of registry files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitzoo import errors, settings
from vitzoo.authoring.registry_check import read
from vitzoo.authoring.registry_target import editable_manifests
from vitzoo.errors import NetworkError, PinError, TransferError, WeightsError
from vitzoo.files.access import write_atomic
from vitzoo.inventory import parallel
from vitzoo.log import log
from vitzoo.plugin.info import CORE
from vitzoo.schema.rows import Weights
from vitzoo.store.hub_file import HubFile
from vitzoo.store.hub_metadata import request_pin
from vitzoo.store.lockfile import Pin
from vitzoo.store.locks import pause
from vitzoo.store.progress import bar

FIX = "pins are taken from this endpoint alone, never from a mirror; run the command again later"
WINDOW = 330.0  # seconds of one wait; the Hub counts the requests of five minutes


@dataclass(frozen=True)
class Pinned:
    """The result for one weights entry.

    `state` is `pinned`, `already`, `gated: cause`, `missing: cause` or `failed: cause`.
    """

    weights: str
    state: str
    sha256: str = ""
    size: int | None = None
    revision: str = ""


def pin_all(*, write: bool = True) -> list[Pinned]:
    """Pin the manifests of the core and of all plugins that are installed editable.

    An entry that the Hub contradicts, and a file that cannot be read or written, is `failed`; the
    others are written. An interrupted run keeps the pins that it has received.

    Raises:
        InvalidOption: no manifest is that of an editable package.
        Offline: the network is switched off; nothing is written.
        TransferError: the first requests do not reach the Hub.
    """
    found: list[Pinned] = []
    for namespace, file in editable_manifests().items():
        prefix = "" if namespace == CORE else f"{namespace}/"
        try:
            found += pin(file, write=write, prefix=prefix, strict=False)
        except (errors.RegistryError, TransferError, OSError) as error:
            if isinstance(error, TransferError) and not found:
                raise
            found.append(Pinned(f"{prefix}*", f"failed: {file}: {error}"))
    return found


def pin(file: Path, *, write: bool = True, prefix: str = "", strict: bool = True) -> list[Pinned]:
    """Add commit, size and sha256 to unpinned entries, and missing sizes to pinned entries.

    Args:
        file: replaced atomically; comments, order, line ends and mode are kept.
        write: False only reports.
        prefix: of the names in the result.
        strict: whether a contradiction is an error; otherwise its entry is `failed`.

    Raises:
        RegistryError: the file breaks the schema.
        PinError: the Hub contradicts a pinned entry; nothing is written.
        Offline: a request is needed, but the network is switched off; nothing is written.
        TransferError: the first requests do not reach the Hub.
    """
    import tomlkit

    manifest = read(file, sized=False)
    before = file.read_bytes().decode()
    document: Any = tomlkit.parse(before)
    tables = document.get("variants", {})
    found = [Pinned(prefix + name, f"failed: {e}") for name, e in manifest.unusable.items()]
    entries = {
        f"{prefix}{variant.name}:{row.name}": (row, tables[variant.name]["weights"][row.name])
        for variant in manifest.variants
        for row in variant.weights
        if row.repo
    }
    answers: dict[str, Pin | WeightsError] = {}

    def ask(labels: Sequence[str]) -> None:
        for label in labels:
            answer = _asked(HubFile(entries[label][0], label))
            if isinstance(answer, TransferError) and answer.retry_after is None and not answers:
                raise answer  # the other requests would not reach the Hub either
            answers[label] = answer
            note(len(answers), len(entries))

    try:
        with bar(prefix.rstrip("/") or file.name) as note:
            parallel(ask, [[label] for label in entries])
    except BaseException:
        strict = False  # a contradiction must not take the place of this error
        raise
    finally:  # after Ctrl-C, too
        for label, entry in entries.items():
            if label in answers:
                found.append(_pinned(label, *entry, answers[label], strict=strict))
        if write and any(row.state == "pinned" for row in found):
            write_atomic(file.resolve(), with_ends_of(before, tomlkit.dumps(document)))
    return found


def with_ends_of(before: str, after: str) -> bytes:
    """Return a text with the line ends of another one; lines that tomlkit adds end in LF."""
    crlf = before.count("\n") == before.count("\r\n") > 0
    return (after.replace("\r\n", "\n").replace("\n", "\r\n") if crlf else after).encode()


def _asked(file: HubFile) -> Pin | WeightsError:
    """Return the pin of a file or its error; after a fault that may pass, ask again."""
    attempts = settings.limits().attempts
    for attempt in range(1, attempts + 1):
        try:
            return request_pin(file, FIX)
        except errors.Offline:
            raise
        except (NetworkError, PinError) as error:
            failure, asked = error, getattr(error, "retry_after", None)
        if asked is None or asked > WINDOW or attempt == attempts:
            break
        seconds = max(asked, 0.2 * 2**attempt)
        log.info("%s; trying again in %.1f s", failure, seconds)
        pause(seconds)
    return failure


def _pinned(
    label: str, row: Weights, table: Any, stated: Pin | WeightsError, *, strict: bool
) -> Pinned:
    """Write the pin that the Hub states into the table of an entry without one."""
    if isinstance(stated, Pin) and row.sha256:
        if (row.sha256, row.size or stated.size) != (stated.sha256, stated.size):
            stated = PinError(
                f"{label}: the entry has sha256 {row.sha256} and size {row.size}, but at "
                f"{stated.endpoint} the file has sha256 {stated.sha256} and size {stated.size}; "
                "the entry was not changed; correct it if you trust that file"
            )
        elif row.size or row.predicted_size:
            return Pinned(label, "already", row.sha256, row.size, row.revision)
    if isinstance(stated, PinError) and strict:
        raise stated
    if isinstance(stated, WeightsError):
        gated = isinstance(stated, errors.AccessDenied | errors.AuthenticationError)
        missing = isinstance(stated, errors.NotFoundOnHub)
        kind = "gated" if gated else "missing" if missing else "failed"
        cause = str(stated).removeprefix(f"{label}: ")
        return Pinned(label, f"{kind}: {cause}", row.sha256, row.size, row.revision)
    _write(table, stated, pinned=bool(row.sha256))
    return Pinned(label, "pinned", stated.sha256, stated.size, stated.commit)


def _write(table: Any, pin: Pin, *, pinned: bool) -> None:
    """Write a pin, or the size alone, into the table of an entry, after its key `pin`."""
    for key in ("predicted_size", "file_seen"):
        table.pop(key, None)
    known = {*table}
    if not pinned:
        table["pin"] = "reported"
        table["revision"], table["sha256"] = pin.commit, pin.sha256
    table["size"] = pin.size
    body = getattr(table.value, "body", None)  # tomlkit adds keys at the end
    if body is None:  # parts of the table are in several places of the file
        return
    added = [pair for pair in body if pair[0] and pair[0].key not in known]
    body[:] = [pair for pair in body if pair not in added]
    after = 1 + [key and key.key for key, _ in body].index("pin")
    body[after:after] = added
