"""One part of the result of `embed`: a Parquet file with one row for each input, in order.

Equal rows give equal bytes: the settings of the writer are fixed, the sizes of row groups follow
from the shapes, and no time or host is written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import Timeout

from vitzoo.apps.embed.table import schema_of, table_of
from vitzoo.apps.identity.canary import Canary
from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.fingerprint import device_in
from vitzoo.errors import StoreError, VitzooError
from vitzoo.files.access import fix_of, open_regular, replacing, sync, sync_folder
from vitzoo.files.platform.processes import lock_byte
from vitzoo.store.locks import locked

if TYPE_CHECKING:
    from vitzoo.apps.predict.outputs import Row

GROUP = 2**25  # bytes of vectors in one row group, about
MAX_GROUP = 4096  # rows in one row group
MAX_CHUNK = 4096  # images in a forward pass
VECTORS = ("float32", "float16")
FIXED = ("key", "error", "width", "height", "sha256")
LOCKS = ".writing.lock"  # of a folder: byte i is locked while a process writes part i
T = TypeVar("T")
FINGERPRINT, LICENSE = b"vitzoo.fingerprint", b"vitzoo.license"
IDENTITY, CANARY = b"vitzoo.identity", b"vitzoo.canary"


@dataclass(frozen=True)
class Form:
    """What all parts of a folder share.

    Args:
        fingerprint: of the predictor, as plain data.
        vectors: type of the stored vectors, `float32` or `float16`.
        outputs: shape of each output for one image; [] for `labels`.
        license: license of the weights, empty if it is not known.
        identity: identity of each output that is a vector; empty in a folder of an earlier version.
        canary: vectors of the ten images of each of these, as plain data.
    """

    fingerprint: Mapping[str, Any]
    vectors: str
    outputs: Mapping[str, list[int]]
    license: str
    identity: Mapping[str, str] = field(default_factory=dict)
    canary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chunk(self) -> int | None:
        """Number of images in a forward pass; None if it is damaged, which `agree` refuses."""
        shape = self.fingerprint.get("chunk")
        size = shape[0] if isinstance(shape, list) and shape else None
        return size if type(size) is int and 1 <= size <= MAX_CHUNK else None

    @property
    def device(self) -> str:
        """The kind of device that computes, with its name."""
        return device_in(self.fingerprint.get("versions"))

    @property
    def fingerprint_text(self) -> str:
        """The fingerprint as the end of each file has it."""
        return json.dumps(self.fingerprint, sort_keys=True)

    @property
    def row_bytes(self) -> int:
        """Bytes of the vectors of one row."""
        size = 2 if self.vectors == "float16" else 4
        return size * sum(map(math.prod, self.outputs.values()))

    @property
    def group_rows(self) -> int:
        """Number of rows in a row group."""
        return max(1, min(MAX_GROUP, GROUP // max(self.row_bytes, 1)))

    def schema(self) -> Any:
        """Return the schema of pyarrow."""
        metadata = {FINGERPRINT: self.fingerprint_text.encode(), LICENSE: self.license.encode()}
        hashes = {name: Canary.from_data(data).sha256 for name, data in self.canary.items()}
        for key, table in ((IDENTITY, self.identity), (CANARY, hashes)):
            metadata |= {key: json.dumps(table, sort_keys=True).encode()} if table else {}
        return schema_of(self.outputs, self.outputs, self.vectors).with_metadata(metadata)


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Hold the lock of a part; False if it is held elsewhere. Killed processes hold none.

    The lock belongs to the open file, not to the process, so that threads exclude each other, too.
    Where a byte has no such lock, each part has a lock file.
    """
    number = int(path.stem.rpartition("-")[2])
    fd: Any = open_regular(path.parent / LOCKS, create=True)
    with os.fdopen(fd, "rb") as file, ExitStack() as held:
        free = lock_byte(file.fileno(), number)
        if free is None:
            own = path.with_name(f".{path.name}.lock")
            try:
                held.enter_context(locked(own, path, 0))
                held.callback(_remove, own)  # before the lock is free
            except Timeout:
                free = False
        yield free is not False


def _remove(lock: Path) -> None:
    with suppress(OSError):  # Windows removes no open file; filelock does it afterwards
        lock.unlink()


@contextmanager
def claimed(path: Path, count: int) -> Iterator[bool]:
    """Hold the lock of a part; False if another process writes it now, or has written it.

    Args:
        path: of the file.
        count: number of rows.

    Raises:
        StoreError: the folder cannot be written to.
    """
    with ExitStack() as held:
        with explained(path.parent):
            free = held.enter_context(claim(path))
            state = state_of(path)
        yield free and not (state and state[0] == count)


def write_part(path: Path, form: Form, rows: Iterable[tuple[str, Row]]) -> None:
    """Write a part, which is then at `path`, whole and on disk, or not at all.

    Args:
        path: of the file, which is claimed.
        form: of all parts.
        rows: with their keys.

    Raises:
        StoreError: the disk is full, or the folder cannot be written to.
    """
    from pyarrow.parquet import ParquetWriter

    options: dict[str, Any] = {
        "version": "2.6",
        "compression": dict.fromkeys(FIXED, "zstd") | dict.fromkeys(form.outputs, "none"),
        "use_dictionary": False,
        "write_statistics": ["key", "error"],
        "data_page_size": 2**20,
        "store_schema": True,
    }
    schema = form.schema()
    with explained(path.parent):
        with replacing(path, lasting=False) as file:
            with ParquetWriter(file, schema, **options) as parquet:
                for group in batches(rows, form.group_rows):
                    keys, values = zip(*group, strict=True)
                    parquet.write_table(table_of(keys, values, schema), row_group_size=len(group))
            file.flush()
            sync(file.fileno())
        sync_folder(path.parent)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the errors of a disk into a StoreError that names the folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, VitzooError):
            raise
        where = f" ({Path(error.filename).name})" if error.filename else ""
        fix = "remove what is in the way, make room, or choose another --out"
        fix = fix_of(error, fix, "choose an --out on a local disk")
        raise StoreError(
            f"cannot write in {folder}: {error.strerror or error}{where}; {fix}"
        ) from error


def state_of(path: Path) -> tuple[int, int, str] | None:
    """Return the rows, the errors and the fingerprint of a part; None if it is not whole.

    Raises:
        StoreError: it is no file, or cannot be read.
    """
    return _read(path, _state)


def keys_of(path: Path) -> list[str] | None:
    """Return the keys of a part in order; None if it is not there, or not whole.

    Raises:
        StoreError: as `state_of`.
    """
    return _read(path, lambda file: list(map(str, file.read(["key"])["key"].to_pylist())))


def errors_of(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the keys and errors of the rows with an error, from parts that are whole."""
    for path in paths:
        if (state := state_of(path)) and state[1]:
            yield from _read(path, _errors) or ()


def _read(path: Path, read: Callable[[Any], T]) -> T | None:
    """Return what a function reads in a part; None if the part is not there, or not whole."""
    from pyarrow import parquet

    try:
        fd = open_regular(path, follow=True)
    except StoreError as error:
        raise StoreError(f"{error}; remove it, and run the command again") from error
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            return read(parquet.ParquetFile(file))
        except Exception:  # noqa: BLE001  # pyarrow raises several kinds for damaged data
            return None


def _state(file: Any) -> tuple[int, int, str]:
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    nulls = [group.column(FIXED.index("error")).statistics.null_count for group in groups]
    fingerprint = (metadata.metadata or {}).get(FINGERPRINT, b"").decode()
    return metadata.num_rows, metadata.num_rows - sum(nulls), fingerprint


def _errors(file: Any) -> list[tuple[str, str]]:
    table = file.read(["key", "error"])
    found = table.filter(table["error"].is_valid())
    return [(str(row["key"]), str(row["error"])) for row in found.to_pylist()]
