"""Commit, size and sha256 of a file, requested from the trusted Hub endpoint; torch-free."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from vitzoo import settings
from vitzoo.errors import EntryNotFound, Offline, PinError, RefusedResponse, TransferError
from vitzoo.files.names import COMMIT, SHA256, valid_file
from vitzoo.files.shard_index import MAX_INDEX
from vitzoo.files.strict_json import strict_json
from vitzoo.store.exchange import Exchange
from vitzoo.store.hub_client import CONNECTING, encoding_of
from vitzoo.store.lockfile import ABSENT, Pin
from vitzoo.store.waiting import SHOWN, within

if TYPE_CHECKING:
    from vitzoo.store.hub_file import HubFile

LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
MAX_METADATA = 8 * 1024 * 1024  # bytes; a repository of 10,000 files takes 3 MB
FIX = (
    "the sha256 is taken from this endpoint alone, never from a mirror: fetch the file once with a "
    "network, or bring it with the lock file that names it (VITZOO_LOCK, see "
    "docs/trust.md#without-a-network)"
)


def request_pin(file: HubFile, fix: str = FIX) -> Pin:
    """Request commit, size and sha256 of a file from the trusted Hub endpoint.

    Args:
        file: that is pinned.
        fix: end of the messages about an endpoint that gives no answer of a Hub.

    Raises:
        Offline: no socket may be opened.
        NetworkError: no answer, or there is no such file.
        PinError: no usable answer, or one for another commit than the entry's.
    """
    (pin,) = request_pins([file], fix)
    if pin.absent:
        raise EntryNotFound(
            f"{_where(file, settings.trust_endpoint())} lists no such file at this revision"
            f"{file.instead}"
        )
    return pin


def request_pins(files: Sequence[HubFile], fix: str = FIX) -> list[Pin]:
    """Request the pins of files of one repository at once; a file may be absent.

    Raises:
        Offline, NetworkError, PinError: as `request_pin`.
    """
    return [file.pin for file in stated(files, fix)]


def stated(files: Sequence[HubFile], fix: str = FIX) -> list[HubFile]:
    """Return files of one repository with the pins that one request asks for.

    The sha256 of a config that is not stored with LFS is computed from its bytes, which the trusted
    Hub endpoint itself serves; the file has them then.

    Raises:
        Offline, NetworkError, PinError: as `request_pin`.
    """
    file, endpoint = files[0], settings.trust_endpoint()
    revision = file.revision
    if settings.offline():
        raise Offline(
            f"{file.label}: the sha256 of {file.address} has to be requested from {endpoint}, and "
            "vitzoo is offline; with a network, unset VITZOO_OFFLINE, HF_HUB_OFFLINE and "
            "TRANSFORMERS_OFFLINE"
        )
    request = _Request(file, endpoint, fix)
    commit, siblings, terms = request.metadata()
    if len(revision) == 40 and commit != revision:
        raise PinError(
            f"{file.address}: {endpoint} answered with commit {commit}; try again, or find out "
            "who changed the repository"
        )
    found = []
    for one in files:
        request.ask_about(replace(one, entry=replace(one.entry, **terms)))  # for errors
        pin, data = request.stated(commit, siblings)
        found.append(replace(one, pin=pin, data=data))
    return found


def names_at(file: HubFile) -> list[str]:
    """Return the names of all files at the revision of a file, which one request asks for.

    Raises:
        NetworkError, PinError: as `request_pin`.
    """
    request = _Request(file, settings.trust_endpoint(), FIX)
    return sorted(name for name in request.metadata()[1] if valid_file(name))


def _where(file: HubFile, endpoint: str) -> str:
    name = file.label if file.label == file.address else f"{file.label}: {file.address}"
    return f"{name}: {endpoint}"


class _Request(Exchange):
    """Requests about a file's repository to the trusted Hub endpoint."""

    def __init__(self, file: HubFile, endpoint: str, fix: str) -> None:
        limits = settings.limits()
        super().__init__(file, endpoint, limits, limits.metadata)
        self.endpoint, self.fix = endpoint, fix
        self.ask_about(file)
        self.rule = (
            f"the sha256 of a file is taken from {endpoint} alone. A login page or a proxy may "
            "have answered; check the network and VITZOO_TRUST_ENDPOINT"
        )

    def ask_about(self, file: HubFile) -> None:
        """Turn to another file of the repository; the waits of all count together."""
        self.file, self.failures = file, 0
        self.where = _where(file, self.endpoint)

    def metadata(self) -> tuple[object, dict[str, Mapping[str, Any]], dict[str, Any]]:
        """Return the commit of the revision, what is stated about its files, and the terms."""
        repo, revision = self.file.entry.repo, quote(self.file.revision, safe="")
        try:
            path = f"api/models/{repo}/revision/{revision}?blobs=true"
            metadata = strict_json(self._body_of(path, MAX_METADATA))
            files = {sibling["rfilename"]: sibling for sibling in metadata["siblings"]}
            return metadata.get("sha"), files, self._terms(metadata)
        except (ValueError, TypeError, LookupError) as error:
            raise RefusedResponse(
                f"{self.where} did not answer as a Hub does ({type(error).__name__}); a login page "
                f"or a proxy may have answered; {self.fix}"
            ) from error

    def _terms(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return license and gate of the repository, as an entry states them, or else the Hub."""
        entry, card = self.file.entry, metadata.get("cardData")
        card = card if isinstance(card, dict) else {}
        rows = [card.get(key) for key in ("license_name", "license")]
        named = (row for row in rows if isinstance(row, str) and LICENSE.fullmatch(row))
        gated = entry.gated or metadata.get("gated") in (True, "auto", "manual")
        return {"license": entry.license or next(named, ""), "gated": gated}

    def stated(
        self, commit: object, siblings: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Pin, bytes]:
        """Return the pin, `ABSENT` if the commit lacks the file, and the bytes of a config."""
        sibling = siblings.get(self.file.entry.file)
        if not (isinstance(commit, str) and COMMIT.fullmatch(commit)):
            raise self._unusable()
        if sibling is None:
            return Pin(commit, 0, ABSENT, self.endpoint), b""
        lfs = sibling.get("lfs")
        if self.file.small and not lfs:
            data = self._small(commit, sibling)
            return Pin(commit, len(data), hashlib.sha256(data).hexdigest(), self.endpoint), data
        lfs = lfs if isinstance(lfs, dict) else {}
        size, sha256 = lfs.get("size"), lfs.get("sha256")
        usable = isinstance(sha256, str) and SHA256.fullmatch(sha256)
        if not usable or type(size) is not int or size <= 0:
            raise self._unusable()
        if self.file.small and size > MAX_INDEX:
            raise PinError(f"{self.where} has {size} bytes, a config at most {MAX_INDEX}")
        return Pin(commit, size, str(sha256), self.endpoint), b""

    def _unusable(self) -> PinError:
        return PinError(
            f"{self.where} states no usable commit, size and LFS sha256 of the file; only files "
            "stored with LFS have a sha256 on a Hub"
        )

    def _small(self, commit: str, sibling: Mapping[str, Any]) -> bytes:
        """Return the bytes of a config, which must have the stated git hash."""
        file = quote(self.file.entry.file)
        data = self._body_of(f"{self.file.entry.repo}/resolve/{commit}/{file}", MAX_INDEX)
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if not data or sibling.get("blobId") != blob:
            raise PinError(
                f"{self.where} served {len(data)} bytes with git hash {blob}, and states git hash "
                f"{str(sibling.get('blobId'))[:SHOWN]!r}; try again"
            )
        return data

    def allows(self, before: httpx2.URL, after: httpx2.URL) -> bool:
        return len({(o.scheme, o.host, o.port, o.userinfo) for o in (before, after)}) == 1

    def failed(self, what: str, *, connected: bool = True) -> TransferError:
        if not connected:
            address = self.file.address
            label = "" if self.file.label == address else f"{self.file.label}: "
            return TransferError(
                f"cannot ask {self.endpoint} about {label}{address}: {what}", CONNECTING, self.fix
            )
        failure = TransferError(f"{self.where} cannot be reached: {what}; {self.fix}")
        failure.retry_after = 0.0
        return failure

    def _body_of(self, path: str, most: int) -> bytes:
        """Return the body, of at most `most` bytes, that the endpoint answers for a path."""

        def attempt() -> bytes:
            with self.response(f"{self.endpoint}/{path}", {}) as response:
                left = max(0.1, self.deadline - time.monotonic())
                return within(left, lambda: self._body(response, most))

        return self.tried(attempt)

    def _body(self, response: httpx2.Response, most: int) -> bytes:
        self.check_status(response, httpx2.codes.OK)
        if encoding := encoding_of(response):
            raise RefusedResponse(
                f"{self.where} sent a {encoding!r} body, expected plain JSON; a proxy may have "
                f"changed it; {self.fix}"
            )
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > most:
                raise RefusedResponse(f"{self.where} sent more than {most} bytes; {self.fix}")
        return bytes(body)
