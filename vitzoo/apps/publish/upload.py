"""Upload of a folder to a repository of the Hub, through huggingface_hub's client."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from vitzoo import __version__, errors, settings
from vitzoo.errors import InvalidOption, VitzooError, printable
from vitzoo.files.access import hash_file, open_regular
from vitzoo.files.folder_manifest import Files
from vitzoo.files.names import COMMIT
from vitzoo.settings import may_see_token

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN, with a token that may write"
MOST = 300  # characters of a server's text in a message
LARGE = 5 * 1024 * 1024  # bytes; a larger file is read while it is sent
_ALONE = threading.Lock()  # the switches of huggingface_hub belong to the whole process


def check_upload(repo: str) -> str:
    """Return the user's token; raise before anything is written if a repository cannot be reached.

    Raises:
        Offline: vitzoo is offline.
        AuthenticationError: there is no token for the trusted Hub endpoint.
    """
    if settings.offline():
        raise errors.Offline(
            f"{repo}: vitzoo is offline; unset VITZOO_OFFLINE and HF_HUB_OFFLINE, or write the "
            "folder alone with --dry-run --folder DIR (dry_run=True, folder=DIR)"
        )
    endpoint = settings.trust_endpoint()
    if not may_see_token(endpoint):
        raise errors.AuthenticationError(
            f"{repo}: {endpoint} may not see your token; name its host in VITZOO_TOKEN_HOSTS, or "
            "unset VITZOO_TRUST_ENDPOINT"
        )
    from vitzoo.store.token import user_token

    if not (token := user_token()):
        raise errors.AuthenticationError(f"{repo}: there is no token for {endpoint}; {LOG_IN}")
    return token


def upload(
    folder: Path,
    files: Files,
    repo: str,
    token: str,
    *,
    message: str,
    private: bool | None = None,
    force: bool = False,
) -> tuple[str, str]:
    """Make a repository and commit the files of a folder; return address and id of the commit.

    Args:
        folder: with the files.
        files: size and sha256 of each file, with which it is compared again.
        repo: `owner/name`.
        token: of the user; it goes to the trusted Hub endpoint alone.
        message: of the commit.
        private: whether a new repository is private; None for the owner's setting.
        force: commit to a repository that exists.

    Raises:
        InvalidOption: the repository exists and `force` is False.
        HashMismatch: a file was changed since it was written.
        NetworkError: one of its kinds.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    additions = []
    for name, (size, sha256) in sorted(files.items()):
        addition = CommitOperationAdd(name, _checked(folder / name, size, sha256))
        addition.upload_info.sha256 = bytes.fromhex(sha256)
        additions.append(addition)
    endpoint = settings.trust_endpoint()
    api = HfApi(endpoint, token=token, library_name="vitzoo", library_version=__version__)
    where = f"{repo}: {endpoint}"
    with _translating(where), _quietly(endpoint, where, token):
        api.create_repo(repo, private=private, exist_ok=force)
        commit = str(api.create_commit(repo, additions, commit_message=message).oid)
        if not COMMIT.fullmatch(commit):
            raise errors.ServerError(
                f"{where} gave {_text(commit)!r} as the id of the commit; push again later"
            )
        _check_commit(api, where, repo, commit, additions)
    return f"{endpoint}/{repo}/commit/{commit}", commit


def _check_commit(api: Any, where: str, repo: str, commit: str, additions: Sequence[Any]) -> None:
    """Raise HashMismatch unless a commit has the bytes of all files."""
    names = [addition.path_in_repo for addition in additions]
    listed = {one.path: one for one in api.get_paths_info(repo, names, revision=commit)}
    wrong = []
    for name, addition in zip(names, additions, strict=True):
        content, found = addition.path_or_fileobj, listed.get(name)
        if found is not None and found.lfs:
            same = found.lfs.sha256 == addition.upload_info.sha256.hex()
        else:  # git's hash of a small file
            data = content if isinstance(content, bytes) else b""
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
            same = found is not None and found.blob_id == blob.hexdigest()
        if not same:
            wrong.append(name)
    if wrong:
        raise errors.HashMismatch(
            f"{where}: the commit {commit} has not the bytes of {', '.join(wrong)} that were sent; "
            "look at .gitignore in the repository, and push again with --force (force=True)"
        )


def _checked(path: Path, size: int, sha256: str) -> str | bytes:
    """Return the bytes of a small file, the path of a large one; HashMismatch if it has changed."""
    fd = open_regular(path)
    found, data = "", b""
    if fd is not None:
        with os.fdopen(fd, "rb") as file:
            if size <= LARGE:  # these bytes are sent
                data = file.read(size + 1)
                found = hashlib.sha256(data).hexdigest()
            else:
                found = hash_file(fd)
    if found != sha256:
        raise errors.HashMismatch(
            f"{path} was changed since it was written: its sha256 is {found or 'not known'}, "
            f"expected {sha256}; nothing was uploaded; push again"
        )
    return data if size <= LARGE else str(path)


@contextlib.contextmanager
def _quietly(endpoint: str, where: str, token: str) -> Iterator[None]:
    """Let huggingface_hub send nothing but the upload, each request with limits.

    Without this it also requests names of coding agents, reads and renews stored tokens, sends
    bytes through a second client (Xet) to hosts that the endpoint names, and shows what the
    endpoint sends as warnings.
    """
    from huggingface_hub import constants

    from vitzoo.apps.publish.upload_client import Guard
    from vitzoo.store.hub_client import session

    switches = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DISABLE_XET")
    with _ALONE, warnings.catch_warnings(action="ignore"):
        before, client = {name: getattr(constants, name) for name in switches}, session()
        client.send = Guard(client, endpoint, where, token)  # type: ignore[method-assign]
        try:
            for name in switches:
                setattr(constants, name, True)
            yield
        finally:
            del client.send
            for name, value in before.items():
                setattr(constants, name, value)


@contextlib.contextmanager
def _translating(where: str) -> Iterator[None]:
    """Raise errors of huggingface_hub as errors of vitzoo."""
    try:
        yield
    except VitzooError:
        raise
    except Exception as error:  # an answer of a wrong shape raises any of them
        raise _translated(where, error) from error


def _translated(where: str, error: Exception) -> VitzooError:
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, VitzooError):  # the cause of another
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        return _translated(where, error.__cause__)  # it was raised while a large file was sent
    if isinstance(error, HfHubHTTPError):
        return _refused(where, error.response.status_code, _text(error))
    if isinstance(error, OfflineModeIsEnabled):
        return errors.Offline(f"{where}: {_text(error)}; unset HF_HUB_OFFLINE and start again")
    if isinstance(error, (httpx2.HTTPError, OSError)):
        return errors.TransferError(
            f"{where} cannot be reached: {_text(error)}; check network and proxy, and push again"
        )
    return errors.ServerError(
        f"{where} gave an answer that huggingface_hub does not accept: {_text(error)}; push again "
        "later"
    )


def _refused(where: str, status: int, text: str) -> errors.VitzooError:
    what = f"{where} answered {status}"
    kinds: Mapping[int, errors.VitzooError] = {
        HTTPStatus.UNAUTHORIZED: errors.AuthenticationError(
            f"{what}: the token is not valid; {LOG_IN}"
        ),
        HTTPStatus.FORBIDDEN: errors.AccessDenied(
            f"{what}: your token may not write there; name a repository of yours, or use a token "
            f"that may write ({text})"
        ),
        HTTPStatus.CONFLICT: InvalidOption(
            f"{what}: the repository exists; pass --force (force=True) to commit to it"
        ),
        HTTPStatus.NOT_FOUND: errors.RepoNotFound(f"{what}: there is no such owner or repository"),
    }
    return kinds.get(status) or errors.ServerError(f"{what}: {text}; push again later")


def _text(error: object) -> str:
    return printable(str(error).strip(), MOST)
