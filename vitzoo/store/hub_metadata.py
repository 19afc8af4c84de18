"""Commit, size and sha256 of a file, requested from the trusted Hub endpoint; torch-free."""

from __future__ import annotations

import contextlib
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
from vitzoo.store.hub_client import (
    SHOWN,
    UNSET_OFFLINE,
    encoding_of,
    proxies,
    refusal,
    send,
    session,
    within,
)
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import Pin

MAX_METADATA = 8 * 1024 * 1024  # bytes; a repository of 10,000 files takes 3 MB
FIX = (
    "trust on first use takes the sha256 from this endpoint alone, never from a mirror: fetch the "
    "file once with a network, or bring it with a lock that names it (VITZOO_LOCK, see "
    "docs/offline.md)"
)


def request_pin(file: HubFile) -> Pin:
    """Request commit, size and sha256 of a file from the trusted Hub endpoint.

    Raises:
        Offline: no socket may be opened.
        NetworkError: no answer, or there is no such file.
        PinError: no usable answer, or one for another commit than the entry's.
    """
    endpoint, revision = settings.trust_endpoint(), file.entry.revision
    if settings.offline():
        raise Offline(
            f"{file.label}: the sha256 of {file.address} has to be requested from {endpoint}, and "
            "vitzoo is offline; with a network, unset VITZOO_OFFLINE, HF_HUB_OFFLINE and "
            "TRANSFORMERS_OFFLINE"
        )
    pin = _Request(file, endpoint).pin()
    if len(revision) == 40 and pin.commit != revision:
        raise PinError(
            f"{file.address}: {endpoint} answered with commit {pin.commit}; try again, or find out "
            "who changed the repository"
        )
    return pin


class _Request:
    """One request for the metadata of a file's repository, with its redirects."""

    def __init__(self, file: HubFile, endpoint: str) -> None:
        self.file, self.endpoint, self.limits = file, endpoint, settings.limits()
        self.deadline = float("inf")
        name = file.label if file.label == file.address else f"{file.label}: {file.address}"
        self.where = f"{name}: {endpoint}"

    def pin(self) -> Pin:
        try:
            session()  # making the client takes longer than a request
            self.deadline = time.monotonic() + self.limits.first_byte
            metadata = strict_json(within(self.limits.first_byte, self._body))
            files = {sibling["rfilename"]: sibling for sibling in metadata["siblings"]}
            commit = metadata.get("sha")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = printable(f"{type(error).__name__}: {error}", SHOWN)
            raise TransferError(
                f"{self.where} cannot be reached: {reason}{proxies()}; {FIX}"
            ) from error
        except OfflineModeIsEnabled as error:
            raise Offline(f"{self.where} cannot be reached: {UNSET_OFFLINE}; {FIX}") from error
        except (ValueError, TypeError, LookupError) as error:
            raise RefusedResponse(
                f"{self.where} did not answer as a Hub does ({type(error).__name__}); a login page "
                f"or a proxy may have answered; {FIX}"
            ) from error
        if self.file.entry.file not in files:
            raise EntryNotFound(f"{self.where} lists no such file at this revision")
        return self._pin(commit, files[self.file.entry.file])

    def _pin(self, commit: object, sibling: Mapping[str, Any]) -> Pin:
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
                f"{self.where} states no usable commit, size and LFS sha256 of the file; only "
                "files stored with LFS can be trusted on first use"
            )
        return Pin(str(commit), int(size or 0), str(sha256), self.endpoint)

    def _body(self) -> bytes:
        """Return the body of the answer, of bounded size, before the deadline."""
        revision = quote(self.file.revision, safe="")
        url = f"{self.endpoint}/api/models/{self.file.entry.repo}/revision/{revision}?blobs=true"
        most = self.limits.redirects
        for _ in range(most + 1):
            timeout = httpx2.Timeout(max(0.1, self.deadline - time.monotonic()))
            with contextlib.closing(send(session(), url, timeout, {})) as response:
                if not response.has_redirect_location:
                    return self._read(response)
                location = response.headers["location"]
            url = self._redirected(url, location)
        raise RefusedResponse(f"{self.where} redirected more than {most} times; {FIX}")

    def _read(self, response: httpx2.Response) -> bytes:
        if response.status_code != httpx2.codes.OK:
            raise refusal(response, self.file, urlsplit(self.endpoint).netloc)
        if encoding := encoding_of(response):
            raise RefusedResponse(
                f"{self.where} sent a {encoding!r} body, expected plain JSON; a proxy may have "
                f"changed it; {FIX}"
            )
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > MAX_METADATA:
                raise RefusedResponse(
                    f"{self.where} sent more than {MAX_METADATA} bytes of metadata; {FIX}"
                )
            if time.monotonic() > self.deadline:
                raise httpx2.ReadTimeout(f"no answer within {self.limits.first_byte:.1f} s")
        return bytes(body)

    def _redirected(self, url: str, target: str) -> str:
        """Return the next address; it must have the scheme, host and port of the endpoint."""
        try:
            following = str(httpx2.URL(urljoin(url, target)))
            origins = [httpx2.URL(address) for address in (url, following)]
            same = len({(o.scheme, o.host, o.port, o.userinfo) for o in origins}) == 1
        except (ValueError, httpx2.InvalidURL):
            same = False
        if not same:
            raise RefusedResponse(
                f"{self.where} redirected to {target[:200]!r}, which is refused: the sha256 of a "
                f"file is taken from {self.endpoint} alone. A login page or a proxy may have "
                f"answered; check the network and VITZOO_TRUST_ENDPOINT; {FIX}"
            )
        return following
