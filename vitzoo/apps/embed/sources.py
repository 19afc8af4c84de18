"""The inputs of `embed`: folders, globs, lists, tar archives and Parquet files, in a fixed order.

The sources become pieces. A piece knows the keys of its images without reading one, can be sliced,
and reads its images in order.
"""

from __future__ import annotations

import codecs
import contextlib
import fnmatch
import glob
import hashlib
import itertools
import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from vitzoo.apps.embed.items import Item, Piece, as_text, read_file, read_whole
from vitzoo.apps.embed.parquet_rows import ParquetRows
from vitzoo.apps.embed.tar_members import TarMembers
from vitzoo.errors import ImageError, InvalidOption, printable, short_repr
from vitzoo.files.names import with_slashes
from vitzoo.images.find import SUFFIXES, LeftOut, images_below, images_in, is_hidden

MAX_LIST = 2**32  # bytes of a list file
MAX_EXPANDED = 100_000  # names that the braces of one source may stand for
MOST_PATHS = 64  # of a folder, through links: the kernel follows 40 in one path
TAR, PARQUET, LISTS = (".tar",), (".parquet", ".pq"), (".txt", ".lst")
BRACES = re.compile(r"\{([^{}]*)\}")
NUMBERS = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
ARCHIVES = "name archives in it with a pattern, such as 'folder/*.tar'"
STARS = re.compile(r"(?:^|(?<=/))(?:\*\*(?:/+|$))+")  # `**` as a whole name
Paths = str | os.PathLike[str]


class Files(Piece):
    """Image files; `path` is where relative paths begin, and `entries` the paths as written."""

    entries: list[str]

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        join = partial(os.path.join, self.path) if self.path else str  # Paths would be slower
        for key in self.entries:
            yield Item(as_text(key), partial(read_file, join(key)))

    def names(self) -> Iterator[str]:
        """Yield the paths as written."""
        return map(as_text, self.entries)

    def identities(self) -> Iterator[str]:
        """Yield the paths as written."""
        return self.names()


def find_pieces(
    sources: Paths | Iterable[Paths],
    column: str | None = None,
    *,
    hidden: bool = False,
    repeated: bool = False,
    left_out: LeftOut | None = None,
) -> list[Piece]:
    """Return the pieces of the sources, in the order of the sources.

    Args:
        sources: paths of folders (searched with their subfolders, sorted by path), image files,
            tar archives, Parquet files and lists of paths (.txt), and patterns of such paths with
            `*`, `?`, `[a-z]`, `**` or braces.
        column: column of the Parquet files with the images.
        hidden: count as an earlier version: also hidden files that a folder, a pattern or an
            archive has.
        repeated: count as an earlier version: a file again where another source or the folders of
            `**` name it.
        left_out: counts the other files in folders and archives by their ending.

    Raises:
        ImageError: a source is missing, cannot be read or contains no images.
        InvalidOption: a source is not of these kinds, there is none, or two name the same file.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    texts = [_checked(source) for source in sources]
    counted, pieces = _Counted(texts), list[Piece]()
    for number, text in enumerate(texts):
        for path in _paths_of(text, hidden=hidden, repeated=repeated):
            folder = os.path.isdir(path)  # noqa: PTH112  # never raises
            others = LeftOut()
            names = images_in(path, others, hidden=hidden, fix=ARCHIVES) if folder else [path]
            if new := [name for name in names if repeated or counted.new(name, number)]:
                one = Files("", new) if folder else None
                _append(pieces, one or _piece_of(path, column, hidden=hidden, left_out=others))
            if others and left_out is not None and counted.is_first_in(path):
                left_out.update(others)
    if not pieces:
        raise InvalidOption("there are no images; name folders, image files, .tar or .parquet")
    return pieces


class _Counted:
    """Which source named each file."""

    def __init__(self, sources: Sequence[str]) -> None:
        self.sources, self._real = sources, cache(os.path.realpath)
        self._files: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._searched: set[Path] = set()

    def new(self, path: str, number: int) -> bool:
        """Return whether a file of a source was not named yet; its name is not followed.

        Raises:
            InvalidOption: another source named it.
        """
        folder, name = os.path.split(path)
        names = self._files[self._real(folder)]
        if name not in names:
            names[name] = number
            return True
        if names[name] != number:
            one, other = (printable(self.sources[i]) for i in (names[name], number))
            raise InvalidOption(
                f"two sources name the file {printable(path)}: {one} and {other}; expected each "
                "file once: remove one source, or list the files in a .txt file"
            )
        return False

    def is_first_in(self, path: str) -> bool:
        """Return whether this was neither asked about a path nor about a folder around it."""
        real = Path(self._real(path))
        first = self._searched.isdisjoint((real, *real.parents))
        self._searched.add(real)
        return first


def _append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece; neighbouring files of one folder are one piece."""
    last = pieces[-1] if pieces else None
    if isinstance(last, Files) and isinstance(piece, Files) and last.path == piece.path:
        last.entries.extend(piece.entries)
    else:
        pieces.append(piece)


def slices(pieces: Sequence[Piece], bounds: Iterable[tuple[int, int]]) -> Iterator[list[Piece]]:
    """Yield the pieces with the inputs of each (start, stop), counted over all pieces."""
    ends = list(itertools.accumulate(map(len, pieces)))
    for start, stop in bounds:
        found: list[Piece] = []
        at, i = start, bisect_right(ends, start)
        while at < stop and i < len(ends):
            first = ends[i] - len(pieces[i])
            last = min(stop, ends[i])
            found.append(pieces[i].part(at - first, last - first))
            at, i = last, i + 1
        yield found


def sha256_of(pieces: Iterable[Piece]) -> str:
    """Return the sha256 of the identities of all inputs, in order."""
    digest = hashlib.sha256()
    for piece in pieces:
        for identity in piece.identities():
            digest.update(identity.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _checked(source: object) -> str:
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"a source must be a path or a pattern, got {short_repr(source)}")
    return with_slashes(text)


def _paths_of(source: str, *, hidden: bool, repeated: bool) -> list[str]:
    """Expand braces and wildcards."""
    paths: list[str] = []
    for name in _names_of(source):
        if os.path.lexists(name):
            paths.append(name)
            continue
        globbed = repeated and not _is_endless(name)
        found = glob.iglob(name, recursive=True) if globbed else _matches(name)  # noqa: PTH207
        matches = sorted(map(with_slashes, found)) if glob.has_magic(name) else []
        matches = matches if hidden else [*_meant(matches, name)]
        if not matches:
            raise _missing(name)
        paths += matches
    return paths


def _names_of(source: str) -> list[str]:
    """Expand braces; a file with braces in its name is itself."""
    return [source] if os.path.lexists(source) else expand_braces(source)


def check_sources(sources: Iterable[str]) -> None:
    """Refuse a source that names nothing, and a folder without images; no file is opened.

    Raises:
        ImageError: as `find_pieces` raises it.
    """
    for source in sources:
        for name in _names_of(source):
            if os.path.isdir(name):  # noqa: PTH112  # never raises
                next(images_below(name), None) or images_in(name, fix=ARCHIVES)  # which raises
            elif not os.path.lexists(name) and (
                not glob.has_magic(name) or not any(_meant(map(with_slashes, _matches(name)), name))
            ):
                raise _missing(name)


def _meant(paths: Iterable[str], pattern: str) -> Iterator[str]:
    """Yield the paths of which no part is hidden, apart from those that the pattern names."""
    named = [part for part in pattern.split("/") if is_hidden(part)]

    def is_meant(part: str) -> bool:
        return not is_hidden(part) or any(fnmatch.fnmatchcase(part, one) for one in named)

    @cache  # there are fewer folders than files
    def is_open(folder: str) -> bool:
        return all(map(is_meant, folder.split("/")))

    for path in paths:
        folder, _, file = path.rpartition("/")
        if is_open(folder) and is_meant(file):
            yield path


def _missing(name: str) -> ImageError:
    what = "are no files that match" if glob.has_magic(name) else "is no file"
    return ImageError(f"there {what} {printable(name)}")


def _matches(pattern: str, root: str = "") -> Iterator[str]:
    """Yield what a pattern names; where it ends in `**` or `**/*`, only files.

    A pattern that ends in `**/` names folders, which contain all below them.
    """
    head, *rest = STARS.split(pattern, maxsplit=1)
    tops = glob.iglob(head, root_dir=root or None) if head else [""]  # noqa: PTH207
    every = rest in ([""], ["*"])
    if not rest or pattern.endswith("**/"):
        yield from (root + top or "." for top in tops)
        return
    for folder in (folder for top in tops for folder in _folders_in(root + top)):
        for found in _matches(rest[0] or "*", folder):
            if not every or not os.path.isdir(found):  # noqa: PTH112  # never raises
                yield found


def _is_endless(pattern: str) -> bool:
    """Return whether links lead `**` to most folders more than `MOST_PATHS` times."""
    head, *rest = STARS.split(pattern, maxsplit=1)
    tops = [] if not rest else glob.glob(head) if head else [""]  # noqa: PTH207
    most = MOST_PATHS * sum(1 for top in tops for _ in _folders_in(top))
    every = (folder for top in tops for folder in _folders_in(top, again=True))
    return next(itertools.islice(every, most, None), None) is not None


def _folders_in(top: str, *, again: bool = False) -> Iterator[str]:
    """Yield a folder and those below it, as prefixes of paths; links last, which `again` repeats.

    Hidden folders and those that cannot be read are left out, as `glob` does.
    """
    seen: set[tuple[int, int]] = set()
    waiting, links = [top], list[str]()
    while waiting or links:
        folder = waiting.pop() if waiting else links.pop(0)
        with contextlib.suppress(OSError):
            found = os.stat(folder or ".")  # noqa: PTH116  # as `Files`
            if (place := (found.st_dev, found.st_ino)) in seen and not again:
                continue
            seen.add(place)
            with os.scandir(folder or ".") as entries:
                inner = sorted((one.name, one.is_symlink()) for one in entries if _is_open(one))
            for name, linked in inner:
                (links if linked else waiting).append(f"{folder}{name}/")
            yield folder


def _is_open(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one, that is not hidden; never raises."""
    if entry.name.startswith("."):
        return False
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # noqa: PTH112


def expand_braces(text: str) -> list[str]:
    """Return the names that a text with `{000..009}` or `{a,b}` stands for, as a shell would.

    >>> expand_braces("shard-{08..10}.tar")
    ['shard-08.tar', 'shard-09.tar', 'shard-10.tar']
    """
    done: list[str] = []
    waiting = [text]
    while waiting:
        if len(done) + len(waiting) > MAX_EXPANDED:
            raise InvalidOption(
                f"the braces of {short_repr(text)} stand for more than {MAX_EXPANDED} names; name "
                "fewer files"
            )
        name = waiting.pop()
        match = next((m for m in BRACES.finditer(name) if _choices(m[1])), None)
        if match is None:
            done.append(name)
            continue
        before, after = name[: match.start()], name[match.end() :]
        choices = itertools.islice(_choices(match[1]), MAX_EXPANDED + 1)
        waiting += reversed([f"{before}{choice}{after}" for choice in choices])
    return done


def _choices(inside: str) -> Sequence[str]:
    """Return what one pair of braces stands for; nothing if it is part of a name."""
    if match := NUMBERS.fullmatch(inside):
        first, last = int(match[1]), int(match[2])
        width = max(map(len, match.groups())) if "0" in (match[1][0], match[2][0]) else 0
        step = 1 if first <= last else -1
        numbers = range(first, last + step, step)[: MAX_EXPANDED + 1]  # one more is refused
        return [f"{n:0{width}}" for n in numbers]
    return inside.split(",") if "," in inside else ()


def _piece_of(path: str, column: str | None, *, hidden: bool, left_out: LeftOut) -> Piece:
    suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122  # as `Files`
    if suffix in TAR:
        return TarMembers.find(path, hidden=hidden, left_out=left_out)
    if suffix in PARQUET:
        return ParquetRows.find(path, column)
    if suffix in LISTS:
        return _listed(path)
    if suffix in SUFFIXES:
        return Files("", [path])
    raise InvalidOption(
        f"{printable(path)} is no source; expected a folder, an image ({', '.join(SUFFIXES)}), "
        "an uncompressed .tar, a .parquet, or a .txt with one path in each line"
    )


def _listed(path: str) -> Files:
    """Return the files of a list, one path per line, relative to the folder of the list."""
    name = printable(path)
    data = read_whole(path, MAX_LIST).removeprefix(codecs.BOM_UTF8)  # editors of Windows write it
    lines = [os.fsdecode(line.rstrip(b"\r")) for line in data.split(b"\n")]
    keys = [with_slashes(line) for line in lines if line.strip()]
    if not keys:
        raise ImageError(f"the list {name} is empty, expected one path in each line")
    if wrong := next((key for key in keys if "\0" in key), None):
        raise ImageError(f"{name} is no list of paths: it contains {short_repr(wrong)}")
    return Files(str(Path(path).parent), keys)
