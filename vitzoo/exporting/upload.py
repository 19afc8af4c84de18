"""Upload of a folder to a repository of the Hub, through huggingface_hub's client."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from vitzoo import __version__, errors, settings
from vitzoo.errors import AuthenticationError, HashMismatch, InvalidOption, Offline, printable
from vitzoo.files.access import hash_file, open_regular
from vitzoo.files.folder_manifest import Files
from vitzoo.files.names import valid_repo
from vitzoo.settings import may_see_token

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN, with a token that may write"
MOST = 300  # characters of a server's text in a message
LARGE = 5 * 1024 * 1024  # bytes; a larger file is read while it is sent
_ALONE = threading.Lock()  # the switches of huggingface_hub belong to the whole process


def check_upload(repo: str) -> str:
    """Return the user's token; raise before anything is written if a repository cannot be reached.

    Raises:
        InvalidOption: the name is not `owner/name`.
        Offline: vitzoo is offline.
        AuthenticationError: there is no token for the trusted Hub endpoint.
    """
    if not isinstance(repo, str) or not valid_repo(repo):
        raise InvalidOption(f"a repository of the Hub is written owner/name, got {repo!r}"[:MOST])
    if settings.offline():
        raise Offline(
            f"{repo}: vitzoo is offline, so nothing is uploaded; unset VITZOO_OFFLINE and "
            "HF_HUB_OFFLINE, or write the folder alone with --dry-run --folder DIR "
            "(dry_run=True, folder=DIR)"
        )
    endpoint = settings.trust_endpoint()
    if not may_see_token(endpoint):
        raise AuthenticationError(
            f"{repo}: {endpoint} may not see your token; name its host in VITZOO_TOKEN_HOSTS, or "
            "unset VITZOO_TRUST_ENDPOINT"
        )
    from vitzoo.store.hub_client import user_token  # imports network libraries

    token = user_token()
    if not token:
        raise AuthenticationError(f"{repo}: there is no token for {endpoint}; {LOG_IN}")
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

    contents = [_checked(folder / name, *stated) for name, stated in sorted(files.items())]
    endpoint = settings.trust_endpoint()
    api = HfApi(endpoint, token=token, library_name="vitzoo", library_version=__version__)
    with _quietly(endpoint, token):
        _send(repo, endpoint, lambda: api.create_repo(repo, private=private, exist_ok=force))
        additions = []
        for (name, (_, sha256)), content in zip(sorted(files.items()), contents, strict=True):
            addition = CommitOperationAdd(name, content)
            addition.upload_info.sha256 = bytes.fromhex(sha256)
            additions.append(addition)
        done = _send(
            repo, endpoint, lambda: api.create_commit(repo, additions, commit_message=message)
        )
    return str(done.commit_url), str(done.oid)


def _checked(path: Path, size: int, sha256: str) -> str | bytes:
    """Return the bytes of a small file, the path of a large one; HashMismatch if it has changed."""
    fd = open_regular(path)
    found = ""
    if fd is not None:
        with os.fdopen(fd, "rb") as file:
            found = hash_file(fd)
            data = file.read() if size <= LARGE else b""
    if found != sha256:
        raise HashMismatch(
            f"{path} was changed since it was written: its sha256 is {found or 'not known'}, "
            f"expected {sha256}; nothing was uploaded; push again"
        )
    return data if size <= LARGE else str(path)


@contextlib.contextmanager
def _quietly(endpoint: str, token: str) -> Iterator[None]:
    """Let huggingface_hub send nothing but the upload, and the token to one host alone.

    Without this it also requests names of coding agents, reads and renews stored tokens, and sends
    bytes through a second client (Xet), to hosts that the endpoint names.
    """
    from huggingface_hub import constants

    from vitzoo.store.hub_client import session

    switches = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DISABLE_XET")
    origin = _origin(endpoint)

    def keep(request: Any) -> None:
        other = _origin(str(request.url)) != origin
        if other and request.headers.get("authorization") == f"Bearer {token}":
            del request.headers["authorization"]

    with _ALONE, warnings.catch_warnings():
        old = "Use 'content=<...>'"  # huggingface_hub 2.4 passes a file as `data` to httpx2
        warnings.filterwarnings("ignore", re.escape(old), DeprecationWarning)
        before = {name: getattr(constants, name) for name in switches}
        client = session()
        hooks = client.event_hooks
        try:
            for name in switches:
                setattr(constants, name, True)
            client.event_hooks = {**hooks, "request": [*hooks.get("request", ()), keep]}
            yield
        finally:
            client.event_hooks = hooks
            for name, value in before.items():
                setattr(constants, name, value)


def _origin(url: str) -> tuple[str, str]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _send(repo: str, endpoint: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call of huggingface_hub; raise its errors as errors of vitzoo."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    where = f"{repo}: {endpoint}"
    try:
        return call()
    except HfHubHTTPError as error:
        raise _refused(where, error.response.status_code, _text(error)) from error
    except OfflineModeIsEnabled as error:
        raise Offline(f"{where}: {_text(error)}; unset HF_HUB_OFFLINE and start again") from error
    except (httpx2.HTTPError, OSError) as error:
        raise errors.TransferError(
            f"{where} cannot be reached: {_text(error)}; check network and proxy, and push again"
        ) from error
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise _refused(where, cause.response.status_code, _text(cause)) from error
        raise errors.ServerError(
            f"{where} gave an answer that huggingface_hub does not accept: {_text(error)}; push "
            "again later"
        ) from error


def _refused(where: str, status: int, text: str) -> errors.VitzooError:
    what = f"{where} answered {status}"
    kinds: Mapping[int, errors.VitzooError] = {
        HTTPStatus.UNAUTHORIZED: AuthenticationError(f"{what}: the token is not valid; {LOG_IN}"),
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


def _text(error: BaseException) -> str:
    return printable(str(error).strip(), MOST)
