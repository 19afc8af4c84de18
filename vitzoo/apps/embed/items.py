"""One image of the sources of `embed`, the base of their pieces, and the reading of files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from vitzoo.errors import ImageError, printable
from vitzoo.files.access import open_regular, read_regular

MAX_IMAGE = 2**29  # bytes of one image file; the largest image that Pillow opens has fewer


@dataclass(frozen=True)
class Item:
    """One image: its key, and a function that returns its bytes or raises ImageError.

    `size` is the number of bytes that are in memory before that.
    """

    key: str
    load: Callable[[], bytes]
    size: int = 0


@dataclass(frozen=True)
class Piece(ABC):
    """Images of one source that are neighbours in the order of the inputs; it can be pickled.

    Args:
        path: of the source.
        entries: what the source says about each image.
    """

    path: str
    entries: Sequence[Any]

    def __len__(self) -> int:
        return len(self.entries)

    def part(self, start: int, stop: int) -> Self:
        """Return the piece of some of the images."""
        return replace(self, entries=self.entries[start:stop])

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """Yield the images in order."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """Yield the key of each image without reading it."""

    @abstractmethod
    def identities(self) -> Iterator[str]:
        """Yield what identifies the images without reading them."""


def as_text(path: str) -> str:
    """Return a path as its bytes read as UTF-8, which are the same under every locale."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "surrogateescape")


def check_size(shown: str, size: int) -> None:
    """Raise ImageError if an image has more than `MAX_IMAGE` bytes."""
    if size > MAX_IMAGE:
        raise ImageError(f"{shown} has {size} bytes, the most that is read is {MAX_IMAGE}")


def read_file(path: str) -> bytes:
    """Return the bytes of an image file; raise ImageError if that is not possible."""
    data = read_whole(path, MAX_IMAGE)
    if not data:
        raise ImageError(f"{printable(path)} is empty, expected an image file")
    return data


def read_whole(path: str, limit: int) -> bytes:
    """Return the bytes of a file of at most `limit`; raise ImageError if that is not possible."""
    if (data := read_regular(Path(path), limit, ImageError)) is None:
        raise ImageError(f"there is no file {printable(path)}")
    return data


def open_archive(path: str) -> BinaryIO:
    """Open a file that holds several images; raise ImageError if that is not possible."""
    fd = open_regular(Path(path), follow=True, kind=ImageError)
    if fd is None:
        raise ImageError(f"there is no file {printable(path)}")
    return os.fdopen(fd, "rb")
