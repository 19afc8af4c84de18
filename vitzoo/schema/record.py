"""The base of the data classes of entries; torch-free."""

from __future__ import annotations

from typing import Any, Self


class Record:
    """A frozen data class that is copied quickly."""

    def with_values(self, **values: Any) -> Self:
        """Return a copy with other values of these fields, which are not checked.

        `dataclasses.replace` sets every field by a call, which takes five times as long.
        """
        fields = vars(self).copy()
        fields.update(values)
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", fields)
        return copy
