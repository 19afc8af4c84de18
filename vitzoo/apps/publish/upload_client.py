"""huggingface_hub's client during an upload: time limits, no redirects, small answers; torch-free.

The client itself waits without a limit, and sends the body of a request again where a redirect
leads. huggingface_hub also repeats requests as often, and sleeps as long, as a server asks.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any
from urllib.parse import quote

import httpx2

from vitzoo import settings
from vitzoo.errors import RefusedResponse, ServerError, printable
from vitzoo.store.waiting import within

PATIENCE = 6  # times VITZOO_TIMEOUT: the Hub stores large files, and commits
SLOWEST = 16 * 1024  # bytes per second that are sent of a large file
FAILURES = 4  # answers with an error, and lost connections, in one upload
MOST = 1024 * 1024  # bytes of an answer
HEADERS = ("content-type", "etag", "x-error-code", "x-error-message")  # that are read of an answer
SHOWN = 200  # characters of a server's text in a message


class Guard:
    """The method `send` of a client, for what belongs to an upload.

    Downloads by other threads use the same client, and are sent as without this.

    Args:
        client: of huggingface_hub.
        endpoint: that may see token and cookies.
        where: repository and endpoint, for messages.
        token: of the user, which no message may have although a server may repeat it.
    """

    def __init__(self, client: httpx2.Client, endpoint: str, where: str, token: str) -> None:
        self.send, self.where = client.send, where
        forms = {token, json.dumps(token)[1:-1], quote(token, safe="")}
        self.secret = re.compile("|".join(map(re.escape, forms)) if token else r"(?!)")
        self.origin = httpx2.URL(endpoint).join("/")
        self.seconds = settings.limits().first_byte * PATIENCE
        self.failures = 0

    def __call__(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Return the answer to a request.

        Raises:
            OSError: there is no answer in time.
            RefusedResponse: the answer is a redirect, or too large.
            ServerError: the Hub has answered with errors too often.
            httpx2.ReadError: the connection was lost; huggingface_hub may try again.
        """
        ours = "vitzoo/" in request.headers.get("user-agent", "")
        if request.method not in ("POST", "PUT") and not ours:
            return self.send(request, **options)
        try:
            answer = self._answer(request)
        except httpx2.TransportError as error:
            said = str(error)
            text = printable(self._clean(said), SHOWN) or type(error).__name__
            cause = None if self.secret.search(said) else error
            self.failures += 1
            if not isinstance(error, httpx2.TimeoutException) and self.failures < FAILURES:
                raise httpx2.ReadError(text) from cause
            raise OSError(text) from cause  # which huggingface_hub does not try again
        self.failures += answer.is_error
        if self.failures >= FAILURES:
            raise ServerError(
                f"{self.where} answered {answer.status_code} after other errors; push again later"
            )
        return answer

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Return an answer with its body; raise if a byte, or all of it, takes too long."""
        request.extensions["timeout"] = httpx2.Timeout(self.seconds).as_dict()
        request.headers["accept-encoding"] = "identity"
        options: dict[str, Any] = {"stream": True, "follow_redirects": False}
        if request.url.join("/") != self.origin:
            options["auth"] = httpx2.Auth()
            for name in ("authorization", "cookie"):
                request.headers.pop(name, None)

        def call() -> httpx2.Response:
            with contextlib.closing(self.send(request, **options)) as found:
                return self._copied(found, request)

        size = int(request.headers.get("content-length", 0))
        return within(self.seconds + size / SLOWEST, call)

    def _copied(self, found: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        """Return an answer with its body, and no header that huggingface_hub would obey.

        The token is removed from all texts.
        """
        if found.has_redirect_location:
            place = printable(self._clean(found.headers["location"]), SHOWN)
            raise RefusedResponse(
                f"{self.where} redirected to {place}, and "
                "uploads follow no redirect; check the repository and VITZOO_TRUST_ENDPOINT"
            )
        text = bytearray()
        for piece in found.iter_raw():
            text += piece
            if len(text) > MOST:
                raise RefusedResponse(f"{self.where} sent more than {MOST} bytes; push again later")
        stated = found.headers
        headers = {name: self._clean(stated[name]) for name in HEADERS if name in stated}
        body = self._clean(text.decode("latin-1")).encode("latin-1")
        return httpx2.Response(found.status_code, headers=headers, content=body, request=request)

    def _clean(self, text: str) -> str:
        return self.secret.sub("***", text)
