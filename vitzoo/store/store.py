"""The store: read-only weights files under their sha256, verified before use; torch-free.

    $VITZOO_HOME/
      sha256/ab/<hex>         a file whose bytes have that sha256
      stamps/<hex>.json       the state of the file when its bytes were last hashed
      stamps/own/<n>.json     the same for files of the user's own, which stay where they are
      partial/<hex>           an unfinished download, which the next run resumes
      timm/<hex>.safetensors  a copy for timm, which `timm_overlay` wrote
      quarantine/<hex>.<n>    a damaged file: its bytes do not have that sha256
      locks/<hex>.lock        locked while a process fetches the file

A stamp names device, inode, size, modification and change time of a hashed file. A file that still
has all of them is not hashed again, unless its times are as recent as the clock's resolution.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from vitzoo.errors import HashMismatch, IntegrityError, PinError, SizeMismatch, StoreError
from vitzoo.files.access import (
    hash_file,
    make_folder,
    make_folder_or_raise,
    open_regular,
    set_mode,
    sync,
    sync_folder,
)
from vitzoo.files.names import SHA256
from vitzoo.files.platform import files as system
from vitzoo.progress import bar
from vitzoo.store.partial_file import Partial, leftovers
from vitzoo.store.stamp import GRAIN_NS, Stamp, Stamps, stamps_folder


class Store:
    """A folder of verified files.

    Args:
        home: the folder; it is made when something is stored.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stamps = Stamps(home)

    def path(self, sha256: str) -> Path:
        """Return the path of the file with that sha256, whether it exists or not."""
        return self.home / "sha256" / sha256[:2] / sha256

    def partial(self, sha256: str) -> Path:
        """Return the path of its unfinished download."""
        return self.home / "partial" / sha256

    def timm(self, sha256: str) -> Path:
        """Return the path of the copy for timm, whether it exists or not."""
        return self.home / "timm" / f"{sha256}.safetensors"

    def names(self) -> Iterator[str]:
        """Yield the sha256 of every file in the store."""
        try:
            paths = [*(self.home / "sha256").glob("??/*")]  # no files such as .DS_Store
        except OSError as error:
            raise StoreError(f"cannot read {self.home}: {error.strerror}") from error
        yield from sorted(
            p.name for p in paths if SHA256.fullmatch(p.name) and p.name[:2] == p.parent.name
        )

    def open(self, sha256: str, size: int | None, *, always: bool = False) -> int | None:
        """Open a file for reading and verify its sha256; None if it is not in the store.

        Args:
            sha256: of the file.
            size: bytes, None if not known.
            always: hash the file even if its stamp fits.

        Raises:
            HashMismatch, SizeMismatch: the file is damaged; it has been moved to quarantine.
            PinError: the file has this sha256 and another size.
            StoreError: it cannot be read.
        """
        path = self.path(sha256)
        fd = open_regular(path)
        if fd is None:
            return None
        try:
            self._prove(fd, path, sha256, size, always=always)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextlib.contextmanager
    def receive(self, sha256: str, bound: int) -> Iterator[Partial]:
        """Open the partial file of a sha256; after the block, move it into the store.

        If the block raises, the bytes are kept for the next try.

        Raises:
            StoreError: the disk is full, or the store cannot be written to.
        """
        path = self.partial(sha256)
        make_folder_or_raise(path.parent)
        partial = Partial(path, bound)
        try:
            yield partial
            self._adopt(partial)
        finally:
            partial.release()

    def _adopt(self, partial: Partial) -> None:
        """Move a complete, hashed file into the store, read-only and synced to disk."""
        sha256, fd = partial.sha256, partial.fd
        path = self.path(sha256)
        try:
            make_folder(path.parent)
            set_mode(fd, 0o444)
            sync(fd)
            partial.move(path)
            sync_folder(path.parent)
        except OSError as error:
            raise StoreError(
                f"cannot put {path} into the store: {system.reason(error)}; make room, or point "
                "VITZOO_HOME to another disk; the bytes are kept for the next try"
            ) from error
        time.sleep(GRAIN_NS / 1e9)  # a later change of the file changes its times
        self.stamps.write(Stamp.of(system.state(fd), sha256, time.time_ns()))

    def _quarantine(self, sha256: str) -> Path | None:
        """Move a damaged file to quarantine; return its new path, None if it cannot be moved."""
        folder = self.home / "quarantine"
        try:
            make_folder(folder)
            target = folder / f"{sha256}.{time.time_ns()}"
            self.path(sha256).replace(target)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            self._stamp_path(sha256).unlink()
        return target

    def remove(self, sha256: str) -> int:
        """Remove a file, its stamp, its copy for timm and its unfinished downloads.

        Returns:
            The freed bytes.

        Raises:
            StoreError: one of them cannot be removed.
        """
        freed = 0
        begun = leftovers(self.partial(sha256))
        for path in (self.path(sha256), self.timm(sha256), self._stamp_path(sha256), *begun):
            try:
                size = path.lstat().st_size
                system.remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cannot remove {path}: {system.reason(error)}") from error
            freed += size
        return freed

    def _stamp_path(self, sha256: str) -> Path:
        return stamps_folder(self.home) / f"{sha256}.json"

    def _prove(self, fd: int, path: Path, sha256: str, size: int | None, *, always: bool) -> None:
        now, state = time.time_ns(), system.state(fd)
        if always or not self.stamps.find(state, sha256):
            with bar(f"sha256 {sha256[:12]}", in_bytes=True) as note:
                actual = hash_file(fd, note)
            if actual != sha256:
                if size in (None, state.size):
                    raise self._damaged(HashMismatch, path, sha256, f"sha256 {actual}")
                found = f"{state.size} bytes instead of {size}"
                raise self._damaged(SizeMismatch, path, sha256, found)
            self.stamps.write(Stamp.of(state, sha256, now))
        if size not in (None, state.size):
            raise PinError(
                f"the file with sha256 {sha256} has {state.size} bytes, but the registry or "
                f"the lock file states {size}; correct the size there ({path} is not changed)"
            )

    def _damaged(
        self, kind: type[IntegrityError], path: Path, sha256: str, found: str
    ) -> IntegrityError:
        where = self._quarantine(sha256)
        moved = f"it was moved to {where}" if where else f"remove it: rm {path}"
        return kind(f"{path} is damaged: it should have sha256 {sha256} and has {found}; {moved}")
