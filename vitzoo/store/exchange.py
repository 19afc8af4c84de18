"""Requests about one file to one host: tries, waits, redirects and the user's token; torch-free.

Redirects are followed here and not by the client, so that each host gets the token only if it may
see it. For an https address, no host gets one.
"""

from __future__ import annotations

import functools
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub.errors import OfflineModeIsEnabled

from vitzoo.errors import NetworkError, Offline, RefusedResponse, printable
from vitzoo.files.names import without_query
from vitzoo.log import log
from vitzoo.settings import Limits, has_host, may_see_token
from vitzoo.store.hub_client import (
    DENIED,
    UNSET_OFFLINE,
    is_gated,
    may_pass,
    proxies,
    refusal,
    refused_twice,
    retry_after,
    send,
    session,
    unreachable,
)
from vitzoo.store.locks import NOTICE, pause
from vitzoo.store.token import token_place, user_token
from vitzoo.store.waiting import SHOWN, within

if TYPE_CHECKING:
    from vitzoo.store.hub_file import HubFile

Result = TypeVar("Result")
_without_token: set[str] = set()  # hosts that refused it and answered without it


class Retry(Exception):
    """A temporary fault, after which the request is tried again.

    Args:
        what: happened, for the log.
        error: the error to raise after the last try.
        asked: seconds that the server asks to wait.
        connected: whether a host has answered.
    """

    def __init__(
        self, what: str, error: NetworkError, asked: float = 0.0, *, connected: bool = True
    ) -> None:
        super().__init__(what)
        self.error, self.asked = error, asked
        self.trace = self if connected else None  # without a network, its message tells all


class Exchange(ABC):
    """Requests about a file to one host; a subclass states where redirects may lead, and errors.

    Args:
        file, endpoint: what is requested, and the address of the host.
        limits: of time and tries.
        seconds: of each try until its answer begins.
    """

    where: str  # the file and the host, for messages
    fix: str  # end of messages about answers that are refused
    rule: str  # where redirects may lead, for a message

    def __init__(self, file: HubFile, endpoint: str, limits: Limits, seconds: float) -> None:
        self.file, self.limits, self.seconds = file, limits, seconds
        self.host = self.asked = urlsplit(endpoint).netloc.rpartition("@")[2]
        self.failures, self.patience = 0, limits.retry_after
        self.answered = False  # whether a host has answered
        self.until = math.inf  # when tries end, as long as none has
        self.deadline = math.inf  # of this try
        self.connecting = False

    @property
    def via(self) -> str:
        """The host that a redirect led to, for messages."""
        return "" if self.asked == self.host else f", redirected to {self.asked}"

    @abstractmethod
    def allows(self, before: httpx2.URL, after: httpx2.URL) -> bool:
        """Tell whether a redirect may lead from one address to another."""

    @abstractmethod
    def failed(self, what: str, *, connected: bool = True) -> NetworkError:
        """Return the error for a lost connection, or for one that was never made."""

    def redirected(self, response: httpx2.Response, target: str) -> None:  # noqa: B027  # optional
        """Look at a redirect that is followed."""

    def tried(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of `attempt`, or raise the error of the last try that it ends with."""
        while True:
            self.deadline = min(time.monotonic() + self.seconds, self.until)
            try:
                return attempt()
            except Retry as fault:
                self._wait(fault)

    def _wait(self, fault: Retry) -> None:
        """Wait before the next try; raise the error of the fault if there is none."""
        self.failures += 1
        seconds = max(0.2 * 2**self.failures, fault.asked)
        if fault.asked and self.failures > 1:  # more clients wait for one window than it answers
            seconds += random.uniform(0.0, min(60.0, 2.0 * 5.0 ** (self.failures - 1)))  # noqa: S311
        too_long = fault.asked > self.patience or time.monotonic() + seconds > self.until
        if too_long or self.failures >= self.limits.attempts:
            raise fault.error from fault.trace
        self.patience -= fault.asked
        say = log.warning if seconds > NOTICE else log.info
        say("%s: %s; trying again in %.1f s", self.where, str(fault), seconds)
        pause(seconds)

    @contextmanager
    def response(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Yield the answer to a request, its body not yet read; a lost connection is a `Retry`."""
        try:
            with closing(self._followed(url, headers)) as answer:
                yield answer
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise RefusedResponse(
                f"{self.where}: the address cannot be used: {printable(str(error), SHOWN)}; "
                f"{self.fix}"
            ) from error
        except httpx2.TransportError as error:
            what = printable(f"{type(error).__name__}: {error}".rstrip(": "), SHOWN) + proxies()
            alone = unreachable(error) or self.connecting or self.until < math.inf
            if alone and not self.answered:
                self.until = min(self.until, time.monotonic() + self.limits.connect)
                raise Retry(what, self.failed(what, connected=False), connected=False) from error
            failure = self.failed(what)
            if isinstance(error, httpx2.ProxyError):
                raise failure from error
            raise Retry(what, failure) from error
        except OfflineModeIsEnabled as error:
            raise Offline(f"{self.where} cannot be reached: {UNSET_OFFLINE}") from error

    def check_status(self, response: httpx2.Response, *expected: int) -> None:
        """Raise the error for a response with another status; `Retry` if it may pass."""
        status = response.status_code
        if status in expected:
            return
        error = refusal(response, self.file, self.asked)
        if may_pass(status):
            raise Retry(f"status {status}", error, retry_after(response) or 0.0)
        raise error

    def _followed(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        for _ in range(self.limits.redirects + 1):
            response = self._answer(url, headers)
            self.answered, self.until = True, math.inf
            if not response.has_redirect_location:
                return response
            with closing(response):
                url = self._target(url, response.headers["location"])
                self.redirected(response, url)
        most = self.limits.redirects
        raise RefusedResponse(f"{self.where} redirected more than {most} times; {self.fix}")

    def _target(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            if has_host(target) and self.allows(httpx2.URL(url), httpx2.URL(target)):
                return target
        except (ValueError, httpx2.InvalidURL):
            pass
        host = urlsplit(url).netloc
        raise RefusedResponse(
            f"{self.where}{'' if host == self.host else f': {host}'} redirected to "
            f"{without_query(location)[:SHOWN]!r}, which is refused: {self.rule}; {self.fix}"
        )

    def _answer(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Return the answer of one host; if it denies access, ask once without the token.

        A host that then answers is asked without it from then on, and with it if it denies access.
        """
        began, may_see = time.monotonic(), not self.file.entry.url and may_see_token(url)
        token, host = user_token() if may_see else "", urlsplit(url).netloc.rpartition("@")[2]
        self.deadline += time.monotonic() - began  # a renewal takes no time of the try
        self.asked = host
        last = host in _without_token and not is_gated(self.file)  # whether the token comes second
        first = self._sent(url, headers, "" if last else token)
        if not token or first.status_code not in DENIED:
            return first
        with closing(first):
            second = self._sent(url, headers, token if last else "")
        if second.status_code in DENIED:
            second.close()
            pair = (second, first) if last else (first, second)
            raise refused_twice(*pair, self.file, host, token)
        if not last and not may_pass(second.status_code) and host not in _without_token:
            _without_token.add(host)
            log.warning(
                "%s refused the token of %s, and answered without it: the login is no longer valid "
                "for it; requests are sent without a token; run `hf auth login` again",
                *(host, token_place()),
            )
        return second

    def _sent(self, url: str, headers: Mapping[str, str], token: str) -> httpx2.Response:
        left = max(0.1, self.deadline - time.monotonic())
        timeout = httpx2.Timeout(left, read=self.limits.stall)
        call = functools.partial(send, session(), url, timeout, headers, token, self._trace)
        return within(left, call)

    def _trace(self, event: str, _: object) -> None:
        """Note whether a host name is looked up, or a connection is made."""
        if event.startswith("connection.connect_"):
            self.connecting = event.endswith(".started")
