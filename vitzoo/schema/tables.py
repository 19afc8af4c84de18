"""Writing entries and networks as the tables of a manifest: the reverse of reading."""

from __future__ import annotations

import dataclasses
from typing import Any

from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.rows import (
    Contribution,
    PaperResult,
    Recipe,
    Throughput,
    Variant,
    Weights,
    built_of_parts,
)
from vitzoo.schema.spec import PartSpec, Spec


def table_of(row: Contribution | Variant | Weights) -> dict[str, Any]:
    """Return an entry as the table of a manifest; values that a manifest assumes are left out."""
    table = {
        field.name: _written(value, field)
        for field in dataclasses.fields(row)
        if (value := getattr(row, field.name)) != field.default or "required" in field.metadata
    }
    if isinstance(row, Variant):
        table.pop("weights", None)
        table |= _spec_table(table.pop("spec"))
        if row.weights:
            table["weights"] = {weights.name: table_of(weights) for weights in row.weights}
    return {key: value for key, value in table.items() if key not in ("name", "namespace")}


def network_table(spec: Spec, base: Variant | None = None) -> dict[str, Any]:
    """Return the network of a variant as a table, which starts from `base` if that is shorter."""
    if base is None:
        return _spec_table(spec)
    old, new = (s.with_values(variant=None).to_data() for s in (base.spec, spec))
    former, block = old.pop("block"), new.pop("block")
    if former.keys() - block.keys() and built_of_parts(base):
        return _spec_table(spec)  # TOML has no None, which would remove an option
    changed = {key: value for key, value in new.items() if value != old.get(key)}
    options = {key: value for key, value in block.items() if value != former.get(key)}
    return {"variant": base.name} | changed | ({"block": options} if options else {})


def _spec_table(spec: Spec) -> dict[str, Any]:
    usual, data = Spec().to_data(), spec.with_values(variant=None).to_data()
    block = {k: v for k, v in data.pop("block").items() if v != usual["block"].get(k)}
    table = {k: v for k, v in data.items() if v != usual.get(k) or k == "mlp_dim"}
    return table | ({"block": block} if block else {})


def _written(value: Any, field: dataclasses.Field[Any]) -> Any:
    """Return the value of a field as tables, lists and scalars; wrong types stay unchanged."""
    if "pairs" in field.metadata and are_pairs(value):
        return {name: plain(item) for name, item in value if item is not None}
    if field.name == "throughput" and _all(value, Throughput):
        return {row.name: _stated(row) for row in value}
    return plain(value)


def plain(value: Any) -> Any:
    """Return a value of an entry as tables, lists and scalars; wrong types stay unchanged."""
    if isinstance(value, PartSpec):
        return value.to_data()
    if isinstance(value, Preprocessing):
        return value.to_data()
    if isinstance(value, Recipe):
        return _stated(value)
    if isinstance(value, PaperResult):
        table = _stated(value)
        return table | table.pop("accuracies", {})
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _stated(row: Throughput | Recipe | PaperResult) -> dict[str, Any]:
    """Return the stated values of a row without its name, as tables, lists and scalars."""
    return {
        field.name: _written(value, field)
        for field in dataclasses.fields(row)
        if (value := getattr(row, field.name)) not in (None, "", ()) and field.name != "name"
    }


def _all(value: object, cls: type) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, cls) for item in value)


def are_pairs(value: object) -> bool:
    """Tell whether a value is a tuple of (text, value) pairs."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    )
