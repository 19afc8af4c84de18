"""The folder that `embed` writes: which parts it has, and what `_manifest.json` says about it.

Parts are fixed ranges of the inputs. Every process that is given the same inputs and model plans
the same parts, and writes the same bytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import Timeout

from vitzoo.apps.embed.differences import first_difference
from vitzoo.apps.embed.items import Piece
from vitzoo.apps.embed.out import MANIFEST as MANIFEST, check_out as check_out
from vitzoo.apps.embed.part_file import Form, claim, explained, keys_of, state_of
from vitzoo.apps.embed.sources import Paths, find_pieces, sha256_of, slices
from vitzoo.apps.embed.table import stored_text
from vitzoo.apps.identity.canary import Canary
from vitzoo.apps.identity.identity import Identity
from vitzoo.errors import ImageError, InvalidOption, StoreError, short_repr
from vitzoo.files.access import make_folder, read_regular, write_atomic
from vitzoo.files.strict_json import strict_json
from vitzoo.images.find import LeftOut
from vitzoo.schema.reader import Reader
from vitzoo.store.locks import locked as lock_file

FORMAT = 1
MAX_MANIFEST = 2**24  # bytes
PATIENCE = 60.0  # seconds to wait for another process that writes the manifest
PARTS = 16  # at least so many parts, so that all processes have work
MIN_ROWS, MAX_ROWS = 64, 1024
WAYS: tuple[dict[str, bool], ...] = (  # to count inputs: of this version, then of earlier ones
    {},
    {"hidden": True},
    {"hidden": True, "repeated": True},
)
MAX_BYTES = 2**28  # of the vectors in one part


@dataclass(frozen=True)
class Inputs:
    """A range of inputs, which one run or `--extend` added: how many, and what they are."""

    count: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """One file: its number, and the inputs from `start` to `stop`."""

    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"part-{self.number:06}.parquet"


@dataclass(frozen=True)
class Manifest:
    """What a folder contains, or will contain.

    Args:
        form: columns and metadata of the parts.
        part_rows: number of rows of a part; the last part of a range has fewer.
        inputs: the ranges of inputs.
        errors: number of inputs that could not be read; None until all parts are there.
    """

    form: Form
    part_rows: int
    inputs: tuple[Inputs, ...]
    errors: int | None = None

    @property
    def count(self) -> int:
        """Number of inputs."""
        return sum(inputs.count for inputs in self.inputs)

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order."""
        number = start = 0
        for inputs in self.inputs:
            stop = start + inputs.count
            for first in range(start, stop, self.part_rows):
                yield Part(number, first, min(first + self.part_rows, stop))
                number += 1
            start = stop

    def to_data(self) -> dict[str, Any]:
        """Return the manifest as it is written."""
        return {
            "format": FORMAT,
            "complete": self.errors is not None,
            "inputs": self.count,
            "errors": self.errors,
            "parts": len(list(self.parts())),
            "part_rows": self.part_rows,
            "ranges": [{"inputs": one.count, "sha256": one.sha256} for one in self.inputs],
            "outputs": self.form.outputs,
            "vectors": self.form.vectors,
            "device": self.form.device,
            "license": self.form.license,
            "fingerprint": self.form.fingerprint,
            **({"identity": self.form.identity} if self.form.identity else {}),
            **({"canary": self.form.canary} if self.form.canary else {}),
        }

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """Read a manifest; None if there is none.

        Raises:
            StoreError: it is damaged, or from another version of vitzoo.
        """
        try:
            data = read_regular(path, MAX_MANIFEST)
        except StoreError as error:
            raise StoreError(f"{error}; remove it, or choose another --out") from error
        try:
            return None if data is None else cls._parsed(strict_json(data))
        except (StoreError, ValueError) as error:
            raise StoreError(f"cannot read {path}: {error}; choose another --out") from error

    @classmethod
    def _parsed(cls, table: object) -> Manifest:
        reader = Reader(table, "manifest", StoreError)
        if (found := reader.take("format", int)) != FORMAT:
            raise reader.fail(f"has format {short_repr(found)}, expected {FORMAT}")
        form = Form(
            fingerprint=reader.take("fingerprint", dict),
            vectors=reader.take("vectors", str),
            outputs=reader.take("outputs", dict),
            license=reader.text("license") if reader.take("license", str) else "",
            identity=_texts(reader, "identity"),
            canary=_canaries(reader),
        )
        rows = [Reader(row, "ranges", StoreError) for row in reader.take("ranges", list)]
        return cls(
            form,
            part_rows=reader.count("part_rows", most=MAX_ROWS),
            inputs=tuple(Inputs(row.count("inputs"), row.text("sha256")) for row in rows),
            errors=reader.count("errors", least=0) if reader.take("complete", bool) else None,
        )


def _texts(reader: Reader, key: str) -> dict[str, str]:
    """Return a table of identities; empty in a folder of an earlier version."""
    table = reader.take(key, dict, {})
    for text in table.values():
        Identity.parse(text)
    return table


def _canaries(reader: Reader) -> dict[str, Any]:
    table = reader.take("canary", dict, {})
    for data in table.values():
        Canary.from_data(data)
    return table


def rows_of_part(count: int, row_bytes: int, chunk: int = 8) -> int:
    """Return how many rows a part has.

    Args:
        count: number of inputs.
        row_bytes: size of a row.
        chunk: number of images in a forward pass; large chunks are not divided among parts.
    """
    step = max(8, chunk)
    most = max(8, min(MAX_ROWS, MAX_BYTES // max(row_bytes, 1)))
    rows = min(most, max(MIN_ROWS, step, -(-count // PARTS)))
    return max(rows // step * step or rows // 8 * 8, 8)


def find_inputs(
    found: Manifest | None, sources: Sequence[Paths], column: str | None
) -> tuple[list[Piece], LeftOut]:
    """Return the pieces of the sources, counted as in a folder that an earlier version wrote.

    Also return the endings of the files that are left out.

    Raises:
        ImageError, InvalidOption: as `find_pieces`.
    """
    if found is None:
        left_out = LeftOut()
        return find_pieces(sources, column, left_out=left_out), left_out
    tried: list[tuple[list[Piece], LeftOut]] = []
    for way in WAYS:
        left_out = LeftOut()
        try:
            pieces = find_pieces(sources, column, **way, left_out=left_out)
        except (ImageError, InvalidOption):
            if way == WAYS[-1] and not tried:
                raise
            continue
        if _begins_with(pieces, found):
            return pieces, left_out
        tried.append((pieces, left_out))
    return tried[0]


def _begins_with(pieces: Sequence[Piece], found: Manifest) -> bool:
    """Return whether the first inputs of the pieces are those of a manifest."""
    if found.count > sum(map(len, pieces)):
        return False
    stops = itertools.accumulate((one.count for one in found.inputs), initial=0)
    ranges = slices(pieces, itertools.pairwise(stops))
    return all(sha256_of(own) == one.sha256 for own, one in zip(ranges, found.inputs, strict=True))


def agree(folder: Path, form: Form, pieces: Sequence[Piece], *, extend: bool) -> Manifest:
    """Return the manifest of a folder; make both if they are missing.

    Args:
        folder: of `embed`.
        form: of the model.
        pieces: the inputs.
        extend: whether inputs may be added.

    Raises:
        InvalidOption: the folder has vectors of another model or other inputs.
        StoreError: the folder cannot be read or written, or its manifest is damaged.
    """
    with explained(folder):
        make_folder(folder)
        while True:  # other processes do not wait while this one reads all names
            found = Manifest.read(folder / MANIFEST)
            if found is None:
                count = sum(map(len, pieces))
                rows = rows_of_part(count, form.row_bytes, form.chunk or 1)
                agreed = Manifest(form, rows, (Inputs(count, sha256_of(pieces)),))
            else:
                _check_form(folder, found.form, form)
                agreed = _with_new_inputs(folder, found, pieces, extend=extend)
            with locked(folder, "manifest", PATIENCE):
                if Manifest.read(folder / MANIFEST) == found:
                    if agreed is not found:
                        write_manifest(folder, agreed)
                    return agreed


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, or nothing."""
    text = json.dumps(manifest.to_data(), indent=2, ensure_ascii=True) + "\n"
    write_atomic(folder / MANIFEST, text.encode())


def missing_parts(folder: Path, parts: Iterable[Part], form: Form) -> list[Part]:
    """Return those of the parts that are not there, or not whole.

    Raises:
        InvalidOption: a part is from another model.
    """
    missing = []
    for part in parts:
        path = folder / part.name
        state = state_of(path)
        if state is None or state[0] != part.stop - part.start:
            missing.append(part)
        elif state[2] != form.fingerprint_text:
            raise InvalidOption(
                f"{path} was written with another model or other settings than {MANIFEST} beside "
                "it says; remove the file, and run the command again"
            )
    return missing


def reopen(folder: Path) -> None:
    """Write that a complete folder is not complete, because parts are computed again.

    Raises:
        StoreError: the folder cannot be read or written.
    """
    with explained(folder), locked(folder, "manifest", PATIENCE):
        current = Manifest.read(folder / MANIFEST)
        if current is not None and current.errors is not None:
            write_manifest(folder, replace(current, errors=None))


def finish(folder: Path) -> tuple[Manifest, int]:
    """Return the manifest and how many parts are missing; without any, write that it is complete.

    Raises:
        StoreError: the folder cannot be read or written.
    """
    with explained(folder), locked(folder, "manifest", PATIENCE):
        current = Manifest.read(folder / MANIFEST)
        if current is None:
            raise StoreError(f"{folder / MANIFEST} was removed; run the command again")
        parts = list(current.parts())
        missing = sum(not (folder / part.name).exists() for part in parts)
        if current.errors is not None and not missing:
            return current, 0
        states = [] if missing else [state_of(folder / part.name) for part in parts]
        missing += states.count(None)
        errors = None if missing else sum(state[1] for state in states if state)
        if errors != current.errors:
            current = replace(current, errors=errors)
            write_manifest(folder, current)
        return current, missing


@contextmanager
def locked(folder: Path, name: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock in a folder; the lock of a killed process is free.

    Raises:
        StoreError: another process holds it.
    """
    with ExitStack() as stack:
        with explained(folder):
            try:
                stack.enter_context(lock_file(folder / f".{name}.lock", folder, patience))
            except Timeout as error:
                raise StoreError(
                    f"another process writes to {folder} ({name}); wait for it, or give each "
                    "process its own --shard"
                ) from error
        yield


def remove_leftovers(folder: Path, parts: Sequence[Part]) -> None:
    """Remove the unfinished files of these parts that no living process writes.

    Raises:
        StoreError: one of them is a folder, or cannot be removed.
    """
    names = {part.name for part in parts}
    for path in folder.iterdir():
        match = re.fullmatch(r"\.(part-\d+\.parquet)\.\d+\.\d+", path.name)
        if match and match[1] in names:
            with explained(folder), claim(folder / match[1]) as free:
                if free:
                    path.unlink(missing_ok=True)


def _check_form(folder: Path, found: Form, wanted: Form) -> None:
    """Raise InvalidOption if a folder has vectors of another form; another license is no matter.

    Identities and canaries follow from the fingerprint, and folders of earlier versions have none.
    """
    free: dict[str, Any] = {"license": "", "identity": {}, "canary": {}}
    before, now = (dict(_flat(vars(replace(form, **free)))) for form in (found, wanted))
    # 8 is not 8.0 or True: the bytes of the parts would differ
    keys = [k for k in {**before, **now} if repr(before.get(k, ...)) != repr(now.get(k, ...))]
    if keys:
        differences = [
            f"{'.'.join(key)[:200]} is {short_repr(before.get(key))} in it and "
            f"{short_repr(now.get(key))} now"
            for key in keys[:8]
        ]
        raise InvalidOption(
            f"{folder} has vectors of another model or other settings: {'; '.join(differences)}. "
            "Choose another --out"
        )


def _flat(
    table: Mapping[str, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*before, key))
        else:
            yield (*before, key), value


def _with_new_inputs(
    folder: Path, found: Manifest, pieces: Sequence[Piece], *, extend: bool
) -> Manifest:
    """Return the manifest with the inputs that were appended to the sources."""
    count, start = sum(map(len, pieces)), found.count
    if not _begins_with(pieces, found):
        which = _difference(folder, found, pieces)
        raise InvalidOption(
            f"{folder} has other inputs: {start} are in it, the sources have {count}. {which}. "
            "Name the same sources from the same working directory, or choose another --out"
        )
    if count == start:
        return found
    if not extend:
        raise InvalidOption(
            f"the sources have {count} inputs, {folder} has the first {start}; pass --extend "
            "(extend=True) to add the others"
        )
    new = Inputs(count - start, sha256_of(next(slices(pieces, [(start, count)]))))
    return replace(found, inputs=(*found.inputs, new), errors=None)


def _difference(folder: Path, found: Manifest, pieces: Iterable[Piece]) -> str:
    now = [stored_text(key) for piece in pieces for key in piece.names()]
    near = itertools.takewhile(lambda part: part.start <= len(now), found.parts())
    stored: list[str | None] = []
    for part in near:
        keys, count = keys_of(folder / part.name) or [], part.stop - part.start
        stored += keys if len(keys) == count else [None] * count
    more = [None] * (found.count > len(stored))  # keys that are not read
    return first_difference([*stored, *more], now)
