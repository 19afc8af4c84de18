"""The base of the data classes of entries; torch-free."""

from __future__ import annotations

from typing import Any, Self


class Record:
    """Compares, hashes and shows a frozen data class by its fields, as `@dataclass` does.

    `@dataclass` writes and compiles these methods for each class, whenever it is imported. For
    classes of dozens of fields that took most of the time of `vitzoo show`.
    """

    def with_values(self, **values: Any) -> Self:
        """Return a copy with other values of these fields, which are not checked.

        `dataclasses.replace` sets every field by a call, which takes five times as long.
        """
        fields = vars(self).copy()
        fields.update(values)
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", fields)
        return copy

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__qualname__}({values})"
