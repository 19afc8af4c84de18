"""Image files by their names: which are data, and which are left out; torch-free.

`apps/embed/sources.py` reads patterns, lists, archives and Parquet files, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vitzoo.errors import ImageError, printable
from vitzoo.files.names import with_slashes
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
    folder: str | os.PathLike[str], *, hidden: bool = False, left_out: LeftOut | None = None
) -> Iterator[str]:
    """Yield the paths of the image files in a folder and its subfolders; links are not followed.

    Args:
        folder: its files are found in no certain order.
        hidden: whether hidden files and folders count, too.
        left_out: counts the other files that are not hidden.

    Raises:
        ImageError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        name = printable(error.filename)
        raise ImageError(f"cannot read the folder {name}: {error.strerror}") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        names = files if hidden else [name for name in files if not is_hidden(name)]
        folders[:] = [name for name in folders if hidden or not is_hidden(name)]
        for name in names:
            if is_image(name, left_out):
                path = os.path.join(place, name)  # noqa: PTH118  # a Path would be slower
                yield with_slashes(path)


def images_in(
    folder: str | os.PathLike[str],
    left_out: LeftOut | None = None,
    *,
    hidden: bool = False,
    fix: str = "",
) -> list[str]:
    """Return what `images_below` yields, sorted as texts: Windows compares paths without case.

    Args:
        folder, hidden: as for `images_below`.
        left_out: counts the other files of a folder with images.
        fix: is added to the error about a folder without images.

    Raises:
        ImageError: a folder cannot be read, or there are no images.
    """
    others = LeftOut()
    found = sorted(images_below(folder, hidden=hidden, left_out=others))
    if not found:
        what = f"; {shown_left_out(others)}" if others else ""
        raise ImageError(
            f"the folder {printable(folder)} contains no images ({', '.join(SUFFIXES)})"
            f"{fix and f'; {fix}'}{what}"
        )
    if left_out is not None:
        left_out.update(others)
    return found


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
    """Replace each folder by the image files in it and in its subfolders, sorted by path.

    A missing path, an unreadable folder and a folder without images raise ImageError, or are passed
    to `on_error`. `left_out` counts the other files in the folders; hidden files are not counted.
    """
    found: list[Path] = []
    for path in paths:
        try:
            found += _images_at(path, left_out)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(error)
    return found


def _images_at(path: Path, left_out: LeftOut | None) -> list[Path]:
    if os.path.isdir(path):  # noqa: PTH112  # never raises
        return list(map(Path, images_in(path, left_out)))
    if not os.path.lexists(path):
        raise ImageError(f"there is no file {printable(path)}")
    return [path]
