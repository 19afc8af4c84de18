"""What differs first between the inputs of a folder and those of the sources, for a message."""

from __future__ import annotations

from collections.abc import Sequence

from vitzoo.errors import printable


def first_difference(stored: Sequence[str | None], now: Sequence[str]) -> str:
    """Return a sentence without a full stop on the first input that is missing, new or moved.

    Args:
        stored: keys of the rows of a folder, in order; None where the part is missing.
        now: keys of the sources, in order, as they would be stored.
    """
    end = len(now)
    row = next(
        (i for i, key in enumerate(stored) if key and (i >= end or key != now[i])), len(stored)
    )
    if row == len(stored):
        if None in stored:
            return "The first difference is in a part that is not there yet"
        return "The keys are the same, but an archive or a Parquet file in the sources has changed"
    old = printable(stored[row] or "")
    if row >= end or stored[row] not in now:
        there = f"which have {printable(now[row])} there" if row < end else "which end before it"
        return f"Row {row} of it, {old}, is not in the sources, {there}"
    new = now[row]
    if new not in stored and None not in stored:
        return (
            f"{printable(new)} is new, before row {row} of it, {old}; new inputs must come after "
            "all others, for example at the end of a .txt list"
        )
    return f"Row {row} of it is {old}, in the sources {printable(new)}"
