"""JSON without duplicate keys; torch-free."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: bytes) -> Any:
    """Parse JSON without duplicate keys.

    Raises:
        ValueError: the text is not JSON, has a duplicate key or is nested too deeply.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a key occurs twice")
        return table

    try:
        return json.loads(text.decode(), object_pairs_hook=no_duplicates)
    except RecursionError as error:
        raise ValueError(str(error)) from error
