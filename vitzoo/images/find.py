"""Image files by their names: which are data, and which are left out; torch-free.

`apps/embed/sources.py` reads patterns, lists, archives and Parquet files, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vitzoo.errors import ImageError, printable
from vitzoo.text import listed

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".avif",
    ".jp2",
)  # fmt: skip
OF_SYSTEMS = frozenset((  # in lower case: what systems and disk stations add to folders
    "__macosx", "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot",
    "$recycle.bin", "system volume information", "lost+found", "thumbs.db", "desktop.ini",
))  # fmt: skip
MOST_ENDINGS = 5  # in a message
LeftOut = Counter[str]  # the number of files by their ending


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is never data, unless a user names it.

    >>> [is_hidden(name) for name in (".ipynb_checkpoints", "._x.png", "@eaDir", "x.png", "..")]
    [True, True, True, False, False]
    """
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in OF_SYSTEMS


def is_hidden_path(path: str) -> bool:
    """Return whether a file is hidden, or is in a hidden folder."""
    return any(map(is_hidden, path.split("/")))


def is_image(name: str, left_out: LeftOut | None = None) -> bool:
    """Return whether a name has the ending of an image; if not, count the ending in `left_out`."""
    if name.lower().endswith(SUFFIXES):
        return True
    if left_out is not None:
        left_out[Path(name).suffix.lower() or "no ending"] += 1
    return False


def images_below(
    folder: str | os.PathLike[str],
    *,
    hidden: bool = False,
    left_out: LeftOut | None = None,
    on_error: Callable[[OSError], object] | None = None,
) -> Iterator[str]:
    """Yield the paths of the image files in a folder and its subfolders; links are not followed.

    Args:
        folder: where they are searched.
        hidden: whether hidden files and folders count, too.
        left_out: counts the other files that are not hidden.
        on_error: is called for a folder that cannot be read.
    """
    for place, folders, files in os.walk(folder, onerror=on_error):
        names = files if hidden else [name for name in files if not is_hidden(name)]
        folders[:] = [name for name in folders if hidden or not is_hidden(name)]
        for name in names:
            if is_image(name, left_out):
                yield os.path.join(place, name)  # noqa: PTH118  # a Path would be slower


def shown_left_out(left_out: LeftOut) -> str:
    """Return a sentence on files that are left out, empty if there are none."""
    if not left_out:
        return ""
    endings = [f"{printable(ending)} ({count:,})" for ending, count in left_out.most_common()]
    one = left_out.total() == 1
    files = "1 file is" if one else f"{left_out.total():,} files are"
    name = "its name does" if one else "their names do"
    return (
        f"{files} left out, because {name} not end as those of images that are read: "
        f"{listed(endings, MOST_ENDINGS)}"
    )


def find_images(
    paths: Iterable[Path],
    on_error: Callable[[ImageError], object] | None = None,
    left_out: LeftOut | None = None,
) -> list[Path]:
    """Replace each folder by the image files directly in it, sorted by name.

    A missing path, an unreadable folder and a folder without images raise ImageError, or are passed
    to `on_error`. `left_out` counts the other files in the folders; hidden files are not counted.
    """
    found: list[Path] = []
    for path in paths:
        try:
            found += _images_at(path, LeftOut() if left_out is None else left_out)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(error)
    return found


def _images_at(path: Path, left_out: LeftOut) -> list[Path]:
    name, others = printable(path), LeftOut()
    try:
        if not os.path.lexists(path):
            raise ImageError(f"there is no file {name}")
        if not path.is_dir():
            return [path]
        inside = [p for p in path.iterdir() if not is_hidden(p.name)]
    except OSError as error:
        raise ImageError(f"cannot read {name}: {error.strerror}") from error
    files = [p for p in inside if not os.path.isdir(p)]  # noqa: PTH112  # never raises
    found = [p for p in files if is_image(p.name, others)]
    left_out.update(others)
    if not found:
        what = f"; {shown_left_out(others)}" if others else ""
        raise ImageError(
            f"the folder {name} contains no images ({', '.join(SUFFIXES)}); its subfolders are not "
            f"searched{what}"
        )
    return sorted(found, key=lambda p: p.name)  # Windows compares paths without case
