"""Embeddings of images, each computed once: read from files by the sha256 of the image's bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitzoo import settings
from vitzoo.apps.embed.parquet_reader import parquet_file
from vitzoo.apps.embed.parquet_rows import read_rows
from vitzoo.apps.embed.part_file import FINGERPRINT
from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.cores import cores_of_process
from vitzoo.apps.predict.decoding import Decoded, size_of_bytes
from vitzoo.apps.predict.fingerprint import hash_data
from vitzoo.apps.predict.outputs import POOLED, Row
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.apps.predict.stream import MAX_AHEAD, Stream, one_by_one, staging
from vitzoo.apps.probe.labelled import ROWS, Image
from vitzoo.errors import ImageError, printable
from vitzoo.files.access import make_folder_or_raise, replacing, unwritable
from vitzoo.files.names import SHA256
from vitzoo.images.decode import UNNAMED_BYTES
from vitzoo.images.file_bytes import read_bytes
from vitzoo.progress import OnProgress

OF_RESULTS = ("outputs", "labels")  # keys of a fingerprint that do not change the embeddings
MAX_READ = 2**25  # bytes of vectors that are read at once
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Embedded:
    """An embedding (d,), or the reason why there is none; and the sha256 of the image's bytes."""

    vector: Vector | None
    error: str = ""
    sha256: str = ""


class EmbeddingCache:
    """Embeddings in Parquet files, by the sha256 of the bytes of the image.

    Only files with the same fingerprint are read: the same weights, network, preprocessing and
    versions of libraries give the same bytes.

    Args:
        folder: of the files. None: `cache/embeddings` in VITZOO_HOME. A folder with Parquet files
            of `vitzoo embed` is only read, and new embeddings alone are written to VITZOO_HOME.
        fingerprint: of the predictor, as plain data.
        width: d.
    """

    def __init__(self, folder: Path | None, fingerprint: dict[str, Any], width: int) -> None:
        self.fingerprint, self.width = fingerprint, width
        home = settings.home()
        usual = home / "cache" / "embeddings" if home else None
        there = folder is not None and os.path.isdir(folder)  # noqa: PTH112  # never raises
        read = sorted(folder.glob("*.parquet"), key=str) if folder and there else []
        of_others = any(not SHA256.fullmatch(path.stem) for path in read)
        own = usual if folder is None or of_others else folder
        self.path = own and own / f"{self._identity(fingerprint)}.parquet"
        if own is not None:
            make_folder_or_raise(own)
        self.own = self._read(self.path) if self.path and self.path.exists() else {}
        self.known: dict[str, Vector] = {}
        for path in read:
            self.known |= {} if path == self.path else self._read(path)
        self.known |= self.own

    def write(self, found: Sequence[Embedded]) -> None:
        """Add new embeddings to the own file, which is replaced as a whole.

        Raises:
            StoreError: the file cannot be written.
        """
        vectors = {one.sha256: one.vector for one in found if one.vector is not None}
        new = {key: vector for key, vector in vectors.items() if key not in self.known}
        if self.path is None or not new:
            return
        import pyarrow as pa
        from pyarrow import parquet

        every = {**self.own, **new}
        flat = pa.array(np.concatenate(list(every.values())))
        columns = [pa.array(list(every)), pa.FixedSizeListArray.from_arrays(flat, self.width)]
        table = pa.table(columns, names=["sha256", POOLED])
        table = table.replace_schema_metadata({FINGERPRINT: json.dumps(self.fingerprint)})
        try:
            with replacing(self.path, lasting=False) as file:
                parquet.write_table(table, file)
        except OSError as error:
            raise unwritable(self.path.parent, error) from error

    def _identity(self, fingerprint: dict[str, Any]) -> str:
        return hash_data({k: v for k, v in fingerprint.items() if k not in OF_RESULTS})

    def _read(self, path: Path) -> dict[str, Vector]:
        """Return the embeddings in a file; none if it is from another network, or is damaged."""
        try:
            file = parquet_file(str(path))
            stated = json.loads(file.outline.metadata.get(FINGERPRINT, b"{}"))
            if self._identity(stated) != self._identity(self.fingerprint):
                return {}
            found: dict[str, Vector] = {}
            at_once = max(1, min(ROWS, MAX_READ // (4 * self.width)))
            columns, count = ["sha256", POOLED], file.outline.rows
            for answer in read_rows(file, "vectors", columns, count, at_once, self.width):
                found |= zip(*answer.values, strict=True)
        except (ImageError, ValueError, TypeError, AttributeError, RecursionError):
            return {}
        return found


def embed_images(
    predictor: Predictor,
    images: Sequence[Image],
    known: dict[str, Vector],
    report: OnProgress,
) -> list[Embedded]:
    """Return the embedding of each image, in their order.

    Images are decoded, and chunks of them computed, in one thread for each core; their number does
    not change a result.

    Args:
        predictor: with the output `pooled`.
        images: paths, or bytes of image files.
        known: embeddings (d,) that are not computed again, by the sha256 of the image's bytes.
        report: is called with the number of images so far, of all, and a text.
    """
    found: list[Embedded] = []
    if predictor.asynchronous:
        decode = partial(_decoded, staging(predictor), known=known)
        with Stream(predictor, one_by_one(decode)) as stream:
            for rows in stream.rows(map(_read, images), size_of_bytes):
                found.extend(_embedding(row, known) for row in rows)
                report(len(found), len(images), "images")
        return found
    waiting: deque[Future[list[Embedded]]] = deque()
    threads = cores_of_process()
    pool = ThreadPoolExecutor(threads)

    def take() -> None:
        found.extend(waiting.popleft().result())
        report(len(found), len(images), "images")

    try:
        decode = partial(_decoded, predictor.decode, known=known)
        for chunk in batches(_in_threads(pool, decode, images), predictor.chunk):
            waiting.append(pool.submit(_embedded, predictor, known, chunk))
            while len(waiting) > threads:
                take()
        while waiting:
            take()
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for the other chunks
    return found


def _in_threads(
    pool: ThreadPoolExecutor, decode: Callable[[Any], Decoded], images: Sequence[Image]
) -> Iterator[Future[Decoded]]:
    """Decode images in threads. Rows of a Parquet file are read in this one, in their order."""
    held, waiting = 0, deque[tuple[int, Future[Decoded]]]()
    for image in images:
        data = _read(image)
        size = size_of_bytes(data)
        held += size
        waiting.append((size, pool.submit(decode, data)))
        del data
        yield waiting[-1][1]
        while waiting and (held > MAX_AHEAD or waiting[0][1].done()):
            size, first = waiting.popleft()
            first.exception()  # the thread that takes the result raises it
            held -= size


def _read(image: Image) -> Path | bytes | ImageError:
    """Return an image; the bytes of one in a row of a Parquet file, or its error."""
    if not callable(image):
        return image
    try:
        return image()
    except ImageError as error:
        return error


def _embedded(
    predictor: Predictor, known: dict[str, Vector], images: Sequence[Future[Decoded]]
) -> list[Embedded]:
    """Return the embeddings of at most one chunk of images, whose decoding has begun."""
    (rows,) = predictor.rows_of([[image.result() for image in images]])
    return [_embedding(row, known) for row in rows]


def _embedding(row: Row, known: dict[str, Vector]) -> Embedded:
    vector = _narrow(row.outputs[POOLED]) if row.outputs else known.get(row.sha256)
    return Embedded(None if row.error else vector, row.error, row.sha256)


def _decoded(
    decode: Callable[..., Decoded], image: Path | bytes | ImageError, known: dict[str, Vector]
) -> Decoded:
    """Read an image, and decode it if its embedding is not known."""
    if isinstance(image, ImageError):
        return Decoded(None, str(image))
    try:
        data = read_bytes(image) if isinstance(image, Path) else image
    except ImageError as error:
        return Decoded(None, str(error))
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 in known:
        return Decoded(None, sha256=sha256)
    return decode(data, printable(image) if isinstance(image, Path) else UNNAMED_BYTES)


def _narrow(vectors: npt.NDArray[Any]) -> Vector:
    """Return vectors of any float type as float32."""
    with np.errstate(over="ignore"):  # the caller refuses what is not finite
        return vectors.astype(np.float32, copy=False)
