"""Statuses, pages and headers that a Hub, or something posing as one, answers with."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

import vitzoo
from helpers import refuses, says
from vitzoo.errors import (
    AccessDenied,
    AuthenticationError,
    EntryNotFound,
    GatedRepo,
    HashMismatch,
    NetworkError,
    NotFoundOnHub,
    PinError,
    RefusedResponse,
    RepoNotFound,
    RevisionNotFound,
    ServerError,
    SizeMismatch,
    TransferError,
)

pytestmark = pytest.mark.usefixtures("clock", "net")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADDRESS = "hf://acme/net@main/model.safetensors"
COMMON = ("connection", "internet", "network")  # advice that would mislead


def in_seconds(seconds):
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def test_retry_after_in_seconds_is_honoured(net, hub, faults, clock):
    net.limit(first_byte=2)
    hub.script.append(faults.answer(429, {"Retry-After": "7"}))
    net.assert_right(net.create())
    assert clock.slept == [7.0]  # more than a try may take, as the server asks
    assert hub.ranges == [None, None]


def test_retry_after_as_a_date_is_honoured(net, hub, faults, clock):
    net.limit()
    hub.script.append(faults.answer(429, {"Retry-After": in_seconds(9)}))
    net.assert_right(net.create())
    (slept,) = clock.slept
    assert 5 < slept < 9.1  # less what a busy machine needs until it reads the answer


@pytest.mark.parametrize("text", ["junk", "-5", "", "1e9", "\xb2", "9" * 400, "Mon, 99 Foo 2026"])
def test_malformed_retry_after_is_ignored(net, hub, faults, clock, text):
    hub.script.append(faults.answer(429, {"Retry-After": text}))
    net.assert_right(net.create())
    assert clock.slept == [pytest.approx(0.4)]


@pytest.mark.parametrize(("status", "wait"), [(503, 0.4), (429, 8.0)])
def test_the_window_of_requests_counts_with_429_alone(net, hub, faults, clock, status, wait):
    """The Hub states it with every answer."""
    net.limit()
    hub.script.append(faults.answer(status, {"RateLimit": '"resolvers";r=0;t=7'}))
    net.assert_right(net.create())
    assert clock.slept == [pytest.approx(wait)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("999999", r" 999999 s\b"), ("Fri, 31 Dec 2999 23:59:59 GMT", r" \d{11} s\b")],
)
def test_long_retry_after_is_an_error_at_once(net, hub, faults, clock, text, seconds):
    """A shorter wait would be in vain; the error says what the server asks for."""
    net.limit()
    hub.always = faults.answer(429, {"Retry-After": text})
    assert re.search(seconds, net.fails(ServerError, " 429"))
    assert clock.slept == []
    assert hub.ranges == [None]
    net.recovers()


@pytest.mark.parametrize(
    ("asked", "timeout", "slept"),
    [
        (8, None, [8.0, 13.0, 33.0, 38.0]),
        (150, None, [150.0, 155.0]),
        (8, "20", [8.0, 13.0]),
        (8, "5", []),
    ],
    ids=["tries", "window", "timeout", "short-timeout"],
)
def test_repeated_429_ends_within_the_wait_limit(
    net, hub, faults, clock, monkeypatch, asked, timeout, slept
):
    """At most five tries, and 330 s of asked waits or VITZOO_TIMEOUT; later ones are spread."""
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    monkeypatch.delenv("VITZOO_TIMEOUT")
    if timeout:
        monkeypatch.setenv("VITZOO_TIMEOUT", timeout)
    hub.always = faults.answer(429, {"Retry-After": str(asked)})
    net.fails(ServerError, " 429", f" {asked} s")
    assert clock.slept == slept
    assert len(hub.ranges) == len(slept) + 1
    net.recovers()


@pytest.mark.parametrize(("asked", "level"), [(3, "WARNING"), (1, "INFO")])
def test_a_wait_of_over_two_seconds_is_said(net, hub, faults, caplog, asked, level):
    caplog.set_level("INFO", "vitzoo")
    net.limit()
    hub.script.append(faults.answer(429, {"Retry-After": str(asked)}))
    net.create()
    (said,) = (r for r in caplog.records if "trying again" in r.message)
    assert said.levelname == level
    says(said.message, "faulty/net:main", hub.host, "429", f"{asked}.0 s")


def test_retry_after_in_the_past_is_ignored(net, hub, faults):
    hub.always = faults.answer(429, {"Retry-After": in_seconds(-1000)})
    net.limit(first_byte=30)
    message = net.fails(ServerError, " 429")
    assert not re.search(r"\d s\b", message), "the server asks for no wait that is still ahead"
    assert len(hub.ranges) == 5


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_one_5xx_answer_is_retried(net, hub, faults, status):
    hub.script.append(faults.answer(status))
    net.assert_right(net.create())
    assert hub.ranges == [None, None]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_repeated_5xx_answers_are_an_error(net, hub, faults, status):
    net.limit(first_byte=30)
    hub.always = faults.answer(status, {"Content-Type": "text/html"}, b"<html>oops")
    net.fails(ServerError, f" {status}")
    assert hub.ranges == [None] * 5
    assert {method for method, _, _ in hub.requests} == {"GET"}  # there is no HEAD to fail
    net.recovers()


def test_5xx_answer_to_a_resumed_download_is_retried(net, hub, faults):
    net.limit(first_byte=30)
    hub.script.extend([faults.cut(5000), faults.answer(503)])
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=5000-", "bytes=5000-"]


@pytest.mark.parametrize("status", [500, 503])
def test_5xx_answer_of_the_trusted_endpoint_is_an_error(net, hub, faults, status):
    net.first_use()
    hub.api = faults.answer(status)
    with refuses(
        ServerError, "faulty/net:main", "acme/net/model.safetensors", hub.host, f" {status}"
    ):
        net.create()
    assert hub.file_requests() == []
    assert not (net.home / "vitzoo.lock").exists()
    hub.api = None
    net.recovers()


DENIED = {
    "401": (401, {}, AuthenticationError, " 401", "hf auth login"),
    "401-repo": (
        401,
        {"X-Error-Code": "RepoNotFound"},
        AuthenticationError,
        " 401",
        "hf auth login",
    ),
    "401-token": (
        401,
        {"X-Error-Message": "Invalid credentials in Authorization header"},
        AuthenticationError,
        " 401",
        "hf auth login",
    ),
    "403-gated": (403, {"X-Error-Code": "GatedRepo"}, GatedRepo, "gated", "hf auth login"),
    "401-gated": (401, {"X-Error-Code": "GatedRepo"}, GatedRepo, "gated", "hf auth login"),
    "403": (403, {}, AccessDenied, " 403", "token"),
    "403-disabled": (
        403,
        {"X-Error-Message": "Access to this resource is disabled."},
        AccessDenied,
        " 403",
        "token",
    ),
    "451": (451, {}, AccessDenied, " 451", "token"),
}


@pytest.mark.parametrize("row", DENIED.values(), ids=DENIED)
def test_denied_access_is_not_retried(net, hub, faults, row):
    status, headers, kind, *words = row
    hub.always = faults.answer(status, headers, b'["an error", {"page": 1}]')
    message = net.fails(kind, *words)
    assert hub.ranges == [None]
    assert not any(word in message for word in COMMON)
    net.recovers()


MISSING = {
    "repo": ("RepoNotFound", RepoNotFound, "repository"),
    "revision": ("RevisionNotFound", RevisionNotFound, f"revision {COMMIT}"),
    "entry": ("EntryNotFound", EntryNotFound, f"revision {COMMIT}"),
    "plain": (None, NotFoundOnHub, " 404"),
}


@pytest.mark.parametrize("row", MISSING.values(), ids=MISSING)
def test_missing_repository_revision_and_file_are_distinct_errors(net, hub, faults, row):
    code, kind, text = row
    hub.always = faults.answer(404, {"X-Error-Code": code}, b"<html>nothing here</html>")
    message = net.fails(kind, text)
    assert "endpoint" in message
    assert code is None or "registry" in message
    assert hub.ranges == [None]
    net.recovers()


@pytest.mark.parametrize("code", ["RepoNotFound", "RevisionNotFound", "GatedRepo"])
def test_gated_or_missing_repository_at_the_trusted_endpoint(net, hub, faults, code):
    hub.api = faults.answer(403 if code == "GatedRepo" else 404, {"X-Error-Code": code})
    kind = {"GatedRepo": GatedRepo, "RepoNotFound": RepoNotFound}.get(code, RevisionNotFound)
    with pytest.raises(kind, match=rf"acme/net@main/model\.safetensors: .*{hub.host}"):
        vitzoo.fetch(ADDRESS)
    assert hub.file_requests() == []
    assert net.strays() == []


@pytest.mark.parametrize("call", [vitzoo.fetch, vitzoo.create])
@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationError), (404, RepoNotFound)], ids=["401", "404"]
)
def test_a_repository_with_a_wrong_name_is_missing_or_private(hub, faults, call, status, kind):
    """The Hub answers 401 to a user without a token, and 404 to others."""
    hub.api = faults.answer(status, {"X-Error-Code": "RepoNotFound"})
    with refuses(kind, "repository acme/net", "private", "`hf auth login`"):
        call(ADDRESS)


def test_a_revision_with_a_slash_is_read_as_a_file(hub, faults):
    hub.api = faults.answer(404, {"X-Error-Code": "RevisionNotFound"})
    with refuses(RevisionNotFound, "no revision feature ", "branch, with %2F for a slash"):
        vitzoo.fetch("hf://acme/net@feature/x")


def test_file_that_the_trusted_endpoint_does_not_list(hub):
    with refuses(EntryNotFound, "hf://acme/net@main/other.safetensors", hub.endpoint):
        vitzoo.fetch("hf://acme/net@main/other.safetensors")
    assert hub.file_requests() == []


PAGE = b"<!DOCTYPE html><title>Welcome to the hotel</title>" + b" " * 2000


def test_captive_portal_page_is_refused_by_size(net, hub, faults):
    hub.always = faults.answer(200, {"Content-Type": "text/html"}, PAGE)
    net.fails(
        SizeMismatch,
        f"{len(PAGE)} bytes",
        "text/html",
        f"expected {len(net.data)} bytes",
        "page",
    )
    assert hub.ranges == [None]
    assert net.kept == b""
    net.recovers()


def test_captive_portal_page_of_the_right_size_is_refused_by_hash(net, hub, faults):
    page = PAGE.ljust(len(net.data))
    hub.always = faults.answer(200, {"Content-Type": "text/html"}, page)
    net.fails(HashMismatch, hashlib.sha256(page).hexdigest(), "text/html")
    assert hub.ranges == [None, None]
    net.recovers()


def test_captive_portal_page_without_content_length(net, hub, faults):
    """Shorter than the file and not cut: the hash is what tells."""
    net.register(pin="reported", size=None, predicted_size=len(net.data))
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n"
    hub.always = faults.raw([head, PAGE])
    net.fails(HashMismatch, f"{len(PAGE)} bytes", "text/html")
    net.recovers()


ANSWERS = {
    "page": (PAGE, RefusedResponse),
    "list": (b"[]", RefusedResponse),
    "null": (b"null", RefusedResponse),
    "empty": (b"{}", RefusedResponse),
    "number-siblings": (b'{"id": "acme/net", "siblings": 5}', RefusedResponse),
    "deep": (b"[" * 100_000, RefusedResponse),
    "nameless": (b'{"id": "acme/net", "siblings": [{}]}', RefusedResponse),
}


@pytest.mark.parametrize("row", ANSWERS.values(), ids=ANSWERS)
def test_captive_portal_in_place_of_the_trusted_endpoint(net, hub, faults, row):
    body, kind = row
    hub.api = faults.answer(200, {"Content-Type": "application/json"}, body)
    with pytest.raises(kind, match=hub.endpoint):
        vitzoo.fetch(ADDRESS)
    assert hub.file_requests() == []
    assert net.strays() == []


STATED = {
    "no-lfs": {"lfs": None},
    "short-sha": {"sha256": "abc"},
    "upper-sha": {"sha256": "A" * 64},
    "zero-size": {"size": 0},
    "text-size": {"size": "12"},
    "main-commit": {"sha": "main"},
}


@pytest.mark.parametrize("change", STATED.values(), ids=STATED)
def test_unusable_metadata_of_the_trusted_endpoint_is_refused(hub, faults, change):
    lfs = {"size": 5, "sha256": "a" * 64, "pointerSize": 1}
    lfs |= {k: v for k, v in change.items() if k in lfs}
    sibling = {"rfilename": "model.safetensors", "lfs": change.get("lfs", lfs)}
    info = {"id": "acme/net", "sha": change.get("sha", COMMIT), "siblings": [sibling]}
    hub.api = faults.answer(200, {"Content-Type": "application/json"}, json.dumps(info).encode())
    with pytest.raises((PinError, NetworkError), match=hub.endpoint):
        vitzoo.fetch(ADDRESS)
    assert hub.file_requests() == []


@pytest.mark.parametrize("commit", ["f" * 40, "main", "../../refs/main", "", "x" * 10_000])
def test_x_repo_commit_header_is_ignored(net, hub, faults, commit):
    """What the server calls the revision is ignored: the sha256 binds."""
    hub.always = faults.headers(X_Repo_Commit=commit)
    net.assert_right(net.create())
    assert not any("refs" in name for name in net.files())
    assert net.strays() == []


ETAGS = {
    "parent": '"../../x"',
    "absolute": '"/tmp/vitzoo-etag"',
    "long": "e" * 10_000,
    "empty": "",
    "folded": '"a\r\n b"',
    "weak": 'W/"../../../y"',
    "nul-like": '"%00%2e%2e%2f"',
}


@pytest.mark.parametrize("etag", ETAGS.values(), ids=ETAGS)
def test_etag_is_never_a_file_name(net, hub, faults, etag):
    """No header names a file: what lies under the root is the store and nothing else."""
    disposition = 'attachment; filename="../../escaped"'
    hub.always = faults.headers(
        ETag=etag, X_Linked_Etag=etag, Content_Disposition=disposition, X_File_Name="../../x"
    )
    net.assert_right(net.create())
    assert net.strays() == []
    name = net.sha256
    assert net.files() == [
        f"home/locks/{name}.lock",
        f"home/sha256/{name[:2]}/{name}",
        f"home/stamps/{name}.json",
    ]


def test_line_breaks_in_a_header_are_an_error(net, hub, faults):
    head = b'HTTP/1.1 200 OK\r\nETag: "a\r\rb\0c"\r\nContent-Length: 5\r\n\r\nhello'
    hub.always = faults.raw([head])
    net.limit(attempts=2)
    net.fails(TransferError, "RemoteProtocolError")
    assert net.strays() == []
    net.recovers()


def test_control_characters_of_a_server_are_escaped(net, hub, faults):
    """What a server says is cut short and escaped before it is shown."""
    net.limit(attempts=2)
    hub.always = faults.raw([b"\x1b[31m" + b"HTTP" * 20_000 + b"\r\n\r\n"])
    message = net.fails(TransferError, "RemoteProtocolError")
    assert len(message) < 600
    hub.always = faults.answer(200, {"Content-Type": "text/\x1b[31mred"}, b"x")
    message += net.fails(SizeMismatch, r"text/\x1b[31mred")
    assert message.isprintable()
    net.recovers()


def test_headers_that_contradict_the_pin_are_ignored(net, hub, faults):
    """There is no HEAD whose word could differ; sizes and hashes in headers prove nothing."""
    other = "0" * 64
    hub.always = faults.headers(ETag=f'"{other}"', X_Linked_Etag=f'"{other}"', X_Linked_Size="17")
    net.assert_right(net.create())
    assert [method for method, _, _ in hub.requests] == ["GET"]


def test_wrong_bytes_with_right_headers_are_refused(net, hub, faults):
    wrong = bytes(len(net.data))
    said = {"ETag": f'"{net.sha256}"', "X-Linked-Etag": f'"{net.sha256}"'}
    hub.always = faults.answer(200, said, wrong)
    net.fails(HashMismatch, hashlib.sha256(wrong).hexdigest())
    net.recovers()


def test_wrong_sha256_in_the_registry_is_a_mismatch(net, hub):
    """Nobody can tell which of the two is wrong, so the message names both."""
    wrong = net.sha256[::-1]
    net.register(sha256=wrong)
    message = net.fails(HashMismatch, f"expected {len(net.data)} bytes", "registry")
    assert re.search(f"{net.sha256}.*expected.*{wrong}", message)
    assert hub.ranges == [None, None]
    assert not (net.home / "sha256").exists()
    net.register()
    net.recovers()


def test_sha256_edited_after_the_download_is_a_mismatch(net, hub):
    """The identity is the sha256: a file stored under another one is not used."""
    net.assert_right(net.create())
    net.register(sha256=net.sha256[::-1])
    net.fails(HashMismatch, net.sha256, net.sha256[::-1], "registry")
    assert len(hub.ranges) == 3
    net.register()
    net.recovers()
    assert len(hub.ranges) == 3


def test_wrong_size_in_the_registry_is_a_mismatch(net, hub):
    net.register(size=len(net.data) + 1)
    net.fails(SizeMismatch, f"{len(net.data)} bytes", f"expected {len(net.data) + 1} bytes")
    assert hub.ranges == [None]
    net.register()
    net.recovers()
