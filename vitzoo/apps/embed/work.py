"""Work on images: the seconds that reading, decoding and the network take; torch-free."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import add
from typing import NamedTuple

from vitzoo.apps.embed.items import Item
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.errors import ImageError


class Work(NamedTuple):
    """Images done since the last message, and the seconds of work on them, over all threads."""

    images: int = 0
    read: float = 0.0
    decode: float = 0.0
    model: float = 0.0
    wait: float = 0.0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(*map(add, self, other))

    def __bool__(self) -> bool:
        return self != Work()

    @property
    def bottleneck(self) -> str:
        """The stage for which the others wait: `read`, `decode` or `model`."""
        if self.model >= self.wait:
            return "model"
        return "read" if self.read > self.decode else "decode"


def timed(item: Item, decode: Callable[[bytes], Decoded]) -> tuple[Decoded, Work]:
    """Read and decode an image; return it with the seconds of both."""
    start = time.perf_counter()
    try:
        data = item.load()
    except ImageError as error:
        return Decoded(None, str(error)), Work(read=time.perf_counter() - start)
    middle = time.perf_counter()
    image = decode(data)
    return image, Work(read=middle - start, decode=time.perf_counter() - middle)
