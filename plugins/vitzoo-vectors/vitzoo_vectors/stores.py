"""Collections of vector stores, each through its own client, which is imported when it is used."""

from __future__ import annotations

import os
import pickle  # for `Points`
import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from vitzoo import cli
from vitzoo.errors import (
    InvalidOption,
    Offline,
    StoreError,
    TransferError,
    VitzooError,
    printable,
)
from vitzoo_vectors.stored import (
    IDENTITY,
    Places,
    Request,
    Stored,
    array_of,
    columns,
    is_there,
    need,
    texts,
)

SECONDS = 10  # to connect
SECRETS = ("PGPASSWORD", "QDRANT_API_KEY", "LANCEDB_API_KEY", "CHROMA_API_KEY")
LIKE = re.compile(r"(qdrant|chroma|lancedb|postgres(ql)?):|.*password=")  # may have a password
FORM = re.compile(r"(?:(qdrant|chroma|lancedb):([^#]+)|(postgres(?:ql)?://[^#]*))#(.+)", re.DOTALL)
ROW = "tableoid || ' ' || ctid"  # a row of a partitioned table
SHORT = 4
BATCH = 1000  # points in a request
MARKS = {"qdrant": "meta.json", "chroma": "chroma.sqlite3"}  # clients make folders without them
COLUMNS = """
SELECT attname, format_type(atttypid, NULL), col_description(attrelid, attnum), atttypmod, relkind
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
TABLES = ("r", "p", "m")  # whose rows have a place: tables, partitioned and materialised ones
VISIBLE = "SELECT relname FROM pg_class WHERE relkind = ANY(%s) AND pg_table_is_visible(oid)"
VISIBLE += " AND relnamespace <> 'pg_catalog'::regnamespace"


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

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers for Chroma: of Basic authentication, and its key."""
        parts, key = urlsplit(self.where), os.environ.get("CHROMA_API_KEY")
        user = ":".join(unquote(one or "") for one in (parts.username, parts.password))
        basic = f"Basic {b64encode(user.encode()).decode()}" if parts.password else None
        headers = {"Authorization": basic, "x-chroma-token": key}
        return {name: value for name, value in headers.items() if value}

    def hide(self, text: str) -> str:
        """Return a text without passwords and query."""
        parts = urlsplit(self.where)
        raw = [pair.partition("=")[2] for pair in parts.query.split("&")]
        decoded = dict(parse_qsl(parts.query)).values()
        secrets = [parts.query, *raw, *decoded, parts.password, self.key, *self.headers.values()]
        for one in filter(None, [*secrets, *map(os.environ.get, SECRETS)]):
            whole = r"\b" if len(one) < SHORT else ""  # not within other words
            text = re.sub(f"{whole}{re.escape(one)}{whole}", "***", text)
        return printable(text)


def address_of(place: str) -> Address | None:
    """Return the address of a collection, None for a file or a folder.

    Raises:
        InvalidOption: it is a wrong address, of which no more is shown than its start.
    """
    match, path = FORM.fullmatch(place), Path(place)
    with suppress(ValueError):
        if match and _is_plain(match[2] or match[3], match[4]):
            return Address(match[1] or "postgresql", match[2] or match[3], match[4])
    if "://" in place or LIKE.match(place):
        raise InvalidOption(
            "an address must be STORE:ADDRESS#COLLECTION, such as qdrant:http://localhost:6333#a, "
            "or postgresql://USER@HOST/DATABASE#TABLE, where a password has %23, %2F and %40 for "
            f"#, / and @; got {printable(re.split('[:=]', place)[0])}:"
            f"{'' if '#' in place else ' without a #'}"
        )
    return Address("lancedb", str(path.parent), path.stem) if path.suffix == ".lance" else None


def _is_plain(where: str, collection: str) -> bool:
    """Tell whether no part of a password is outside its place; raise ValueError for a bad port."""
    parts = urlsplit(where)
    outside = parts.netloc.rpartition("@")[0] + parts.path + collection if "://" in where else ""
    return "@" not in outside and (parts.port or 0) >= 0


def read_store(address: Address, request: Request) -> Stored:
    """Return what a collection says of its vectors, and those of images.

    Raises:
        Offline: sockets are forbidden, and it is no folder.
        TransferError: the store does not answer.
        StoreError: the folder cannot be read.
        InvalidOption: there is no such collection or column.
        MissingDependency: the client is not installed.
    """
    read, module, distribution = STORES[address.store]
    if address.remote and cli.offline():
        names = "VITZOO_OFFLINE, HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE"
        raise Offline(f"{address} is not read offline; unset {names}")
    marked = Path(address.where, MARKS.get(address.store, ""))
    if not address.remote and not is_there(marked):
        where = printable(address.where.rpartition("@")[2])
        raise InvalidOption(
            f"there is no folder {where} of {address.store}; correct PLACE, or write http:// "
            "before the name of a server"
        )
    need(module, distribution, str(address))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of clients, with lines of their code
            return read(address, request)
    except VitzooError:
        raise
    except Exception as error:  # noqa: BLE001  # of any client; its text may have a password
        told = address.hide(f"{type(error).__name__}: {error}")[:500]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the Rust code of Chroma
            raise
        told = "its client ended with a panic"
    if not address.remote:
        raise StoreError(f"cannot read {address}: {told}; check the folder, or close other clients")
    raise TransferError(f"cannot read {address}: {told}; check the address, the server and the key")


def _known(address: Address, names: Sequence[str], more: str = "") -> None:
    if address.collection not in names:
        listed = ", ".join(sorted(map(printable, names))[:20]) or "no collection"
        raise InvalidOption(f"there is no collection {address}; the store has {listed}{more}")


class Points(pickle.Unpickler):
    """Reads the points in a folder of Qdrant, whose client would call any function in them."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of points; refuse everything else."""
        if module.startswith("qdrant_client.http.models.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no class of points")


def _by_ids(
    ids: Sequence[Any], places: Places, fetch: Callable[[list[Any]], Iterable[tuple[Any, Any]]]
) -> NDArray[np.float32]:
    """Return the vectors of the points at some places; `fetch` yields ids and vectors."""
    wanted = [ids[place] for place in places]
    found: dict[Any, Any] = {}
    for start in range(0, len(wanted), BATCH):
        found |= dict(fetch(wanted[start : start + BATCH]))
    return np.array([found[one] for one in wanted], np.float32)


def _qdrant(address: Address, request: Request) -> Stored:
    from qdrant_client import QdrantClient
    from qdrant_client.local import persistence

    at: dict[str, Any] = {"path": address.where}
    if address.remote:
        at = {"url": address.plain, "api_key": address.key, "timeout": SECONDS}
    ids: list[Any] = []
    loads = SimpleNamespace(loads=lambda data: Points(BytesIO(data)).load(), dumps=pickle.dumps)
    with (
        patch.object(persistence, "pickle", loads),
        closing(QdrantClient(**at, check_compatibility=False)) as client,
    ):
        _known(address, [one.name for one in client.get_collections().collections])

        def names() -> list[str]:
            points, offset = client.scroll(
                address.collection, limit=BATCH, with_payload=request.keys
            )
            while offset is not None:
                page, offset = client.scroll(
                    address.collection, limit=BATCH, offset=offset, with_payload=request.keys
                )
                points += page
            ids.extend(point.id for point in points)
            return [request.named(point.payload, point.id) for point in points]

        def fetch(some: list[Any]) -> Iterable[tuple[Any, Any]]:
            for point in client.retrieve(address.collection, some, False, True):
                vector: Any = point.vector
                vector = vector.get(column) if isinstance(vector, dict) else vector
                if vector is None:
                    raise StoreError(f"the point {point.id} has no vector {column}; add it")
                yield point.id, vector

        config = client.get_collection(address.collection).config
        params: Any = config.params.vectors
        column = ""
        if isinstance(params, dict):
            column = request.choose(params)
            params = params.get(column)
        else:
            request.refuse_column()
        width = getattr(params, "size", 0)
        metadata = config.metadata or {}
        count = client.count(address.collection).count
        return request.read(
            metadata, count, names, lambda places: _by_ids(ids, places, fetch), width=width
        )


def _chroma(address: Address, request: Request) -> Stored:
    import chromadb
    from chromadb.config import Settings

    settings, parts = Settings(anonymized_telemetry=False), urlsplit(address.where)
    if address.remote:
        secure = parts.scheme == "https"
        at: dict[str, Any] = {"host": parts.hostname, "ssl": secure}
        at["port"] = parts.port or (443 if secure else 8000)
        for name in ("tenant", "database"):
            at |= {name: value} if (value := os.environ.get(f"CHROMA_{name.upper()}")) else {}
        client: Any = chromadb.HttpClient(**at, headers=address.headers, settings=settings)
    else:
        client = chromadb.PersistentClient(address.where, settings=settings)
    _known(address, [one.name for one in client.list_collections()])
    collection = client.get_collection(address.collection, embedding_function=None)
    request.refuse_column()
    ids: list[str] = []

    def names() -> list[str]:
        every = collection.get(include=["metadatas"])
        ids.extend(every["ids"])
        tables = zip(ids, every["metadatas"], strict=True)
        return [request.named(table, one) for one, table in tables]

    def fetch(some: list[str]) -> Iterable[tuple[str, Any]]:
        page = collection.get(ids=some, include=["embeddings"])
        return zip(page["ids"], page["embeddings"], strict=True)

    metadata, count = collection.metadata or {}, collection.count()
    width = max(map(len, collection.get(limit=1, include=["embeddings"])["embeddings"]), default=0)
    return request.read(
        metadata, count, names, lambda places: _by_ids(ids, places, fetch), width=width
    )


def _lancedb(address: Address, request: Request) -> Stored:
    import lancedb

    database = lancedb.connect(address.where)
    _known(address, database.table_names(limit=10_000))
    table = database.open_table(address.collection)
    column, key, width = columns(table.schema, request)

    def names() -> list[str]:
        found = table.search().select([key]).limit(count).to_arrow() if key else None
        return [str(name) for name in found[key].to_pylist()] if found else []

    def take(places: Places) -> NDArray[Any]:
        return array_of(table.take_offsets(places.tolist()).select([column]).to_arrow()[column])

    count = table.count_rows()
    return request.read(texts(table.schema.metadata), count, names, take, width=width)


def _postgresql(address: Address, request: Request) -> Stored:
    import psycopg
    from psycopg.sql import SQL, Identifier

    with psycopg.connect(address.where, connect_timeout=SECONDS) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        table = Identifier(*address.collection.split("."))
        fields = connection.execute(COLUMNS, [table.as_string(connection)]).fetchall()
        if not fields:
            tables = connection.execute(VISIBLE, [[*TABLES]]).fetchall()
            _known(address, [name for (name,) in tables], "; write SCHEMA.TABLE for others")
        if fields and fields[0][4] not in TABLES:
            raise InvalidOption(f"{address} is a view; write its table after the #")
        widths = {name: size for name, kind, _, size, _ in fields if kind in ("vector", "halfvec")}
        if not widths:
            raise InvalidOption(f"{address} has no column of the type vector or halfvec")
        column = request.choose(widths, must=True)
        comments = {name: comment for name, _, comment, *_ in fields}
        key = request.key(comments) or column
        ids: list[str] = []

        def select(what: str, *values: object) -> list[Any]:
            query = SQL(what).format(key=Identifier(key), v=Identifier(column), table=table)
            return connection.execute(query, values).fetchall()

        def names() -> list[str]:
            found = select(f"SELECT {ROW}, {{key}}::text FROM {{table}} WHERE {{v}} IS NOT NULL")
            ids.extend(one for one, _ in found)
            return [name or "" for _, name in found] if key != column else []

        def fetch(some: list[str]) -> list[Any]:
            tables, rows = zip(*(one.split(" ") for one in some), strict=True)
            return select(
                f"SELECT {ROW}, {{v}}::real[] FROM {{table}} "
                "WHERE ctid = ANY(%s::tid[]) AND tableoid = ANY(%s::oid[])",
                [*rows],
                [*{*tables}],
            )

        ((count,),) = select("SELECT count({v}) FROM {table}")
        found = request.read(
            {IDENTITY: comments[column]},
            count,
            names,
            lambda places: _by_ids(ids, places, fetch),
            width=max(widths[column], 0),
        )
        note = f"the column {printable(column)} has no comment with an identity"
        return replace(found, note="" if comments[column] else note)


Read = Callable[[Address, Request], Stored]
STORES: dict[str, tuple[Read, str, str]] = {  # how to read it; the client, and its distribution
    "qdrant": (_qdrant, "qdrant_client", "qdrant-client"),
    "chroma": (_chroma, "chromadb", "chromadb"),
    "lancedb": (_lancedb, "lancedb", "lancedb"),
    "postgresql": (_postgresql, "psycopg", "psycopg[binary]"),
}
