"""The one network seam: a pinned file from a Hub endpoint into a partial file; torch-free.

Bytes are hashed while they are written. Nothing that a server says decides a file name, a size or
an identity: the pin does. Redirects are followed by hand, so that a token never reaches a host it
is not meant for.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
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
from vitzoo.settings import Limits, has_host
from vitzoo.store.hub_client import (
    SHOWN,
    headers_for,
    may_pass,
    proxies,
    refusal,
    retry_after,
    session,
    whole,
    within,
)
from vitzoo.store.hub_file import HubFile
from vitzoo.store.partial_file import Partial
from vitzoo.store.progress import Note

log = logging.getLogger("vitzoo")

PROGRESS = 1024 * 1024  # bytes after which attempts are counted anew


class _Retry(Exception):
    """A fault that may pass; carries the error to raise if it does not.

    Args:
        error: to raise in the end.
        asked: seconds that the server asks to wait, None if it asks for nothing.
    """

    def __init__(self, error: NetworkError, asked: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.asked = asked


def download(
    file: HubFile, endpoint: str, partial: Partial, limits: Limits, note: Note | None = None
) -> None:
    """Complete `partial` with the bytes of `file` from one endpoint, proven by their sha256.

    A cut, a stall or a server's fault is retried and resumed at the exact byte; a wrong hash is
    retried once from the beginning. After an error the partial file holds a resumable beginning,
    or nothing.

    Raises:
        HashMismatch, SizeMismatch: the endpoint serves other bytes.
        NetworkError: one of its kinds; nothing was proven.
    """
    _Download(file, endpoint, partial, limits, note or (lambda _done, _total: None)).run()


class _Download:
    def __init__(
        self, file: HubFile, endpoint: str, partial: Partial, limits: Limits, note: Note
    ) -> None:
        self.file, self.endpoint, self.partial = file, endpoint, partial
        self.limits, self.note = limits, note
        self.host = urlsplit(endpoint).netloc.rpartition("@")[2]
        self.first_byte_by = time.monotonic() + limits.first_byte
        self.patience = limits.retry_after
        self.kind = "kept from before"

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
            except _Retry as fault:
                if self.partial.size > before:
                    self.first_byte_by = time.monotonic() + self.limits.first_byte
                if self.partial.size >= reached + PROGRESS:
                    failures, reached = 0, self.partial.size
                failures += 1
                if failures >= self.limits.attempts:
                    raise fault.error from fault
                self._pause(fault, 0.2 * 2**failures)
            else:
                return

    def _pause(self, fault: _Retry, seconds: float) -> None:
        """Wait before the next attempt; raise the fault's error if there is no time for one."""
        if fault.asked:
            granted = min(fault.asked, self.patience)
            self.patience -= granted
            self.first_byte_by += granted
            seconds = max(seconds, granted) if granted else float("inf")
        if time.monotonic() + seconds > self.first_byte_by:
            raise fault.error from fault
        log.info("%s; trying again in %.1f s", fault, seconds)
        time.sleep(seconds)

    def _attempt(self) -> None:
        """Make one request and write what it brings."""
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
        url = hf_hub_url(
            self.file.entry.repo,
            self.file.entry.file,
            revision=self.file.revision,
            endpoint=self.endpoint,
        )
        try:
            response = self._follow(url, {"Range": f"bytes={offset}-"} if offset else {})
            try:
                yield response
            finally:
                response.close()
        except httpx2.ProxyError as error:
            what = printable(f"the proxy failed: {error}", SHOWN)
            raise self._transfer(what + proxies()) from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise RefusedResponse(
                f"{self.file}: {self.host}: the address cannot be used: "
                f"{printable(str(error), SHOWN)}; set another endpoint in VITZOO_ENDPOINTS"
            ) from error
        except httpx2.TransportError as error:
            what = printable(f"{type(error).__name__}: {error}".rstrip(": "), SHOWN)
            raise _Retry(self._transfer(what + proxies())) from error
        except OfflineModeIsEnabled as error:
            raise Offline(
                f"{self.file}: {self.host}: huggingface_hub is offline; unset HF_HUB_OFFLINE and "
                "TRANSFORMERS_OFFLINE, then start again"
            ) from error

    def _follow(self, url: str, headers: dict[str, str]) -> httpx2.Response:
        for _ in range(self.limits.redirects + 1):
            patience = max(0.1, self.first_byte_by - time.monotonic())
            timeout = httpx2.Timeout(patience, read=self.limits.stall)
            client = self._client()
            request = client.build_request(
                "GET", url, headers=headers_for(url) | headers, timeout=timeout
            )
            send = functools.partial(client.send, request, stream=True, follow_redirects=False)
            try:
                response = within(patience, send)
            except RuntimeError as error:  # others who share the client may have closed it
                raise httpx2.ConnectError(str(error)) from error
            if not response.has_redirect_location:
                return response
            location = response.headers["location"]
            response.close()
            url = self._checked_redirect(url, location)
        raise RefusedResponse(
            f"{self.file}: {self.host} redirected more than {self.limits.redirects} times; "
            "set another endpoint in VITZOO_ENDPOINTS"
        )

    def _client(self) -> httpx2.Client:
        try:
            return session()
        except ValueError as error:
            raise self._transfer(str(error)) from error

    def _checked_redirect(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            before, after = urlsplit(url), urlsplit(str(httpx2.URL(target)))
            good = after.scheme in (before.scheme, "https") and has_host(target)
        except (ValueError, httpx2.InvalidURL):
            good = False
        if not good:
            raise RefusedResponse(
                f"{self.file}: {urlsplit(url).netloc} redirected to {location[:200]!r}, which is "
                "refused: only https, or http from http; set another endpoint in VITZOO_ENDPOINTS"
            )
        if after.netloc == before.netloc:
            log.info("%s: %s redirects to %s", self.file, url, target)
        return target

    def _check_response(self, response: httpx2.Response, offset: int) -> int | None:
        """Return the size that the whole file will have, None if the server does not say."""
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            self.partial.restart()
            raise _Retry(self._transfer("the server refused to resume (416)"))
        self._check_status(response)
        self.kind = printable(response.headers.get("content-type", "no content type"), SHOWN)
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise RefusedResponse(
                f"{self.file}: {self.host} sent a {encoding[:50]!r} body, expected the file "
                "itself; a proxy may be rewriting downloads"
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
                f"{self.file}: {self.host} answered with the range {text[:200]!r}, asked from "
                f"byte {offset} of {self._expected_size()}; nothing was appended; try again, or "
                "set another endpoint in VITZOO_ENDPOINTS"
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
                f"{self.file}: {self.host} offers {total} bytes ({self.kind}), expected "
                f"{self._expected_size()}; it may be an error or login page, or another file"
            )

    def _check_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            return
        error = refusal(response, self.file, self.host)
        if may_pass(status):
            raise _Retry(error, retry_after(response))
        raise error

    def _write(self, response: httpx2.Response, total: int | None) -> None:
        bound = self.file.bound
        mark, marked = time.monotonic(), self.partial.size
        for chunk in response.iter_raw():
            if self.partial.size + len(chunk) > bound:
                self.partial.restart()
                raise SizeMismatch(
                    f"{self.file}: {self.host} sends more than {self._expected_size()}; stopped"
                )
            self.partial.write(chunk)
            self.note(self.partial.size, total or bound)
            now = time.monotonic()
            if now - mark >= self.limits.window:
                rate = (self.partial.size - marked) / (now - mark)
                if rate < self.limits.min_rate:
                    raise self._transfer(
                        f"only {rate:.0f} bytes per second came, at least "
                        f"{self.limits.min_rate:.0f} are expected"
                    )
                mark, marked = now, self.partial.size

    def _check_hash(self) -> None:
        size, actual = self.partial.size, self.partial.sha256
        if actual != self.file.pin.sha256:
            raise HashMismatch(
                f"{self.file}: {self.host} served {size} bytes ({self.kind}) with sha256 {actual}, "
                f"expected {self._expected_size()} with sha256 {self.file.pin.sha256}; the "
                "registry or the file may be wrong; nothing was kept"
            )

    def _expected_size(self) -> str:
        if self.file.size is not None:
            return f"{self.file.size} bytes"
        return f"at most {self.file.bound} bytes"

    def _transfer(self, what: str) -> TransferError:
        return TransferError(
            f"{self.file}: {self.host}: {what}; {self.partial.size} bytes are kept for the next "
            "try; check the network, set a mirror in VITZOO_ENDPOINTS, or carry the file here: "
            "vitzoo import FILE"
        )
