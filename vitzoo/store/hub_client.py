"""Single requests to a Hub: headers, time limits, bodies and errors; torch-free."""

from __future__ import annotations

import platform
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, not in its __all__
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from vitzoo import __version__, errors
from vitzoo.errors import printable
from vitzoo.files.names import on_hub
from vitzoo.registry.repositories import known
from vitzoo.schema.addresses import SLASH
from vitzoo.store.locks import SLICE, check
from vitzoo.store.token import token_place
from vitzoo.store.waiting import SHOWN

if TYPE_CHECKING:
    from vitzoo.store.hub_file import HubFile

READ = 1024 * 1024  # bytes that are read from a connection at once
DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
NAMED_BRANCH = f"expected a commit, tag or branch, with {SLASH} for a slash in its name"
ELSEWHERE = "the registry may be out of date, or the endpoint an incomplete mirror"
UNSET_OFFLINE = (
    "huggingface_hub is offline; unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then start again"
)
LOG_IN = "log in with `hf auth login` or set HF_TOKEN to a token that may read it"
CONNECTING = "check the network, HTTPS_PROXY (proxy) and SSL_CERT_FILE (certificates)"
NAMED = f"check its name; if it is right, {LOG_IN}"


def session() -> httpx2.Client:
    """Return huggingface_hub's client.

    Raises:
        httpx2.ProxyError: the proxy or the certificate file of the environment cannot be used.
    """
    try:
        return get_session()
    except (ValueError, ImportError, OSError) as error:
        raise httpx2.ProxyError(f"cannot use the proxy or SSL_CERT_FILE: {error}") from error


def send(
    client: httpx2.Client,
    url: str,
    timeout: httpx2.Timeout,
    headers: Mapping[str, str],
    token: str,
    trace: Callable[[str, Any], None],
) -> httpx2.Response:
    """Return the answer to a GET request, its body not yet read; follow no redirect.

    A request without a token has no password and no cookie either.
    `huggingface_hub.utils.build_hf_headers` is not used: it requests the names of coding agents
    from HF_ENDPOINT, and writes them into HF_HOME.
    """
    every = {
        "user-agent": f"vitzoo/{__version__}; python/{platform.python_version()}",
        "accept-encoding": "identity",
    }
    request = client.build_request("GET", url, headers=every | dict(headers), timeout=timeout)
    request.extensions["trace"] = trace
    if token:
        request.headers["authorization"] = f"Bearer {token}"
        return client.send(request, stream=True, follow_redirects=False)
    for name in ("authorization", "cookie"):  # of the shared client
        request.headers.pop(name, None)
    return client.send(request, auth=httpx2.Auth(), stream=True, follow_redirects=False)


def body(response: httpx2.Response, stall: float, *, direct: bool) -> Iterator[bytes]:
    """Yield the body in pieces of at most `READ` bytes, without decoding it.

    httpx2 reads 64 KB at once, and its parser copies them twice. So if `direct` is True and the
    length is known, only the first piece comes from httpx2. The rest is read from the connection,
    which is closed afterwards.

    Args:
        response: its body not yet read.
        stall: seconds without a byte after which the connection counts as lost.
        direct: whether the rest may be read from the connection.

    Raises:
        httpx2.TransportError: the connection was lost.
    """
    pieces = response.iter_raw()
    first = next(pieces, b"")
    if first:
        yield first
    stream = response.extensions.get("network_stream")
    length = whole(response.headers.get("content-length"))
    left = 0 if length is None or "transfer-encoding" in response.headers else length - len(first)
    if not direct or stream is None or response.http_version != "HTTP/1.1" or left <= 0:
        for piece in pieces:
            check()
            yield piece
        return
    while left and (piece := _read(stream, min(left, READ), stall)):
        left -= len(piece)
        yield piece


def _read(stream: Any, most: int, stall: float) -> bytes:
    """Return the next bytes of a connection, at most `most`; none at its end."""
    until = time.monotonic() + stall
    while True:
        check()
        left = max(0.01, until - time.monotonic())
        try:
            piece: bytes = stream.read(most, timeout=min(SLICE, left))
        except httpcore2.ReadTimeout as error:
            if time.monotonic() >= until:
                raise httpx2.ReadTimeout(str(error)) from error
        except httpcore2.ReadError as error:
            raise httpx2.ReadError(str(error)) from error
        else:
            return piece


def encoding_of(response: httpx2.Response) -> str:
    """Return how a body is compressed, empty if it is not."""
    encoding = response.headers.get("content-encoding", "").strip().lower()[:50]
    return "" if encoding == "identity" else encoding


def may_pass(status: int) -> bool:
    """Tell whether the same request may succeed later."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def refusal(response: httpx2.Response, file: HubFile, host: str) -> errors.NetworkError:
    """Return the error for a response whose status is not a success."""
    status = response.status_code
    if file.entry.url:
        return _at_address(response, file, host)
    try:
        hf_raise_for_status(_without_body(response))
    except hub_errors.GatedRepoError:
        return _by_status(response, file, host, gated=True)
    except hub_errors.RevisionNotFoundError:
        fix = NAMED_BRANCH if on_hub(file.label) else ELSEWHERE
        return errors.RevisionNotFound(
            f"{file}: {host} has no revision {file.revision} of the repository; {fix}{file.instead}"
        )
    except hub_errors.RemoteEntryNotFoundError:
        return errors.EntryNotFound(
            f"{file}: {host} has no such file at revision {file.revision}; "
            f"{ELSEWHERE}{file.instead}"
        )
    except hub_errors.RepositoryNotFoundError:
        if status == HTTPStatus.NOT_FOUND:
            if on_hub(file.label):
                fix = f", or it is private; {NAMED}"
            else:
                fix = f"; {ELSEWHERE}{file.instead}"
            return errors.RepoNotFound(f"{file}: {host} has no repository {file.entry.repo}{fix}")
    except hub_errors.HfHubHTTPError:
        pass
    return _by_status(response, file, host, gated=status in DENIED and is_gated(file))


def is_gated(file: HubFile) -> bool:
    """Tell whether the repository of a file is known to be gated."""
    well_known = known(file.entry.repo)
    return file.entry.gated or (well_known is not None and well_known.gated)


def refused_twice(
    response: httpx2.Response, without: httpx2.Response, file: HubFile, host: str, token: str
) -> errors.NetworkError:
    """Return the error for a request that was refused with a token, and without it."""
    error, other = (refusal(one, file, host) for one in (response, without))
    reason = response.headers.get("x-error-message", "").replace(token, "***")
    what = f"the token of {token_place()}" + (f" ({printable(reason, SHOWN)})" if reason else "")
    code = response.headers.get("x-error-code", "")
    if code == "GatedRepo":  # the token is valid
        return error
    if response.status_code == HTTPStatus.UNAUTHORIZED and code != "RepoNotFound":
        fix = "log in again with `hf auth login`, or set HF_TOKEN"
        return type(other)(f"{host} refused {what}; {fix}; without it: {other}")
    return type(error)(f"{error}; it was asked with {what}")


def _at_address(response: httpx2.Response, file: HubFile, host: str) -> errors.NetworkError:
    """Return the error for a response of a host that is no Hub."""
    what = f"{file}: {host} answered {response.status_code}"
    match response.status_code:
        case (
            HTTPStatus.UNAUTHORIZED
            | HTTPStatus.FORBIDDEN
            | HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS
        ):
            return errors.AccessDenied(
                f"{what} and denies access; vitzoo sends no token to the url of an entry: serve "
                "the file without a login, put it into a private repository of the Hub, or "
                "download it yourself and run vitzoo import FILE"
            )
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return errors.EntryNotFound(
                f"{what}: there is no such file; correct the url in the registry file"
            )
    return _by_status(response, file, host, gated=False)


def _by_status(
    response: httpx2.Response, file: HubFile, host: str, *, gated: bool
) -> errors.NetworkError:
    what = f"{file}: {host} answered {response.status_code}"
    if gated:
        well_known = known(file.entry.repo)
        stated = file.entry.license or (well_known.license if well_known else "")
        license = f"(license {stated}) " if stated else ""  # noqa: A001
        return errors.GatedRepo(
            f"{what}: access to {file.entry.repo} is gated, so a token is needed; accept its terms "
            f"{license}on {file.page} with the account of the token, then {LOG_IN}"
        )
    match response.status_code:
        case HTTPStatus.UNAUTHORIZED:
            fix = NAMED if on_hub(file.label) else LOG_IN
            return errors.AuthenticationError(
                f"{what}: the repository {file.entry.repo} does not exist, or is private; "
                f"{fix}{file.instead}"
            )
        case HTTPStatus.FORBIDDEN | HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS:
            return errors.AccessDenied(f"{what} and denies access; check the rights of your token")
        case HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return errors.TransferError(
                f"{file}: a proxy on the way to {host} answered 407: it requires a user name and "
                f"a password{proxies()}"
            )
        case HTTPStatus.NOT_FOUND:
            return errors.NotFoundOnHub(f"{what}; is the endpoint a Hub?")
    if may_pass(response.status_code):
        asked = retry_after(response)
        error = errors.ServerError(
            f"{what}; try again {f'after {asked:.0f} s, as the server asks' if asked else 'later'}"
        )
        error.retry_after = asked or 0.0
        return error
    return errors.ServerError(f"{what}, expected the file; {ELSEWHERE}")


def _without_body(response: httpx2.Response) -> httpx2.Response:
    """Return the response without its body: `hf_raise_for_status` would read one of any size."""
    codes = {k: v for k, v in response.headers.items() if k.startswith("x-error-")}
    return httpx2.Response(response.status_code, headers=codes, request=response.request)


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds that a server asks to wait; None if its header is absent or malformed.

    With 429, the Hub states the seconds until its next window of requests in the header RateLimit.
    It sends that header with other answers, too, where it asks for no wait.
    """
    text = response.headers.get("retry-after")
    try:
        if text is None and response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            limit = parse_ratelimit_headers(response.headers)
            return None if limit is None else limit.reset_in_seconds + 1.0
        if text is None:
            return None
        if (number := whole(text)) is not None:
            return float(number)
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def whole(text: str | None) -> int | None:
    """Read a decimal number of at most 15 digits; None if it is anything else."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def unreachable(error: BaseException) -> bool:
    """Tell whether no connection was made: refused, no address for the name, or no answer."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def proxies() -> str:
    """Name the proxies in use for a message, without their passwords; empty if there are none."""
    found = {url for scheme, url in urllib.request.getproxies().items() if scheme != "no"}
    hosts = {url.rpartition("@")[2].rpartition("://")[2].rstrip("/") for url in found}
    return f" (proxy {', '.join(sorted(hosts))})" if hosts else ""
