"""Collections of vector stores, each through its own client, which is imported when it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from vitzoo.errors import InvalidOption, Offline, TransferError, VitzooError, printable
from vitzoo_vectors.stored import (
    IDENTITY,
    KEYS,
    Stored,
    arrays,
    choose,
    columns,
    named,
    need,
    texts,
)

SECONDS = 10  # to connect
OFFLINE = ("VITZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
SECRETS = ("PGPASSWORD", "QDRANT_API_KEY", "LANCEDB_API_KEY", "CHROMA_API_KEY")
YES = ("1", "on", "yes", "true")
FORM = re.compile(r"(?:(qdrant|chroma|lancedb):([^#]+)|(postgres(?:ql)?://[^#]*))#(.+)", re.DOTALL)
BATCH = 1000  # points in a request
COLUMNS = """
SELECT attname, format_type(atttypid, NULL), col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""


class Address(NamedTuple):
    """Where a collection is: the store, a folder or an address, and the collection."""

    store: str
    where: str
    collection: str

    @property
    def remote(self) -> bool:
        """Tell whether it is no folder."""
        return "://" in self.where

    @property
    def plain(self) -> str:
        """Return the folder, or the address without user, password and query."""
        parts = urlsplit(self.where)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}" if self.remote else self.where

    def __str__(self) -> str:
        store = "" if self.store == "postgresql" else f"{self.store}:"
        return printable(f"{store}{self.plain}#{self.collection}")

    @property
    def key(self) -> str | None:
        """Return the password of the address, or the key of Qdrant."""
        return unquote(urlsplit(self.where).password or "") or os.environ.get("QDRANT_API_KEY")

    def hide(self, text: str) -> str:
        """Return a text without passwords and query."""
        parts = urlsplit(self.where)
        secrets = [parts.query, *dict(parse_qsl(parts.query)).values(), parts.password, self.key]
        for one in filter(None, [*secrets, *map(os.environ.get, SECRETS)]):
            text = text.replace(one, "***")
        return printable(text)


def address_of(place: str) -> Address | None:
    """Return the address of a collection, None for a file or a folder.

    Raises:
        InvalidOption: it is a wrong address, of which no more is shown than its start.
    """
    match, path = FORM.fullmatch(place), Path(place)
    try:
        if match and (urlsplit(match[2] or match[3]).port or True):
            return Address(match[1] or "postgresql", match[2] or match[3], match[4])
    except ValueError:
        match = None
    if "://" in place:
        raise InvalidOption(
            "an address must be STORE:ADDRESS#COLLECTION, such as qdrant:http://localhost:6333#a, "
            f"or postgresql://USER@HOST/DATABASE#TABLE; got {printable(place.partition('//')[0])}//"
        )
    return Address("lancedb", str(path.parent), path.stem) if path.suffix == ".lance" else None


def read_store(address: Address, wanted: Sequence[str], most: int) -> Stored:
    """Return what a collection says of its vectors, and the first of them.

    Raises:
        Offline: sockets are forbidden, and it is no folder.
        TransferError: the store does not answer.
        InvalidOption: there is no such collection or column.
        MissingDependency: the client is not installed.
    """
    read, module, distribution = STORES[address.store]
    if address.remote and any(os.environ.get(n, "").strip().lower() in YES for n in OFFLINE):
        raise Offline(f"{address} is not read offline; unset {', '.join(OFFLINE)}")
    if not address.remote and not Path(address.where).is_dir():
        where = printable(address.where.rpartition("@")[2])
        raise InvalidOption(f"there is no folder {where}; correct PLACE")
    need(module, distribution, str(address))
    try:
        return read(address, wanted, most)
    except VitzooError:
        raise
    except Exception as error:  # noqa: BLE001  # of any client; its text may have a password
        told = address.hide(f"{type(error).__name__}: {error}")[:500]
    raise TransferError(f"cannot read {address}: {told}; check the address, the server and the key")


def _known(address: Address, names: Sequence[str]) -> None:
    if address.collection not in names:
        listed = ", ".join(sorted(map(printable, names))[:20]) or "no collection"
        raise InvalidOption(f"there is no collection {address}; the store has {listed}")


def _qdrant(address: Address, wanted: Sequence[str], most: int) -> Stored:
    from qdrant_client import QdrantClient

    at: dict[str, Any] = {"path": address.where}
    if address.remote:
        at = {"url": address.plain, "api_key": address.key, "timeout": SECONDS}
    client = QdrantClient(**at, check_compatibility=False)
    _known(address, [one.name for one in client.get_collections().collections])
    metadata = client.get_collection(address.collection).config.metadata or {}
    points: list[Any] = []
    offset, more = None, most > 0
    while more:
        least = min(BATCH, most - len(points))
        page, offset = client.scroll(
            address.collection, limit=least, offset=offset, with_vectors=True
        )
        points += page
        more = offset is not None and len(points) < most
    vectors: list[Any] = [point.vector for point in points]
    if vectors and isinstance(vectors[0], dict):
        name = choose(vectors[0], wanted)
        vectors = [vector[name] for vector in vectors]
    keys = [named(point.payload or {}, point.id) for point in points]
    count = client.count(address.collection).count
    client.close()
    return Stored(metadata, count, np.array(vectors, np.float32), keys)


def _chroma(address: Address, _: Sequence[str], most: int) -> Stored:
    import chromadb
    from chromadb.config import Settings

    settings, parts = Settings(anonymized_telemetry=False), urlsplit(address.where)
    if address.remote:
        at: dict[str, Any] = {"host": parts.hostname, "ssl": parts.scheme == "https"}
        client: Any = chromadb.HttpClient(**at, port=parts.port or 8000, settings=settings)
    else:
        client = chromadb.PersistentClient(address.where, settings=settings)
    _known(address, [one.name for one in client.list_collections()])
    collection = client.get_collection(address.collection, embedding_function=None)
    count = collection.count()
    keys: list[str] = []
    vectors: list[Any] = []
    for start in range(0, min(most, count), BATCH):
        least = min(BATCH, most - start)
        page = collection.get(limit=least, offset=start, include=["embeddings", "metadatas"])
        keys += [named(m or {}, i) for i, m in zip(page["ids"], page["metadatas"], strict=True)]
        vectors += list(page["embeddings"])
    return Stored(collection.metadata or {}, count, np.array(vectors, np.float32), keys)


def _lancedb(address: Address, wanted: Sequence[str], most: int) -> Stored:
    import lancedb

    database = lancedb.connect(address.where)
    _known(address, database.table_names(limit=10_000))
    table = database.open_table(address.collection)
    stored = Stored(texts(table.schema.metadata), table.count_rows())
    if not most:
        return stored
    names = columns(table.schema, wanted)
    rows = table.search().select(names).limit(min(most, stored.count)).to_arrow().select(names)
    return Stored(stored.metadata, stored.count, *arrays(rows))


def _postgresql(address: Address, wanted: Sequence[str], most: int) -> Stored:
    import psycopg
    from psycopg.sql import SQL, Identifier

    with psycopg.connect(address.where, connect_timeout=SECONDS) as connection:
        connection.read_only = True
        fields = connection.execute(COLUMNS, [address.collection]).fetchall()
        if not fields:
            raise InvalidOption(f"there is no table {address}; write SCHEMA.TABLE after the #")
        column = choose((name for name, kind, _ in fields if kind in ("vector", "halfvec")), wanted)
        comments = {name: comment for name, _, comment in fields}
        key = next((name for name in KEYS if name in comments), column)
        table = Identifier(*address.collection.split("."))
        query = SQL("SELECT {0}::text, {1}::real[] FROM {2} WHERE {1} IS NOT NULL LIMIT {3}")
        query = query.format(Identifier(key), Identifier(column), table, most)
        rows = connection.execute(query).fetchall()
        counted = connection.execute(SQL("SELECT count(*) FROM {}").format(table)).fetchall()
    keys = [row[0] for row in rows if key != column]
    vectors = np.array([row[1] for row in rows], np.float32)
    return Stored({IDENTITY: comments[column]}, counted[0][0], vectors, keys)


Read = Callable[[Address, Sequence[str], int], Stored]
STORES: dict[str, tuple[Read, str, str]] = {  # how to read it; the client, and its distribution
    "qdrant": (_qdrant, "qdrant_client", "qdrant-client"),
    "chroma": (_chroma, "chromadb", "chromadb"),
    "lancedb": (_lancedb, "lancedb", "lancedb"),
    "postgresql": (_postgresql, "psycopg", "psycopg[binary]"),
}
