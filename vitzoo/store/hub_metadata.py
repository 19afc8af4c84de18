"""Metadata of the trusted Hub: commit, size, sha256 of a file; torch-free."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx2
from huggingface_hub.errors import OfflineModeIsEnabled

from vitzoo import settings
from vitzoo.errors import (
    EntryNotFound,
    Offline,
    PinError,
    RefusedResponse,
    TransferError,
    printable,
)
from vitzoo.files.names import COMMIT, SHA256
from vitzoo.files.strict_json import strict_json
from vitzoo.settings import limits, trust_endpoint
from vitzoo.store.hub_client import SHOWN, headers_for, proxies, refusal, session, within
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import Pin

MAX_METADATA = 8 * 1024 * 1024  # bytes; a repository of 10,000 files takes 3 MB
NEEDED = (
    "its word is needed on first use, and a mirror's is not taken: fetch it once where there is a "
    "network, or bring the file with a lock that names it (VITZOO_LOCK, see docs/offline.md)"
)


def ask_authority(file: HubFile) -> Pin:
    """Ask the authority what a file is, at the revision that its entry names.

    Raises:
        Offline: no socket may be opened.
        NetworkError: no answer, or there is no such file.
        PinError: no usable answer, or one for another commit than the entry's.
    """
    authority, entry = trust_endpoint(), file.entry
    if settings.offline():
        raise Offline(
            f"{file.label}: the sha256 of {file.address} has to be requested from "
            f"{authority}, and this is offline; unset VITZOO_OFFLINE, "
            "HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE where there is a network"
        )
    what = file.address if file.label == file.address else f"{file.label}: {file.address}"
    commit, files = _metadata(file, authority, what)
    if entry.file not in files:
        raise EntryNotFound(f"{what}: {authority} lists no such file at this revision")
    pin = _pin(what, authority, commit, files[entry.file])
    if len(entry.revision) == 40 and pin.commit != entry.revision:
        raise PinError(
            f"{file.address}: {authority} answered with commit {pin.commit}; ask again, "
            "or find out who changed the repository"
        )
    return pin


def _metadata(file: HubFile, authority: str, what: str) -> tuple[object, Mapping[str, Any]]:
    """Return the commit of a repository and its files by name, as the model API states them."""
    seconds = limits().first_byte
    try:
        session()
    except ValueError as error:
        raise TransferError(f"{what}: {authority}: {error}") from error
    request = functools.partial(_request, file, authority, what, time.monotonic() + seconds)
    try:
        metadata = strict_json(within(seconds, request))
        files = {entry["rfilename"]: entry for entry in metadata["siblings"]}
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise TransferError(
            f"{what}: {authority} cannot be reached: "
            f"{printable(f'{type(error).__name__}: {error}', SHOWN)}{proxies()}; {NEEDED}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise Offline(
            f"{what}: {authority} cannot be asked: huggingface_hub is offline; unset "
            f"HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then start again; {NEEDED}"
        ) from error
    except (ValueError, TypeError, LookupError) as error:
        raise RefusedResponse(
            f"{what}: {authority} gave an answer that is none of a Hub "
            f"({type(error).__name__}); a login page or a proxy may have given it; {NEEDED}"
        ) from error
    return metadata.get("sha"), files


def _request(file: HubFile, authority: str, what: str, deadline: float) -> bytes:
    """Return the body of the answer, following redirects within the trusted Hub only."""
    url = f"{authority}/api/models/{file.entry.repo}/revision/{quote(file.revision, safe='')}"
    url += "?blobs=true"
    for _ in range(limits().redirects + 1):
        timeout = max(0.1, deadline - time.monotonic())
        client = session()
        request = client.build_request("GET", url, headers=headers_for(url), timeout=timeout)
        try:
            response = client.send(request, stream=True, follow_redirects=False)
        except RuntimeError as error:  # other users of the shared client may have closed it
            raise httpx2.ConnectError(str(error)) from error
        try:
            if not response.has_redirect_location:
                if response.status_code != httpx2.codes.OK:
                    raise refusal(response, file, urlsplit(authority).netloc)
                return _body(response, authority, what, deadline)
            target = response.headers["location"]
        finally:
            response.close()
        url = _redirected(url, target, authority, what)
    raise RefusedResponse(
        f"{what}: {authority} redirected more than {limits().redirects} times; {NEEDED}"
    )


def _redirected(url: str, target: str, authority: str, what: str) -> str:
    """Return the next address; only the trusted Hub's own scheme, host and port are followed."""
    try:
        following = str(httpx2.URL(urljoin(url, target)))
        origins = [httpx2.URL(address) for address in (url, following)]
        same = len({(o.scheme, o.host, o.port, o.userinfo) for o in origins}) == 1
    except (ValueError, httpx2.InvalidURL):
        same = False
    if not same:
        raise RefusedResponse(
            f"{what}: {authority} redirected to {target[:200]!r}, which is refused: the sha256 of "
            f"a file is taken from {authority} alone. A login page or a proxy may have answered; "
            f"check the network and VITZOO_TRUST_ENDPOINT; {NEEDED}"
        )
    return following


def _body(response: httpx2.Response, authority: str, what: str, deadline: float) -> bytes:
    """Read an answer of bounded size until the deadline."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RefusedResponse(
            f"{what}: {authority} sent a {encoding[:50]!r} body, expected plain JSON; a proxy may "
            f"have changed it; {NEEDED}"
        )
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > MAX_METADATA:
            raise RefusedResponse(
                f"{what}: {authority} sent more than {MAX_METADATA} bytes of metadata; {NEEDED}"
            )
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the answer did not end in time")
    return bytes(body)


def _pin(what: str, authority: str, commit: object, sibling: Mapping[str, Any]) -> Pin:
    lfs = sibling.get("lfs")
    lfs = lfs if isinstance(lfs, dict) else {}
    size, sha256 = lfs.get("size"), lfs.get("sha256")
    stated = (
        isinstance(commit, str) and COMMIT.fullmatch(commit)
        and isinstance(sha256, str) and SHA256.fullmatch(sha256)
        and type(size) is int and size > 0
    )  # fmt: skip
    if not stated:
        raise PinError(
            f"{what}: {authority} states no usable commit, size and LFS sha256 for it; only files "
            "kept in LFS can be trusted on first use"
        )
    return Pin(str(commit), int(size or 0), str(sha256), authority)
