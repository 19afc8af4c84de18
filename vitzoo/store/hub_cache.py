"""The user's Hub cache: the files that huggingface_hub downloaded, which are only read; torch-free.

    $HF_HUB_CACHE/models--OWNER--NAME/
      refs/REVISION          the commit of a branch or tag
      snapshots/COMMIT/FILE  a link to a blob; without links, the file itself
      blobs/NAME             a file; NAME is its sha256, or its git hash if it is not in LFS
      .no_exist/COMMIT/FILE  exists if the commit has no such file
      trees/COMMIT.json      all files of the commit (huggingface_hub 2)
    $HF_HUB_CACHE/blobs/XX/  the files that blobs are links to (huggingface_hub 2), by Xet hash,
                             which is no sha256

Names of files come from the registry, the lock file or an address, never from the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitzoo import settings
from vitzoo.errors import (
    HashMismatch,
    IntegrityError,
    PinError,
    StoreError,
    WeightsError,
    WeightsUnavailable,
)
from vitzoo.files.access import CHUNK, hash_file, open_regular, read_regular
from vitzoo.files.names import COMMIT, SHA256
from vitzoo.files.platform import files as system
from vitzoo.files.shard_index import MAX_INDEX
from vitzoo.files.strict_json import strict_json
from vitzoo.log import log
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import ABSENT, HUB_CACHE, UNPINNED, Pin
from vitzoo.store.partial_file import Partial, copy_verified

MAX_REF = 256  # bytes
MAX_LISTING = 16 * 1024 * 1024  # bytes; a repository of 10,000 files takes 3 MB
GIT_HASH = COMMIT  # both are a SHA-1


def folder_of(file: HubFile) -> Path:
    """Return the folder of the file's repository in the Hub cache, whether it exists or not."""
    from huggingface_hub import constants

    name = constants.REPO_ID_SEPARATOR.join(("models", *file.entry.repo.split("/")))
    return Path(constants.HF_HUB_CACHE) / name


def commit_of(file: HubFile) -> str:
    """Return the commit of the file's revision, empty if the Hub cache has none.

    It is the one that the ref of the revision names, else that of the only snapshot if there is no
    ref at all: a ref of another revision says that the snapshot is of that one.

    Raises:
        PinError: the Hub cache does not tell which snapshot is meant.
    """
    if COMMIT.fullmatch(file.revision):
        return file.revision
    folder = folder_of(file)
    ref = folder / "refs" / file.revision
    fix = f"name the commit, as in hf://{file.entry.repo}@COMMIT/{file.entry.file}"
    try:
        text = read_regular(ref, MAX_REF, PinError)
    except PinError as error:
        raise PinError(f"{file.label}: {error}; {fix}") from error
    if text is not None:
        commit = text.decode("ascii", "replace").strip()
        if not COMMIT.fullmatch(commit):
            raise PinError(
                f"{file.label}: {ref} must have a commit of 40 hex digits, got {commit[:60]!r}; "
                f"{fix}"
            )
        return commit
    found = _entries(folder / "snapshots")
    if len(found) > 1 or (found and _entries(folder / "refs")):
        raise PinError(
            f"{file.label}: {folder} has no {ref.relative_to(folder)} that tells which snapshot is "
            f"meant: {', '.join(found)}; {fix}"
        )
    return found[0] if found else ""


def in_hub_cache(file: HubFile) -> bool:
    """Tell whether the Hub cache has the file at its revision, or in one of several snapshots."""
    try:
        commits = [commit_of(file)] if file.entry.repo else []
    except PinError:
        commits = _entries(folder_of(file) / "snapshots")
    return any(os.path.isfile(_snapshot(file, commit)) for commit in commits if commit)  # noqa: PTH113


def with_cached_pin(file: HubFile) -> HubFile:
    """Return a file without a pin with that of the Hub cache; unchanged if the cache has none.

    A blob's name that is a sha256 is not checked here: the copy into the store has to have it.

    Raises:
        HashMismatch: a file that is not in LFS does not have the git hash of its blob.
        PinError: the Hub cache does not tell which snapshot is meant, or the size is not possible.
        StoreError: the file cannot be read.
    """
    commit = commit_of(file)
    if not commit:
        return file
    path, listing = _snapshot(file, commit), _listing(file, commit)
    source = open_regular(path, follow=True)
    if source is None:
        marker = folder_of(file) / ".no_exist" / commit / file.entry.file
        absent = os.path.lexists(marker) or (listing is not None and file.entry.file not in listing)
        return replace(file, pin=Pin(commit, 0, ABSENT, HUB_CACHE)) if absent else file
    with os.fdopen(source, "rb"):
        size, stated = os.fstat(source).st_size, _stated(file, path, listing)
        most = MAX_INDEX if file.small else size
        if not 0 < size <= most:
            raise PinError(
                f"{file.label}: {path} has {size} bytes, expected 1 to {most or 'more'}; download "
                "it again"
            )
        sha256 = stated if SHA256.fullmatch(stated) else hash_file(source)
        if GIT_HASH.fullmatch(stated) and (found := _git_hash(source, size)) != stated:
            raise HashMismatch(f"{file.label}: {path} has git hash {found}, {_expected(stated)}")
    return replace(file, pin=Pin(commit, size, sha256, HUB_CACHE))


def not_from_cache(file: HubFile, error: WeightsError | None = None) -> WeightsError:
    """Return the error for a file that could not be copied from the Hub cache to the store.

    Args:
        file: with the pin of the registry, the lock or `with_cached_pin`, or without one.
        error: of the copy, which is returned if the Hub cache is not its cause.

    Raises:
        PinError, StoreError: as `with_cached_pin`.
    """
    try:
        commit = commit_of(file)
    except PinError:
        if not file.entry.sha256:
            raise
        return WeightsUnavailable(
            f"{file.label}: no snapshot in {folder_of(file)} has the sha256 {file.pin.sha256}; "
            "fetch it with a network, or set HF_HUB_CACHE to the folder that has it"
        )
    # First a missing file is named, then one that its snapshot states otherwise, then a wrong pin.
    if file.pin.sha256 and not os.path.lexists(_snapshot(file, commit)):
        commit = commit_of(replace(file, pin=UNPINNED))  # what the cache has in its place
    path = _snapshot(file, commit) if commit else folder_of(file)
    source = open_regular(path, follow=True) if commit else None
    if error is None or source is None:
        others = [one for one in _entries(folder_of(file) / "snapshots") if one != commit]
        has = [one for one in others if os.path.lexists(_snapshot(file, one))]
        seen = f" (other commits have it: {', '.join(has)})" if has else ""
        return WeightsUnavailable(
            f"{file.label}: there is no file {path} in the Hub cache{seen}; download it with a "
            "network, or set HF_HUB_CACHE to the folder that has it"
        )
    with os.fdopen(source, "rb"):
        found = hash_file(source)
    stated = _stated(file, path, _listing(file, commit))
    if SHA256.fullmatch(stated) and stated != found:
        return HashMismatch(f"{file.label}: {path} has sha256 {found}, {_expected(stated)}")
    if file.pin.sha256 not in ("", found):
        named = "the registry" if file.entry.sha256 else f"the lock {settings.lock_path()}"
        return PinError(
            f"{file.address}: {named} names sha256 {file.pin.sha256}, the Hub cache has {found} at "
            f"commit {commit}; find out why, then fetch the file with a network, or replace its "
            "pin with `vitzoo lock --update`"
        )
    return error


def copy_from_hub_cache(file: HubFile, partial: Partial) -> bool:
    """Copy the file with the sha256 of the pin, if a blob or any snapshot of the cache has it.

    Each file is read at most once, and none whose size or blob states that it is another one.
    """
    folder = folder_of(file)
    expected = [folder / "blobs" / file.pin.sha256, _snapshot(file, file.revision)]
    others = [_snapshot(file, commit) for commit in _entries(folder / "snapshots")]
    read = set()
    for path in dict.fromkeys([*expected, *others]):
        blob, source = _blob(path), None
        with contextlib.suppress(StoreError):
            if not SHA256.fullmatch(blob) or blob == file.pin.sha256:
                source = open_regular(path, follow=True)
        if source is None:
            continue
        status = os.fstat(source)
        if (status.st_dev, status.st_ino) in read:
            os.close(source)
            continue
        read.add((status.st_dev, status.st_ino))
        if partial.size and not blob and hash_file(source) != file.pin.sha256:
            os.close(source)  # copying it would discard the download so far
            continue
        try:
            copy_verified(file, source, path, partial, "it is ignored")
        except IntegrityError as error:
            (log.warning if path in expected else log.debug)("%s", error)
        else:
            return True
    return False


def _snapshot(file: HubFile, commit: str) -> Path:
    return folder_of(file) / "snapshots" / commit / file.entry.file


def _entries(folder: Path) -> list[str]:
    """Return the names in a folder, none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # a name is needed, no path
    except OSError:
        return []


def _blob(path: Path) -> str:
    """Return the name of the blob that a file of a snapshot is a link to, empty without one."""
    try:
        target = Path(os.readlink(path))  # noqa: PTH115
    except OSError:
        return ""
    return target.name if target.parent.name == "blobs" else ""


def _stated(file: HubFile, path: Path, listing: Mapping[str, Any] | None) -> str:
    """Return the sha256 or the git hash that the Hub stated for a cached file, empty if unknown."""
    if blob := _blob(path):
        return blob
    entry = (listing or {}).get(file.entry.file)
    entry = entry if isinstance(entry, dict) else {}
    return str(entry.get("lfs_sha256") or entry.get("blob_id") or "")


def _listing(file: HubFile, commit: str) -> Mapping[str, Any] | None:
    """Return what the Hub stated about all files of a commit, None if it is not known."""
    path = folder_of(file) / "trees" / f"{commit}.json"
    with contextlib.suppress(StoreError, ValueError):
        text = read_regular(path, MAX_LISTING)
        table = None if text is None else strict_json(text)
        if isinstance(table, dict) and table.get("format_version") == 1:
            files = table.get("files")
            return files if isinstance(files, dict) else None
    return None


def _expected(stated: str) -> str:
    return f"expected {stated}, as the Hub stated; the file is damaged: download it again"


def _git_hash(fd: int, size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    position = 0
    while chunk := system.pread(fd, CHUNK, position):
        digest.update(chunk)
        position += len(chunk)
    return digest.hexdigest()
