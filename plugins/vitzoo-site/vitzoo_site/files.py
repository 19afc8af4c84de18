"""Files of a site: only regular files are read, and a file is written whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

LEFT = "{0}.vitzoo-site-"  # the name of a file that is not whole yet begins with a dot and this
OWN = re.compile(r"(index\.html|assets/\w[\w.-]*|networks/[\w/-]+\.html)", re.ASCII)


def is_page(path: str) -> bool:
    """Return whether a path can be that of a file of a site, which lies below its folder."""
    return OWN.fullmatch(path) is not None and "//" not in path


def read(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file; raise OSError for another one, or a larger one."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise OSError(f"{path} is no regular file of at most {most} bytes")
        return file.read(most)


def write(path: Path, data: bytes) -> None:
    """Write a file; a reader sees the former file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{LEFT.format(path.name)}{secrets.token_hex(8)}")
    try:
        with half.open("xb") as file:
            file.write(data)
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def remove_left(paths: Iterable[Path]) -> None:
    """Remove what a run that was killed has left of these files."""
    wanted: dict[Path, list[str]] = {}
    for path in paths:
        wanted.setdefault(path.parent, []).append(f".{LEFT.format(path.name)}")
    for folder, starts in wanted.items():
        for found in folder.glob(".*") if folder.is_dir() else ():
            if found.name.startswith(tuple(starts)) and found.is_file():
                found.unlink()
