"""Download of a pinned file from a Hub endpoint or an https address; torch-free.

Bytes are hashed while they are written. File name, size and sha256 come from the pin, never from a
server. Redirects are followed here and not by the client, so that each host gets the token only if
it may see it. For an https address, no host gets one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import OfflineModeIsEnabled

from vitzoo.errors import (
    HashMismatch,
    NetworkError,
    Offline,
    RefusedResponse,
    SizeMismatch,
    TransferError,
    printable,
)
from vitzoo.files.names import without_query
from vitzoo.log import log
from vitzoo.settings import Limits, has_host
from vitzoo.store.hub_client import (
    CONNECTING,
    SHOWN,
    UNSET_OFFLINE,
    body,
    encoding_of,
    may_pass,
    proxies,
    refusal,
    retry_after,
    send,
    session,
    unreachable,
    whole,
    within,
)
from vitzoo.store.locks import pause
from vitzoo.text import megabytes

if TYPE_CHECKING:
    from vitzoo.store.hub_file import HubFile
    from vitzoo.store.partial_file import Partial
    from vitzoo.store.progress import Note

PROGRESS = 1024 * 1024  # bytes after which attempts are counted from zero again
OTHER_ENDPOINT = "set another endpoint in VITZOO_ENDPOINTS"
OTHER_ADDRESS = "check the url in the registry file"


class _Retry(Exception):
    """A temporary fault, after which the request is tried again.

    Args:
        error: the error to raise after the last attempt.
        asked: seconds that the server asks to wait, None if it does not ask.
        connected: whether a host had answered before.
    """

    def __init__(
        self, error: NetworkError, asked: float | None = None, *, connected: bool = True
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.asked = asked
        self.trace = self if connected else None  # without a network, its message tells all


def download(
    file: HubFile, endpoint: str, partial: Partial, limits: Limits, note: Note | None = None
) -> None:
    """Complete `partial` with the bytes of `file` from one endpoint, and check their sha256.

    The endpoint of a file with an https address is this address.

    After a lost or stalled connection or a server error, the download resumes at the exact byte.
    If the complete file has a wrong hash, it is downloaded once more from the beginning. After an
    error, a later call can resume the partial file, or it is empty.

    Raises:
        HashMismatch, SizeMismatch: the endpoint serves other bytes.
        NetworkError: one of its kinds.
    """
    _Download(file, endpoint, partial, limits, note or (lambda _done, _total: None)).run()


class _Download:
    def __init__(
        self, file: HubFile, endpoint: str, partial: Partial, limits: Limits, note: Note
    ) -> None:
        self.file, self.endpoint, self.partial = file, endpoint, partial
        self.limits, self.note = limits, note
        self.host = urlsplit(endpoint).netloc.rpartition("@")[2]
        self.where = f"{file}: {self.host}"
        self.expected = f"{file.size} bytes" if file.size else f"at most {file.bound} bytes"
        self.first_byte_by = time.monotonic() + limits.first_byte
        self.patience = limits.retry_after
        self.answered = False  # whether a host has answered
        self.unreached = False  # whether a connection failed before that
        self.kind = "from an earlier run"
        self.direct = True  # read bodies without the parser of httpx2
        self.other = OTHER_ADDRESS if file.entry.url else OTHER_ENDPOINT

    def run(self) -> None:
        clean_retries = 1
        failures, reached = 0, self.partial.size
        while True:
            before = self.partial.size
            try:
                self._attempt()
                self._check_hash()
            except HashMismatch:
                self.partial.restart()
                if not clean_retries:
                    raise
                clean_retries -= 1
                self.direct = False
            except _Retry as fault:
                if self.partial.size > before:
                    self.first_byte_by = time.monotonic() + self.limits.first_byte
                if self.partial.size >= reached + PROGRESS:
                    failures, reached = 0, self.partial.size
                failures += 1
                if failures >= self.limits.attempts:
                    raise fault.error from fault.trace
                self._pause(fault, 0.2 * 2**failures)
            else:
                return

    def _pause(self, fault: _Retry, seconds: float) -> None:
        """Wait before the next attempt; raise the error of the fault if the time is up."""
        if fault.asked:
            granted = min(fault.asked, self.patience)
            self.patience -= granted
            self.first_byte_by += granted
            seconds = max(seconds, granted) if granted else float("inf")
        if time.monotonic() + seconds > self.first_byte_by:
            raise fault.error from fault.trace
        log.info("%s; trying again in %.1f s", fault, seconds)
        pause(seconds)

    def _attempt(self) -> None:
        """Send one request and write the bytes of its answer."""
        complete = self.partial.size == self.file.size
        if complete or self.partial.sha256 == self.file.pin.sha256:
            return
        offset = self.partial.size
        with self._response(offset) as response:
            total = self._check_response(response, offset)
            self._write(response, total)
        if total is not None and self.partial.size < total:
            raise _Retry(
                self._transfer(f"the connection ended at byte {self.partial.size} of {total}")
            )

    @contextmanager
    def _response(self, offset: int) -> Iterator[httpx2.Response]:
        entry = self.file.entry
        url = entry.url or hf_hub_url(
            entry.repo, entry.file, revision=self.file.revision, endpoint=self.endpoint
        )
        try:
            with closing(self._follow(url, {"Range": f"bytes={offset}-"} if offset else {})) as it:
                yield it
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise RefusedResponse(
                f"{self.where}: the address cannot be used: {printable(str(error), SHOWN)}; "
                f"{self.other}"
            ) from error
        except httpx2.TransportError as error:
            what = printable(f"{type(error).__name__}: {error}".rstrip(": "), SHOWN) + proxies()
            self.unreached = self.unreached or (unreachable(error) and not self.answered)
            if self.unreached and not self.answered:
                until = time.monotonic() + self.limits.connect
                self.first_byte_by = min(self.first_byte_by, until)
                raise _Retry(self._no_network(what), connected=False) from error
            failure = self._transfer(what)
            raise failure if isinstance(error, httpx2.ProxyError) else _Retry(failure) from error
        except OfflineModeIsEnabled as error:
            raise Offline(f"{self.where}: {UNSET_OFFLINE}") from error

    def _follow(self, url: str, headers: dict[str, str]) -> httpx2.Response:
        most = self.limits.redirects
        for _ in range(most + 1):
            patience = max(0.1, self.first_byte_by - time.monotonic())
            timeout = httpx2.Timeout(patience, read=self.limits.stall)
            anonymous = bool(self.file.entry.url)
            request = functools.partial(send, session(), url, timeout, headers, anonymous=anonymous)
            response = within(patience, request)
            self.answered = True
            if not response.has_redirect_location:
                return response
            location = response.headers["location"]
            response.close()
            url = self._checked_redirect(url, location)
        raise RefusedResponse(f"{self.where} redirected more than {most} times; {self.other}")

    def _checked_redirect(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            before, after = urlsplit(url), urlsplit(str(httpx2.URL(target)))
            good = after.scheme in (before.scheme, "https") and has_host(target)
        except (ValueError, httpx2.InvalidURL):
            good = False
        if not good:
            raise RefusedResponse(
                f"{self.file}: {urlsplit(url).netloc} redirected to "
                f"{without_query(location)[:200]!r}, which is refused: https may redirect to https "
                f"only, http to both; {self.other}"
            )
        if after.netloc == before.netloc:
            places = map(without_query, (url, target))
            log.info("%s: %s redirects to %s", self.file, *places)
        return target

    def _check_response(self, response: httpx2.Response, offset: int) -> int | None:
        """Return the size of the whole file, None if the server does not state it."""
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            self.partial.restart()
            raise _Retry(self._transfer("the server refused to resume (416)"))
        if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            error = refusal(response, self.file, self.host)
            if may_pass(response.status_code):
                raise _Retry(error, retry_after(response))
            raise error
        self.kind = printable(response.headers.get("content-type", "no content type"), SHOWN)
        if encoding := encoding_of(response):
            raise RefusedResponse(
                f"{self.where} sent a {encoding!r} body, expected the file itself; a proxy may "
                "have changed it"
            )
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            return self._check_range(response, offset)
        total = whole(response.headers.get("content-length"))
        self._check_total(total)
        if offset:
            self.partial.restart()  # the server ignores ranges and sends everything
        return total if total is not None else self.file.size

    def _check_range(self, response: httpx2.Response, offset: int) -> int:
        text = response.headers.get("content-range", "")
        unit, _, rest = text.partition(" ")
        span, _, total = rest.partition("/")
        start, size = whole(span.partition("-")[0]), whole(total)
        if unit != "bytes" or start != offset or size is None or not offset:
            raise RefusedResponse(
                f"{self.where} answered with the range {text[:200]!r}, expected it to start at "
                f"byte {offset} of {self.expected}; nothing was appended; try again, or "
                f"{self.other}"
            )
        self._check_total(size)
        return size

    def _check_total(self, total: int | None) -> None:
        expected = self.file.size
        wrong = total is not None and (
            total > self.file.bound if expected is None else total != expected
        )
        if wrong:
            raise SizeMismatch(
                f"{self.where} offers {total} bytes ({self.kind}), expected {self.expected}; the "
                "answer may be an error page, a login page or another file"
            )

    def _write(self, response: httpx2.Response, total: int | None) -> None:
        bound = self.file.bound
        mark, marked = time.monotonic(), self.partial.size
        for chunk in body(response, self.limits.stall, direct=self.direct):
            if self.partial.size + len(chunk) > bound:
                self.partial.restart()
                raise SizeMismatch(
                    f"{self.where} sends more than {self.expected}; the download was stopped"
                )
            self.partial.write(chunk)
            self.note(self.partial.size, total or bound)
            now = time.monotonic()
            if now - mark >= self.limits.window:
                rate = (self.partial.size - marked) / (now - mark)
                if rate < self.limits.min_rate:
                    raise self._transfer(
                        f"only {rate:.0f} bytes per second arrived, expected at least "
                        f"{self.limits.min_rate:.0f} bytes"
                    )
                mark, marked = now, self.partial.size

    def _check_hash(self) -> None:
        size, actual = self.partial.size, self.partial.sha256
        if actual != self.file.pin.sha256:
            raise HashMismatch(
                f"{self.where} served {size} bytes ({self.kind}) with sha256 {actual}, "
                f"expected {self.expected} with sha256 {self.file.pin.sha256}; the "
                "registry or the file may be wrong; nothing was kept"
            )

    def _transfer(self, what: str) -> TransferError:
        return TransferError(
            f"{self.where}: {what}; {self.partial.size} bytes of the file are kept for "
            f"the next try; check the network, {self._otherwise()}"
        )

    def _no_network(self, what: str) -> TransferError:
        most = "" if self.file.size else "at most "
        size = f"{most}{megabytes(self.file.size or self.file.bound)}"
        return TransferError(
            f"{self.where}: {what}; the file ({size}) is needed once; {CONNECTING}; "
            f"{self._otherwise()} (docs/offline.md)"
        )

    def _otherwise(self) -> str:
        mirror = "" if self.file.entry.url else "set a mirror in VITZOO_ENDPOINTS, "
        return f"{mirror}or copy the file to this machine and run vitzoo import FILE"
