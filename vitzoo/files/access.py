"""Opening, hashing and writing files; torch-free."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from vitzoo.errors import InvalidOption, StoreError, VitzooError, short_repr
from vitzoo.files.platform import files as system

Kind = type[VitzooError]
CHUNK = 1024 * 1024
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
SHORT = 48  # characters; a name of 255 bytes leaves no room for the additions to a temporary name
LEFT = 3600.0  # seconds without a byte after which the writer of a temporary file is gone
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
NO_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
NO_FOLDER = {errno.EISDIR, errno.EACCES, errno.EPERM}  # a folder cannot be opened as a file is
NO_MODE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
_unsynced: list[OSError] = []  # the first error of this process
OLD = ".old"  # ends the name of a folder that is being replaced


def open_regular(
    path: Path, *, follow: bool = False, create: bool = False, kind: Kind = StoreError
) -> int | None:
    """Open a regular file for reading; None if there is nothing at `path`.

    Args:
        path: the file.
        follow: whether a symbolic link is followed; the store follows none.
        create: make a file where there is nothing, and open it for reading and writing.
        kind: class of the error.

    Raises:
        StoreError or `kind`: it is a link, a folder, a pipe or a device, or cannot be read.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        fd = system.open_file(path, flags, follow=follow)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and not follow:
            raise kind(f"{path} is a symbolic link, expected a file; remove it") from error
        if error.errno == errno.EISDIR:
            raise kind(_not_regular(path, stat.S_IFDIR, follow=follow)) from error
        raise kind(f"cannot read {path}: {system.reason(error)}") from error
    except ValueError as error:
        raise kind(f"cannot read {path}: {error}") from error  # a null byte
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise kind(_not_regular(path, stat.S_IFMT(mode), follow=follow))
    return fd


def _not_regular(path: Path, mode: int, *, follow: bool) -> str:
    fix = "" if follow else "; remove it"
    return f"{path} is not a regular file, but {KINDS.get(mode, 'a device')}{fix}"


def read_regular(path: Path, limit: int, kind: Kind = StoreError) -> bytes | None:
    """Return the bytes of a regular file, following links; None if there is nothing at `path`.

    Raises:
        StoreError or `kind`: it is a folder, a pipe or a device, has more than `limit` bytes, or
            cannot be read.
    """
    fd = open_regular(path, follow=True, kind=kind)
    if fd is None:
        return None
    try:
        with os.fdopen(fd, "rb") as file:
            data = read_limited(file, limit)
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}") from error
    if data is None:
        raise kind(f"{path} has more than {limit} bytes, the most that is read")
    return data


def read_own(path: Path) -> bytes | None:
    """Return the bytes of a file that only this user may write to; None for any other file.

    Raises:
        StoreError: it is a link, a folder, a pipe or a device, or cannot be opened.
        OSError: the disk has an error.
    """
    fd = open_regular(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return None if system.writable_by_others(os.fstat(fd)) else file.read()


def read_limited(file: BinaryIO, limit: int) -> bytes | None:
    """Return the bytes of an open file, None if it has more than `limit`.

    No more memory is taken than the file has bytes, and a chunk.

    Raises:
        OSError: the disk has an error.
    """
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        return None
    read = [file.read(size + 1)]
    count = len(read[0])
    # files in /proc state a size of 0, and other files may grow
    while size < count <= limit and (more := file.read(CHUNK)):
        read.append(more)
        count += len(more)
    return None if count > limit else b"".join(read)


def hash_file(fd: int, note: Callable[[int, int], object] | None = None) -> str:
    """Return the sha256 of the open file from its first byte, as hex.

    Args:
        fd: its descriptor.
        note: called with (bytes so far, bytes in all).

    Raises:
        StoreError: the disk has an error.
    """
    from hashlib import sha256  # costs milliseconds, which `vitzoo show` has not

    digest, position, size = sha256(), 0, os.fstat(fd).st_size
    try:
        while chunk := system.pread(fd, CHUNK, position):
            digest.update(chunk)
            position += len(chunk)
            if note:
                note(position, size)
    except OSError as error:
        raise StoreError(f"cannot read the file at byte {position}: {error.strerror}") from error
    return digest.hexdigest()


def copy_blocks(source: int, target: int, size: int) -> None:
    """Copy at most `size` bytes of an open file to another one that is empty, as far as possible.

    The two files share their blocks on disk if the file system supports it. Nothing is copied, or
    not all, where the kernel cannot: to another disk, for instance.
    """
    position = 0
    with contextlib.suppress(OSError):
        while count := system.copy_file_range(source, target, size - position, position, position):
            position += count


def copy_hashed(source: int, file: BinaryIO) -> str:
    """Copy an open file to a new one; return the sha256 of the bytes of the copy.

    Raises:
        OSError: the disk is full, or has an error.
    """
    target = file.fileno()
    copy_blocks(source, target, os.fstat(source).st_size)
    position = os.fstat(target).st_size
    while chunk := system.pread(source, CHUNK, position):
        position += system.pwrite(target, chunk, position)
    return hash_file(target)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; only the user may write to them."""
    for folder in reversed([*takewhile(lambda p: not p.is_dir(), (path, *path.parents))]):
        folder.mkdir(mode=0o755, exist_ok=True)


def write_atomic(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write a whole file or nothing; make its folder if it is missing.

    Only the user may write to a new file.

    Args:
        path: the file.
        data: its bytes.
        lasting: as in `replacing`.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    make_folder(path.parent)
    with replacing(path, lasting=lasting, mode=0o644) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(
    path: Path, *, force: bool = True, lasting: bool = True, mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` after the block.

    The new file has the mode of the replaced one. If the block raises, `path` stays unchanged and
    the new file is removed. A later call removes the new file of a killed process.

    Args:
        path: in a folder that exists.
        force: replace an existing file.
        lasting: sync the file to disk, and remove the new files of killed processes. A cache, which
            can have thousands of files, does without both.
        mode: permissions of a new file, before those that the umask takes away.

    Raises:
        InvalidOption: `force` is False, and `path` exists after the block.
        OSError: the disk is full, or the folder cannot be written to.
    """
    if lasting:
        _remove_left(path)
    part = _beside(path)
    with open(part, "x+b", opener=partial(os.open, mode=mode)) as file:
        try:
            yield file
            file.flush()
            with contextlib.suppress(FileNotFoundError):
                set_mode(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            if lasting:
                sync(file.fileno())
            file.close()  # Windows renames and removes no file that Python has open
            if not force:
                check_target(path, force=False)
            system.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                file.close()
            part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Return a temporary name in the folder of `path`."""
    return path.with_name(f"{_begin(path)}.{os.getpid()}.{time.time_ns()}")


def _begin(path: Path) -> str:
    """Return how temporary names for `path` begin; no two paths share it."""
    name = path.name
    if len(name) > SHORT:
        from hashlib import sha256  # costs milliseconds

        name = f"{name[:SHORT]}-{sha256(os.fsencode(name)).hexdigest()[:16]}"
    return f".{name}"


def _left(path: Path, end: str = "") -> list[Path]:
    """Return what stands beside `path` under a name of `_beside`, the oldest first."""
    ours = re.compile(rf"{re.escape(_begin(path))}\.\d+\.(\d{{16,19}}){re.escape(end)}")
    found = [
        (match[1], left) for left in path.parent.iterdir() if (match := ours.fullmatch(left.name))
    ]
    return [left for _, left in sorted(found)]


def remove_left_at(paths: Iterable[Path]) -> None:
    """Remove what killed writers of these files have left beside them, however new it is.

    Only one process may write the files: the parts of another one would be removed, too.
    """
    begins: dict[Path, set[str]] = {}
    for path in paths:
        begins.setdefault(path.parent, set()).add(_begin(path))
    for folder, known in begins.items():
        with contextlib.suppress(OSError):  # there is no such folder
            for left in list(folder.iterdir()):
                match = re.fullmatch(r"(.+)\.\d+\.\d{16,19}", left.name)
                if match and match[1] in known and stat.S_ISREG(left.lstat().st_mode):
                    left.unlink()


def _remove_left(path: Path, *, folder: bool = False) -> None:
    """Remove the temporary files, or folders, that killed processes left beside `path`."""
    for left in _left(path):
        if _old(left).exists():  # it waits for its name: see `_settle`
            continue
        with contextlib.suppress(OSError):
            status = left.lstat()
            if stat.S_ISDIR(status.st_mode) == folder and time.time() - status.st_mtime > LEFT:
                _remove(left)


def _remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        from shutil import rmtree  # costs milliseconds, which a listing has not

        rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(fd: int) -> None:
    """Sync an open file; say once if the disk cannot."""
    with _syncing(NO_SYNC):
        system.sync(fd)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that a rename in it survives a power failure; say once if the disk cannot.

    SMB, shared folders of virtual machines and some FUSE file systems sync no folders.
    """
    with _syncing(NO_SYNC | NO_FOLDER, path):
        system.sync_path(path)


@contextlib.contextmanager
def _syncing(harmless: Collection[int], path: Path | None = None) -> Iterator[None]:
    """Go on without a sync after some errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in harmless:
            raise
        if not _unsynced:
            from vitzoo.log import log  # costs milliseconds

            _unsynced.append(error)
            log.warning(
                "the disk%s cannot sync files and folders (%s): what was written last may be lost "
                "in a power failure; `vitzoo verify` finds damaged weights",
                f" of {path}" if path else "",
                str(system.reason(error)),
            )


def set_mode(fd: int, mode: int) -> None:
    """Set the permissions of an open file, where the disk has any."""
    try:
        system.set_mode(fd, mode)
    except OSError as error:
        if error.errno not in NO_MODE:
            raise


def make_folder_or_raise(path: Path) -> None:
    """Make a writable folder, before any request to a network."""
    try:
        make_folder(path)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied, or a read-only disk")
    except (OSError, ValueError) as error:  # a null byte
        raise unwritable(path, error) from error


def unwritable(path: Path, error: Exception) -> StoreError:
    """Return the error for a folder of the store that cannot be written to."""
    return StoreError(
        f"cannot write in {path}: {system.reason(error)}; make it writable, point VITZOO_HOME "
        "to another folder, or set VITZOO_HOME=:memory: to write nothing to disk"
    )


def fix_of(error: OSError, fix: str, place: str) -> str:
    """Return how to fix an error of a disk: `fix`, or another place if the disk has no locks."""
    lacks = error.errno in NO_LOCKS
    return f"its disk has no file locks: turn them on for the mount, or {place}" if lacks else fix


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a path that cannot be written.

    Raises:
        InvalidOption: it exists and `force` is False, is a folder, or its folder does not exist;
            or the name is impossible.
    """
    try:
        path.lstat()
        there = True
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except (OSError, ValueError) as error:  # a name that is too long or has a null byte
        reason = system.reason(error)
        raise InvalidOption(f"cannot write {path}: {reason}; name another file") from error
    if bad := system.not_a_name(path.name):
        raise InvalidOption(f"cannot write {path}: {bad}; name another file")
    if path.is_dir():
        raise InvalidOption(f"{path} is a folder; name a file")
    if there and not force:
        raise InvalidOption(f"{path} already exists; pass --force (force=True) to replace it")
    if not path.parent.is_dir():
        raise InvalidOption(f"there is no folder {path.parent}; make it first")


def check_figure(
    path: str | os.PathLike[str],
    what: str = "a plot",
    forms: Sequence[str] = (".png", ".svg"),
    *,
    force: bool,
) -> Path:
    """Return the path of a new figure; raise InvalidOption if it cannot be written.

    Args:
        path: of the file.
        what: is drawn, for the message.
        forms: suffixes that are possible.
        force: replace an existing file.
    """
    target = Path(path)
    if target.suffix.lower() not in forms:
        raise InvalidOption(
            f"{what} is written as {' or '.join(forms)}, got {short_repr(target.name)}; name the "
            "file so"
        )
    check_target(target, force=force)
    return target


@contextlib.contextmanager
def writing_to(path: Path, *, force: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that replaces a path given by the user after the block.

    Raises:
        InvalidOption: as `check_target`, before the block and again after it.
        StoreError: the disk is full, or the folder cannot be written to.
    """
    check_target(path, force=force)
    with _explained(path, "a file"), replacing(path, force=force) as file:
        yield file


@contextlib.contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """Turn the errors of a disk into a StoreError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, VitzooError):
            raise
        raise StoreError(
            f"cannot write {path}: {system.reason(error)}; make room, or name {what} in a "
            "folder that can be written to"
        ) from error


def check_folder(path: Path, known: Collection[str], *, force: bool) -> None:
    """Refuse a path at which no new folder can be written; first restore what a kill moved aside.

    Args:
        path: where nothing is, or an empty folder.
        known: names of the files that the folder will have.
        force: whether to accept a folder that has only files with these names, too.

    Raises:
        InvalidOption: there is something else; the folder of `path` does not exist; or the name is
            impossible.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  # of ".", too; links stay links
    _settle(path, known)
    if not os.path.lexists(path):  # False for a name that is too long or has a null byte
        check_target(path, force=force)
    elif not path.is_dir() or path.is_symlink():
        raise InvalidOption(f"{path} is not a folder; name a new folder")
    elif path.samefile(Path.cwd()):  # a shell in it would see the former folder
        raise InvalidOption(f"{path} is the working folder, which is not replaced; name another")
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    other = [name for name in found if name not in known or not (path / name).is_file()]
    if other:
        raise InvalidOption(
            f"{path} has other files, such as {ascii(other[0])[1:-1]}; name a new folder"
        )
    if found and not force:
        raise InvalidOption(f"{path} already exists; pass --force (force=True) to replace it")


@contextlib.contextmanager
def writing_folder(path: Path, known: Collection[str], *, force: bool) -> Iterator[Path]:
    """Make a temporary folder that gets the name `path` after the block.

    If the block raises, `path` stays unchanged and the temporary folder is removed. A folder at
    `path` is first renamed: it gets the temporary name of the new folder, and `OLD`. The new folder
    keeps that name until it is renamed to `path`. After any kill, the names show whether the former
    folder has to be restored or removed; the next call does so (`_settle`).

    Args:
        path, known, force: as in `check_folder`.

    Raises:
        InvalidOption: as `check_folder`, before the block and again after it.
        StoreError: the disk is full, or the folder cannot be written to.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  # of ".", too; links stay links
    check_folder(path, known, force=force)
    new = _beside(path)
    with _explained(path, "a folder"):
        _remove_left(path, folder=True)
        try:
            new.mkdir()
            yield new
            _sync_files(new)
            check_folder(path, known, force=force)
            if path.exists():
                system.replace(path, _old(new))
            system.replace(new, path)
            sync_folder(path.parent)
        finally:
            _settle(path, known)
            if not _old(new).exists():  # else it shows that the former folder has to be restored
                with contextlib.suppress(OSError):
                    _remove(new)


def _old(new: Path) -> Path:
    """Return the name of the folder that a new one replaces."""
    return new.with_name(f"{new.name}{OLD}")


def _settle(path: Path, known: Collection[str]) -> None:
    """Restore the folder at `path` after a kill between two renames, or remove what is left of it.

    A folder that was moved aside is never removed while it may be the last copy: as long as `path`
    is missing, or the new folder has not got its name.
    """
    try:
        olds = _left(path, OLD)
    except (OSError, ValueError):  # there is no such folder, or no such name
        return
    for old in reversed(olds):
        new = old.with_name(old.name.removesuffix(OLD))
        waits = os.path.lexists(new)
        try:
            if waits and path.is_dir() and not path.is_symlink():
                path.rmdir()  # made since, and empty
            if not os.path.lexists(path):
                system.replace(old, path)
                sync_folder(path.parent)
            elif not waits:
                _remove_known(old, known)
        except OSError:  # path is taken, or the disk has an error: the folder stays where it is
            pass
        if waits and old.exists():
            from vitzoo.log import log  # costs milliseconds

            log.warning("the former %s is kept as %s; move it to another name", path, old)


def _remove_known(folder: Path, known: Collection[str]) -> None:
    """Remove files with known names from a folder, and the folder unless it has others.

    Raises:
        OSError: it has others, or one cannot be removed.
    """
    for name in known:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _sync_files(folder: Path) -> None:
    """Sync a temporary folder and its files; a warning names the folder that it is in."""
    for entry in folder.iterdir():
        with _syncing(NO_SYNC, folder.parent):
            system.sync_path(entry)
    with _syncing(NO_SYNC | NO_FOLDER, folder.parent):
        system.sync_path(folder)
