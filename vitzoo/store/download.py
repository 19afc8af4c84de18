"""Download of a pinned file from a Hub endpoint or an https address; torch-free.

Bytes are hashed while they are written. File name, size and sha256 come from the pin, never from a
server. The header of a redirect can only refuse a file.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
from huggingface_hub import hf_hub_url

from vitzoo.errors import (
    HashMismatch,
    RefusedResponse,
    SizeMismatch,
    TransferError,
    printable,
)
from vitzoo.files.names import COMMIT, SHA256, without_query
from vitzoo.installing import update
from vitzoo.log import log
from vitzoo.settings import Limits
from vitzoo.store.exchange import Exchange, Retry
from vitzoo.store.hub_client import CONNECTING, body, encoding_of, whole
from vitzoo.store.waiting import SHOWN
from vitzoo.text import megabytes

if TYPE_CHECKING:
    from vitzoo.progress import Note
    from vitzoo.store.hub_file import HubFile
    from vitzoo.store.partial_file import Partial

PROGRESS = 1024 * 1024  # bytes after which tries are counted from zero again
OTHER_ENDPOINT = "set another endpoint in VITZOO_ENDPOINTS"
OTHER_ADDRESS = "check the url in the registry file"


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


class _Download(Exchange):
    rule = "https may redirect to https only, http to both"

    def __init__(
        self, file: HubFile, endpoint: str, partial: Partial, limits: Limits, note: Note
    ) -> None:
        super().__init__(file, endpoint, limits, limits.first_byte)
        self.endpoint, self.partial, self.note = endpoint, partial, note
        self.where = f"{file}: {self.host}"
        self.fix = OTHER_ADDRESS if file.entry.url else OTHER_ENDPOINT
        self.expected = f"{file.size} bytes" if file.size else f"at most {file.bound} bytes"
        self.reached = partial.size  # when failures were last counted from zero
        self.kind = "from an earlier run"
        self.direct = True  # read bodies without the parser of httpx2

    def run(self) -> None:
        self.tried(self._attempt)
        if self.partial.sha256 != self.file.pin.sha256:
            self.partial.restart()
            self.direct = False
            self.tried(self._attempt)
        if (actual := self.partial.sha256) != self.file.pin.sha256:
            size = self.partial.size
            self.partial.restart()
            raise HashMismatch(
                f"{self.where} served {size} bytes ({self.kind}) with sha256 {actual}, expected "
                f"{self.expected} with sha256 {self.file.pin.sha256}; "
                f"{self._newer() or 'the registry or the file may be wrong; '}nothing was kept"
            )

    def allows(self, before: httpx2.URL, after: httpx2.URL) -> bool:
        return after.scheme in (before.scheme, "https")

    def redirected(self, response: httpx2.Response, target: str) -> None:
        """Refuse a redirect of the Hub to a file with another sha256; it proves nothing else."""
        etag = response.headers.get("x-linked-etag", "").strip('"')
        if SHA256.fullmatch(etag) and etag != self.file.pin.sha256:
            raise HashMismatch(
                f"{self.where} redirects to a file with sha256 {etag}, expected "
                f"{self.expected} with sha256 {self.file.pin.sha256}; {self._newer()}nothing was "
                "downloaded"
            )
        before = response.request.url
        if before.netloc == httpx2.URL(target).netloc:
            places = map(without_query, (str(before), target))
            log.info("%s: %s redirects to %s", self.file, *places)

    def _newer(self) -> str:
        """Return why a revision that can move may have other bytes; empty at a commit."""
        entry = self.file.entry
        if not entry.sha256 or not entry.repo or COMMIT.fullmatch(self.file.revision):
            return ""
        return (
            f"{self.file.revision} of {entry.repo} may have a newer file than the registry; "
            f"{update()}{self.file.instead}; or load the new file with "
            f"hf://{entry.repo}@COMMIT/{entry.file}; "
        )

    def _attempt(self) -> None:
        """Send one request and write the bytes of its answer."""
        complete = self.partial.size == self.file.size
        if complete or self.partial.sha256 == self.file.pin.sha256:
            return
        offset, entry = self.partial.size, self.file.entry
        url = entry.url or hf_hub_url(
            entry.repo, entry.file, revision=self.file.revision, endpoint=self.endpoint
        )
        with self.response(url, {"Range": f"bytes={offset}-"} if offset else {}) as response:
            total = self._check_response(response, offset)
            self._write(response, total)
        if total is not None and self.partial.size < total:
            raise self._again(f"the connection ended at byte {self.partial.size} of {total}")

    def _check_response(self, response: httpx2.Response, offset: int) -> int | None:
        """Return the size of the whole file, None if the server does not state it."""
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            self.partial.restart()
            raise self._again("the server refused to resume (416)")
        self.check_status(response, HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
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
                f"{self.fix}"
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
                f"{self.where} offers {total} bytes ({self.kind}), expected {self.expected}; "
                f"{self._newer()}the answer may be an error page, a login page or another file"
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
            if self.partial.size >= self.reached + PROGRESS:
                self.failures, self.reached = 0, self.partial.size
            now = time.monotonic()
            if now - mark >= self.limits.window:
                rate = (self.partial.size - marked) / (now - mark)
                if rate < self.limits.min_rate:
                    raise self.failed(
                        f"only {rate:.0f} bytes per second arrived, expected at least "
                        f"{self.limits.min_rate:.0f} bytes"
                    )
                mark, marked = now, self.partial.size

    def _again(self, what: str) -> Retry:
        return Retry(what, self.failed(what))

    def failed(self, what: str, *, connected: bool = True) -> TransferError:
        if not connected:
            most = "" if self.file.size else "at most "
            size = f"{most}{megabytes(self.file.size or self.file.bound)}"
            mirror = "" if self.file.entry.url else ", or set a mirror in VITZOO_ENDPOINTS"
            return TransferError(
                f"cannot download {self.file.label} ({size}) from {self.host}: {what}",
                f"{CONNECTING}{mirror}",
                f"or download {self.file.link} on another machine, and run vitzoo import FILE here "
                "(docs/trust.md#offline)",
            )
        mirror = "" if self.file.entry.url else "set a mirror in VITZOO_ENDPOINTS, "
        return TransferError(
            f"{self.where}{self.via}: {what}; {self.partial.size} bytes of the file are kept for "
            f"the next try; check the network, {mirror}or copy the file to this machine and run "
            "vitzoo import FILE"
        )
