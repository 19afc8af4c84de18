"""JSON without duplicate keys; torch-free."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


class DuplicateKey(ValueError):
    """A table of a JSON text has a key twice; `values` are its values, in the order of the text."""

    def __init__(self, key: str, values: list[Any]) -> None:
        super().__init__(f"the key {key[:200]!a} occurs twice")
        self.key = key
        self.values = values


def strict_json(text: bytes) -> Any:
    """Parse JSON without duplicate keys.

    Raises:
        DuplicateKey: a key occurs twice.
        ValueError: the text is not JSON, or is nested too deeply.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            key = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise DuplicateKey(key, [value for name, value in pairs if name == key])
        return table

    try:
        return json.loads(text.decode(), object_pairs_hook=no_duplicates)
    except RecursionError as error:
        raise ValueError(str(error)) from error
