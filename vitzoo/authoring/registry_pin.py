"""Add pins (commit, size and sha256) to the weights of registry files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitzoo import errors
from vitzoo.authoring.registry_check import read
from vitzoo.authoring.registry_target import editable_manifests, with_ends_of
from vitzoo.errors import NetworkError, PinError, TransferError, WeightsError
from vitzoo.files.access import write_atomic
from vitzoo.files.names import COMMIT
from vitzoo.inventory import parallel
from vitzoo.log import log
from vitzoo.plugin.info import CORE
from vitzoo.progress import bar
from vitzoo.schema.addresses import MAIN
from vitzoo.schema.rows import Weights
from vitzoo.store.hub_file import HubFile
from vitzoo.store.hub_metadata import request_pins
from vitzoo.store.lockfile import Pin

FIX = "pins are taken from this endpoint alone, never from a mirror; run the command again later"
KEYS = ("pin", "revision", "sha256", "size")  # of a pin, in their order


Answers = Mapping[str, "Pin | WeightsError"]  # by entry


@dataclass(frozen=True)
class Pinned:
    """The result for one weights entry.

    `state` is `pinned`, `already`, `open` (the run ended before), `gated: cause`, `missing: cause`
    or `failed: cause`. `difference` says by how many percent a new size exceeds the predicted one.
    """

    weights: str
    state: str
    sha256: str = ""
    size: int | None = None
    revision: str = ""
    difference: float | None = None


class _Manifest:
    """A registry file and its entries of the Hub, by names with the namespace."""

    def __init__(self, namespace: str, file: Path, *, strict: bool) -> None:
        self.prefix = "" if namespace == CORE else f"{namespace}/"
        self.file, self.strict = file, strict
        self.failed: list[Pinned] = []
        self.entries: dict[str, tuple[Weights, Any]] = {}
        with self._failing():
            self._read()

    def _read(self) -> None:
        import tomlkit

        manifest = read(self.file, complete=False)
        self.before = self.file.read_bytes().decode()
        self.document: Any = tomlkit.parse(self.before)
        for name, error in manifest.unusable.items():
            self.failed.append(Pinned(self.prefix + name, f"failed: {error}"))
        for variant in manifest.variants:
            for row in filter(lambda row: row.repo, variant.weights):
                table = self.document["variants"][variant.name]["weights"][row.name]
                self.entries[f"{self.prefix}{variant.name}:{row.name}"] = row, table

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Note an error about the file as its only result, unless `strict`."""
        try:
            yield
        except (errors.RegistryError, OSError) as error:
            if self.strict:
                raise
            self.failed = [Pinned(f"{self.prefix}*", f"failed: {self.file}: {error}")]
            self.entries = {}

    def pinned(self, answers: Answers, *, write: bool) -> list[Pinned]:
        """Return the result for each entry; write the file if one is new."""
        import tomlkit

        found = [
            _pinned(label, *entry, answers.get(label), strict=self.strict)
            for label, entry in self.entries.items()
        ]
        with self._failing():
            if write and any(row.state == "pinned" for row in found):
                after = with_ends_of(self.before, tomlkit.dumps(self.document))
                write_atomic(self.file.resolve(), after)
        return self.failed + (found if self.entries else [])


def pin(file: Path | None, *, write: bool = True, recheck: bool = False) -> list[Pinned]:
    """Add the commit, size and sha256 that entries lack.

    There is one request for each revision of a repository. If the run ends early, the pins that it
    has received are written, and the next run asks for the others.

    Args:
        file: replaced atomically; comments, order, line ends and mode are kept. None stands for the
            manifests of all packages that are installed editable: there, what the Hub contradicts,
            and a file that cannot be read or written, is `failed`.
        write: False only reports.
        recheck: whether to compare complete entries with the Hub, too.

    Raises:
        InvalidOption: no package is installed editable.
        RegistryError: the file breaks the schema.
        PinError: the Hub contradicts an entry of the file; nothing is written.
        Offline: a request is needed, but the network is switched off; nothing is written.
        NetworkError: the Hub cannot be reached, or asks to wait too long, before its first answer.
    """
    files = editable_manifests() if file is None else {CORE: file}
    manifests = [_Manifest(*one, strict=file is not None) for one in files.items()]
    entries = {
        label: row
        for manifest in manifests
        for label, (row, _) in manifest.entries.items()
        if recheck or not _is_complete(row)
    }
    answers: dict[str, Pin | WeightsError] = {}
    ended: BaseException | None = None
    try:
        _ask(entries, answers)
    except BaseException as error:
        if not answers or isinstance(error, errors.Offline):
            raise
        ended = error
        for manifest in manifests:
            manifest.strict = False  # a contradiction must not take the place of this error
    found = [row for manifest in manifests for row in manifest.pinned(answers, write=write)]
    if ended:
        log.warning(
            "%s%d of %d entries are still open: run the command again, which %s",
            f"{ended.args[0]}; " if isinstance(ended, NetworkError) else "",
            len(entries) - len(answers),
            len(entries),
            "asks for these alone" if write else "asks for all: a dry run keeps no answer",
        )
    if ended and not isinstance(ended, NetworkError):
        raise ended
    return found


def _ask(entries: Mapping[str, Weights], answers: dict[str, Pin | WeightsError]) -> None:
    """Add the answers about entries; raise an error that the other requests would have, too."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, row in entries.items():
        groups.setdefault((row.repo, row.revision), []).append(label)

    def ask(labels: Sequence[str]) -> None:
        try:
            pins = request_pins([HubFile(entries[label], label) for label in labels], FIX)
            answers.update(zip(labels, pins, strict=True))
        except PinError as error:
            if labels[1:]:  # it may be about one of the files
                for label in labels:
                    ask([label])
            else:
                answers[labels[0]] = error
        except NetworkError as error:
            unreachable = isinstance(error, TransferError) and error.retry_after is None
            if unreachable or error.retry_after or isinstance(error, errors.Offline):
                raise
            text = str(error)
            answers.update((one, type(error)(text.replace(labels[0], one, 1))) for one in labels)
        note(len(answers), len(entries))

    if groups:
        with bar("pins") as note:
            parallel(ask, [*groups.values()])


def _is_complete(row: Weights) -> bool:
    return bool(row.sha256 and row.size and COMMIT.fullmatch(row.revision))


def _differs(row: Weights, pin: Pin) -> bool:
    return bool(row.sha256) and (row.sha256, row.size or pin.size) != (pin.sha256, pin.size)


def _pinned(
    label: str, row: Weights, table: Any, stated: Pin | WeightsError | None, *, strict: bool
) -> Pinned:
    """Write the pin that the Hub states into the table of an entry that lacks a part of it."""
    known = (row.sha256, row.size, row.revision)
    if stated is None:
        return Pinned(label, "already" if _is_complete(row) else "open", *known)
    if isinstance(stated, Pin) and stated.absent:
        stated = errors.EntryNotFound(
            f"{HubFile(row, label).address}: {stated.endpoint} lists no such file there"
        )
    elif isinstance(stated, Pin) and _differs(row, stated):
        stated = PinError(
            f"{label}: the entry has sha256 {row.sha256} and size {row.size}, but at "
            f"{stated.endpoint} the file of revision {row.revision or MAIN} has sha256 "
            f"{stated.sha256} and size {stated.size}; the entry was not changed; enter the commit "
            "that has its file, or correct it if you trust the other file"
        )
    if isinstance(stated, PinError) and strict:
        raise stated
    if isinstance(stated, WeightsError):
        gated = isinstance(stated, errors.AccessDenied | errors.AuthenticationError)
        missing = isinstance(stated, errors.NotFoundOnHub)
        kind = "gated" if gated else "missing" if missing else "failed"
        return Pinned(label, f"{kind}: {str(stated).removeprefix(f'{label}: ')}", *known)
    if _is_complete(row):
        return Pinned(label, "already", *known)
    _write(table, stated)
    predicted = row.predicted_size
    difference = round(100 * (stated.size / predicted - 1), 2) if predicted else None
    return Pinned(label, "pinned", stated.sha256, stated.size, stated.commit, difference)


def _write(table: Any, pin: Pin) -> None:
    """Write a pin into the table of an entry; a new key follows those before it in `KEYS`."""
    for key in ("predicted_size", "file_seen"):
        table.pop(key, None)
    kind = "reported" if table["pin"] == "first-use" else table["pin"]
    old = {*table}
    for key, value in zip(KEYS, (kind, pin.commit, pin.sha256, pin.size), strict=True):
        if table.get(key) != value:
            table[key] = value
    body = getattr(table.value, "body", None)  # tomlkit adds keys at the end
    if body is None:  # parts of the table are in several places of the file
        return
    for number, key in enumerate(KEYS):
        if key not in old:
            names = [name and name.key for name, _ in body]
            after = max(names.index(one) for one in KEYS[:number] if one in names)
            body.insert(after + 1, body.pop(names.index(key)))
