"""Rows of a `Predictor` as a table of Arrow, with one column for each output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vitzoo.apps.predict.outputs import Row


def schema_of(
    outputs: Iterable[str], shapes: Mapping[str, Sequence[int]], vectors: str = "float32"
) -> Any:
    """Return the schema of pyarrow: key, error, width, height, sha256, and a column per output.

    Args:
        outputs: names of the outputs.
        shapes: of the arrays, which become lists of fixed size; labels have none.
        vectors: type of their numbers, `float32` or `float16`.
    """
    import pyarrow as pa

    number = pa.float16() if vectors == "float16" else pa.float32()
    label = pa.struct({"index": pa.int32(), "label": pa.string(), "probability": pa.float32()})
    fields = [
        pa.field("key", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("sha256", pa.string()),
    ]
    for name in outputs:
        shape = shapes.get(name, ())
        kind = pa.list_(number, math.prod(shape)) if shape else pa.list_(label)
        fields.append(pa.field(name, kind, metadata={"shape": json.dumps(shape)}))
    return pa.schema(fields)


def table_of(keys: Sequence[str], rows: Sequence[Row], schema: Any) -> Any:
    """Return rows as a table of pyarrow; what a row does not have is null, and in vectors NaN.

    A row with a number that is NaN, infinite, or too large for its column becomes an error.

    Args:
        keys: of the rows.
        rows: of a `Predictor`.
        schema: of `schema_of`.
    """
    import pyarrow as pa

    most = {one.name: _most(one.type) for one in schema if hasattr(one.type, "value_type")}
    rows = [row if _is_finite(row, most) else _not_finite(row, most) for row in rows]
    columns: dict[str, list[Any]] = {
        "key": [stored_text(key) for key in keys],
        "error": [stored_text(row.error) or None for row in rows],
        "width": [row.width or None for row in rows],
        "height": [row.height or None for row in rows],
        "sha256": [row.sha256 or None for row in rows],
    }
    arrays = []
    for field in schema:
        values = columns.get(field.name) or [row.outputs.get(field.name) for row in rows]
        if pa.types.is_fixed_size_list(field.type):
            arrays.append(_vectors(values, field.type))
        else:
            arrays.append(pa.array([*map(_plain, values)], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _most(kind: Any) -> float:
    """Return the largest magnitude in a column of vectors or of labels."""
    stored = np.float16 if kind.value_type == "float16" else np.float32
    return float(np.finfo(stored).max)


def _is_finite(row: Row, most: Mapping[str, float]) -> bool:
    """Return whether each number is finite in the type of its column."""
    return all(np.abs(_numbers(x)).max() <= most[name] for name, x in row.outputs.items())


def _numbers(value: Any) -> Any:
    return np.array([one[-1] for one in value]) if isinstance(value, tuple) else value


def _not_finite(row: Row, most: Mapping[str, float]) -> Row:
    """Return a row with an error, which names the first number that is too large."""
    for name, value in row.outputs.items():
        numbers = _numbers(value)
        bad = ~(np.abs(numbers) <= most[name])  # of NaN, too
        if bad.any():
            break
    first = float(numbers[bad][0])
    stored = "float16" if most[name] < 1e5 else "float32"
    fix = "check the weights of the network, or compute in another dtype"
    if stored == "float16" and math.isfinite(first):
        fix = "pass vectors='float32' (--vectors float32)"
    error = (
        f"the output {name!r} has the value {first:g} for this image, expected magnitudes of at "
        f"most {most[name]:g} in {stored}; {fix}"
    )
    return replace(row, error=error, width=0, height=0, outputs={})


def _plain(value: Any) -> Any:
    """Return labels as pyarrow takes them, and any other value."""
    if not isinstance(value, tuple):
        return value
    return [{"index": i, "label": stored_text(name), "probability": p} for i, name, p in value]


def _vectors(values: Sequence[np.ndarray | None], kind: Any) -> Any:
    """Return an array of lists of fixed size, of NaN where there is no vector.

    pyarrow before version 25 neither writes nor reads a null among lists of fixed size.
    """
    import pyarrow as pa

    flat = np.full((len(values), kind.list_size), np.nan, dtype=kind.value_type.to_pandas_dtype())
    for place, value in zip(flat, values, strict=True):
        if value is not None:
            place[:] = value.reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), type=kind)


def stored_text(text: str) -> str:
    r"""Return text that is UTF-8; bytes of a file name that are none are written as `\xff`.

    Other surrogates, which a JSON file can have, are written as `\ud800`.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")
