"""Values in batches, each as it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` values in their order; the last one may have fewer."""
    remaining = iter(values)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
