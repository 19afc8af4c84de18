"""Images in tar archives: where each one is, and how to read it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

from vitzoo.apps.embed.items import Item, Piece, as_text, check_size, open_archive
from vitzoo.errors import ImageError, printable
from vitzoo.files.platform import files as system
from vitzoo.images.find import SUFFIXES, LeftOut, is_hidden_path, is_image

MAX_HEADER = 2**20  # bytes of the headers of one tar member, long names included
MAX_DIGITS = 255  # in a row in a pax header, as in the name of a file
MAX_GLOBAL = 2**12  # characters of the pax records that apply to all members
PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
OF_ONE = re.compile(r"(path|size)$|GNU\.sparse\.")  # keywords of pax records for one member
RECORD = re.compile(rb"(\d{1,7}) [^=\n]+=")  # its size and its keyword
DIGITS = re.compile(rb"\d+")
BLOCK = 512


class TarMembers(Piece):
    """Images in a tar archive. An entry is (name, position of its bytes, number of bytes).

    A member that is no file, such as a link, has a negative position.
    """

    @classmethod
    def find(
        cls, path: str, *, hidden: bool = False, left_out: LeftOut | None = None
    ) -> TarMembers:
        """Read the headers of an archive.

        Args:
            path: of the archive.
            hidden: whether hidden files and those in hidden folders count, too.
            left_out: counts the other files that are not hidden.

        Raises:
            ImageError: it is missing, damaged, truncated or contains no images.
        """
        with open_archive(path) as file:
            every = _members(file, printable(path))
            members = tuple(one for one in every if _is_image(one[0], hidden, left_out))
        if not members:
            raise ImageError(f"{printable(path)} contains no images ({', '.join(SUFFIXES)})")
        return cls(path, members)

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        for key, member in zip(self.names(), self.entries, strict=True):
            yield Item(key, partial(_read_member, self.path, *member))

    def names(self) -> Iterator[str]:
        """Yield the path of the archive with the name of each member."""
        path = as_text(self.path)
        return (f"{path}/{name}" for name, _, _ in self.entries)

    def identities(self) -> Iterator[str]:
        """Yield the name, the position and the size of each member."""
        for key, (_, start, size) in zip(self.names(), self.entries, strict=True):
            yield f"{key} {start} {size}"


class _HeaderReader:
    """The file of an archive, from which `tarfile` reads headers of limited size, and no data.

    `tarfile` never goes back in it, so the time is bounded by the size of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.tell, self._file, self.size = file.tell, file, 0  # bytes read for one member

    def read(self, size: int) -> bytes:
        self.size += size
        if not 0 <= size <= self.size <= MAX_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes, the most is {MAX_HEADER}")
        return self._file.read(size)

    def seek(self, position: int) -> None:
        if position < self.tell():
            raise tarfile.ReadError(f"a member ends before byte {self.tell()}, where it begins")
        self._file.seek(position)

    def check_records(self, size: int) -> None:
        """Check the pax records that `tarfile` reads next: it takes quadratic time for some."""
        if size > MAX_HEADER:  # `read` refuses it
            return
        begin = self.tell()
        data = self._file.read(size)
        self._file.seek(begin)
        position = 0
        while position < len(data):
            found = RECORD.match(data, position)
            end = position + int(found[1]) if found else -1
            if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
                raise tarfile.ReadError(f"a pax header is damaged at byte {position}")
            position = end
        if max(map(len, DIGITS.findall(data)), default=0) > MAX_DIGITS:
            raise tarfile.ReadError(f"a pax header has a number of more than {MAX_DIGITS} digits")


class _Member(tarfile.TarInfo):
    """A header that is checked before `tarfile` follows what it states."""

    def _proc_member(self, archive: Any) -> Any:
        if self.type in PAX:
            archive.fileobj.check_records(self.size)
        every = archive.pax_headers  # `tarfile` reads these again for each member
        if len(str(every)) > MAX_GLOBAL or any(map(OF_ONE.match, every)):
            raise tarfile.ReadError(
                f"a global header is for one file or has over {MAX_GLOBAL} characters"
            )
        member = super()._proc_member(archive)  # type: ignore[misc]
        if member.size < 0:
            raise tarfile.ReadError(f"a member of {member.size} bytes")
        return member


def _is_image(name: str, hidden: bool, left_out: LeftOut | None) -> bool:
    return (hidden or not is_hidden_path(name)) and is_image(name, left_out)


def _members(file: BinaryIO, name: str) -> Iterator[tuple[str, int, int]]:
    reader: Any = _HeaderReader(file)
    try:
        opened: Any = tarfile.TarFile(fileobj=reader, mode="r", encoding="utf-8", tarinfo=_Member)
        with opened as archive:
            while (member := archive.next()) is not None:
                archive.members, reader.size = [], 0  # it would remember every member
                if not member.isdir():
                    plain = member.isreg() and not member.issparse()
                    yield member.name, member.offset_data if plain else -1, member.size
            end: int = archive.offset  # position after the last member
    except Exception as error:  # tarfile raises several kinds for damaged headers
        known = isinstance(error, tarfile.TarError | OSError)
        reason = printable(str(error)) if known else "a header is damaged"
        raise ImageError(
            f"cannot read the archive {name}: {reason}; expected an uncompressed tar"
        ) from error
    file.seek(end)
    if file.read(BLOCK) != bytes(BLOCK):
        raise ImageError(
            f"the archive {name} is damaged or truncated at byte {end}: neither a member nor the "
            "end of the archive follows; write it again"
        )


def _read_member(path: str, name: str, start: int, size: int) -> bytes:
    shown = printable(f"{path}/{name}")
    if start < 0:
        raise ImageError(f"{shown} is a link, a device or sparse, expected a file")
    check_size(shown, size)
    try:
        with open_archive(path) as file:
            data = system.pread(file.fileno(), size, start)
    except OSError as error:
        raise ImageError(f"cannot read {shown}: {error.strerror}") from error
    if len(data) != size:
        raise ImageError(f"{shown} ends after {len(data)} of {size} bytes")
    return data
