"""Other origins: redirects, tokens and mirrors."""

from __future__ import annotations

import hashlib
import logging

import httpx2
import pytest

import vitzoo
from helpers import refuses
from vitzoo.errors import (
    HashMismatch,
    RefusedResponse,
    RevisionNotFound,
    ServerError,
    TransferError,
)

TOKEN = "hf_secret"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cdn(second_hub, net):
    """Another origin that serves the file under any path."""
    second_hub.anything = net.data
    return second_hub


@pytest.fixture
def token(net, monkeypatch):
    assert net.home
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def redirect(faults, target, status=302):
    return faults.answer(status, {"Location": target})


def tokens(hub):
    """Which requests that a server got carried a token."""
    for _, _, headers in hub.requests:
        assert TOKEN not in str({k: v for k, v in headers.items() if k.lower() != "authorization"})
    return ["authorization" in map(str.lower, headers) for _, _, headers in hub.requests]


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_token_is_not_sent_to_another_host_after_redirect(
    net, hub, cdn, faults, monkeypatch, status
):
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    hub.always = redirect(faults, f"{cdn.endpoint}/blob?signature=1", status)
    net.assert_right(net.create())
    assert tokens(hub) == [True]
    assert tokens(cdn) == [False]


@pytest.mark.usefixtures("token")
def test_token_is_decided_for_each_redirect(net, hub, cdn, faults, monkeypatch):
    """A (named) to B (not named) and back to A."""
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    hub.script.append(redirect(faults, f"{cdn.endpoint}/blob"))
    cdn.always = redirect(faults, f"{hub.endpoint}/acme/net/resolve/main/model.safetensors")
    net.assert_right(net.create())
    assert tokens(hub) == [True, True]
    assert tokens(cdn) == [False]


def test_resumed_download_follows_the_redirect_again(net, hub, cdn, faults):
    """A cut at the CDN: the Hub is asked again, as signed addresses expire."""
    hub.always = redirect(faults, f"{cdn.endpoint}/blob")
    cdn.script.append(faults.cut(7000))
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=7000-"]
    assert [headers.get("Range") for _, _, headers in cdn.requests] == [None, "bytes=7000-"]


def test_redirect_loop_is_refused(net, hub, faults):
    hub.always = redirect(faults, "/acme/net/resolve/x/model.safetensors")
    net.fails(RefusedResponse, " 8 ", "VITZOO_ENDPOINTS")
    assert len(hub.requests) == 9
    net.recovers()


@pytest.mark.parametrize(("hops", "good"), [(8, True), (9, False), (21, False)])
def test_more_than_8_redirects_are_refused(net, hub, faults, hops, good):
    hub.script.extend(redirect(faults, f"/hop/{n}/resolve/a/b") for n in range(hops))
    hub.always = faults.other(net.data)
    if good:
        net.assert_right(net.create())
    else:
        net.fails(RefusedResponse, " 8 ")
        net.recovers()


TARGETS = {
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/x",
    "data": "data:text/plain,x",
    "half-address": "http://[::1/x",
    "port": "http://127.0.0.1:99999999/x",
    "empty-label": "http://a..b/x",
    "long-label": f"http://{'a' * 70}.example/x",
    "control": "http://a\x01b/x",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_redirect_to_an_unsafe_target_is_refused(net, hub, faults, target):
    hub.always = redirect(faults, target)
    message = net.fails(RefusedResponse, repr(target)[:20], "https", "VITZOO_ENDPOINTS")
    assert "\x01" not in message
    assert len(hub.requests) == 1
    net.recovers()


@pytest.mark.parametrize("status", [300, 302, 304, 307])
def test_redirect_without_a_location_is_an_error(net, hub, faults, status):
    hub.always = faults.answer(status)
    net.fails(ServerError, f" {status}", "expected")
    assert len(hub.requests) == 1
    net.recovers()


class Web:
    """Serves https hosts without sockets, and notes who asked them what."""

    def __init__(self, **answers):
        self.answers = {host.replace("_", "."): answer for host, answer in answers.items()}
        self.requests = []

    def __call__(self, request):
        self.requests.append((request.url.scheme, request.url.host, request.headers))
        status, headers, body = self.answers[request.url.host]
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


@pytest.fixture
def web(net, monkeypatch):
    """Start a web of https hosts in place of huggingface_hub's client."""
    from huggingface_hub.utils import _http

    def start(endpoint, **answers):
        hosts = Web(**answers)
        client = httpx2.Client(transport=httpx2.MockTransport(hosts))
        monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)
        monkeypatch.setenv("VITZOO_ENDPOINTS", endpoint)
        return hosts

    assert net.data
    return start


@pytest.mark.usefixtures("token")
def test_redirect_from_https_to_http_is_refused(net, web):
    plain = (302, {"Location": "http://cdn.example/blob"}, b"")
    hosts = web("https://hub.example", hub_example=plain, cdn_example=(200, {}, net.data))
    with refuses(RefusedResponse, "hub.example", "'http://cdn.example/blob'", "https"):
        net.create()
    assert [(scheme, host) for scheme, host, _ in hosts.requests] == [("https", "hub.example")]


@pytest.mark.usefixtures("token")
def test_token_is_sent_to_the_official_hub_only(net, web):
    away = (302, {"Location": "https://cdn-lfs.hf.co/blob"}, b"")
    hosts = web(
        "https://huggingface.co",
        huggingface_co=away,
        cdn_lfs_hf_co=(200, {}, net.data),
        **{"cdn-lfs.hf.co": (200, {}, net.data)},
    )
    net.assert_right(net.create())
    sent = {host: headers.get("authorization") for _, host, headers in hosts.requests}
    assert sent == {"huggingface.co": f"Bearer {TOKEN}", "cdn-lfs.hf.co": None}


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize(
    "endpoint",
    ["http://huggingface.co", "https://huggingface.co:444", "https://huggingface.co.evil.example"],
)
def test_token_is_not_sent_to_a_lookalike_host(net, web, endpoint):
    host = httpx2.URL(endpoint).host
    hosts = web(endpoint, **{host: (200, {}, net.data)})
    net.assert_right(net.create())
    assert [headers.get("authorization") for _, _, headers in hosts.requests] == [None]


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("variable", ["VITZOO_ENDPOINTS", "HF_ENDPOINT"])
def test_token_is_not_sent_to_a_custom_endpoint(net, hub, monkeypatch, variable):
    monkeypatch.delenv("VITZOO_ENDPOINTS")
    monkeypatch.setenv(variable, hub.endpoint)
    net.first_use()
    net.assert_right(net.create())
    assert tokens(hub) == [False, False]  # the metadata and the file


@pytest.mark.usefixtures("token")
def test_token_is_sent_to_hosts_in_vitzoo_token_hosts(net, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", f"other.example, {hub.host}")
    net.first_use()
    net.assert_right(net.create())
    assert tokens(hub) == [True, True]
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for _, _, headers in hub.requests)


@pytest.mark.usefixtures("token")
def test_token_is_in_no_message(net, hub, faults, monkeypatch, caplog):
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    caplog.set_level(logging.INFO, "vitzoo")
    hub.always = faults.answer(401)
    from vitzoo.errors import AuthenticationError

    assert TOKEN not in net.fails(AuthenticationError)
    assert TOKEN not in caplog.text


def test_redirect_of_a_renamed_repository_is_followed_and_logged(net, hub, faults, caplog):
    caplog.set_level(logging.INFO, "vitzoo")
    hub.files["acme/renamed", "model.safetensors"] = net.data
    target = f"/acme/renamed/resolve/{'0' * 40}/model.safetensors"
    hub.script.append(redirect(faults, target, 307))
    net.assert_right(net.create())
    (line,) = [line for line in caplog.messages if f"{hub.endpoint}/acme/net/resolve" in line]
    assert f"{hub.endpoint}{target}" in line


def test_redirect_to_another_network_is_a_mismatch(net, hub, faults):
    other = bytes(len(net.data))
    hub.files["acme/renamed", "model.safetensors"] = other
    target = "/acme/renamed/resolve/main/model.safetensors"
    hub.script.extend([redirect(faults, target, 307), None] * 2)
    net.fails(HashMismatch, hashlib.sha256(other).hexdigest(), net.sha256)
    assert len(hub.requests) == 4
    net.recovers()


@pytest.fixture
def mirrors(net, hub, cdn, monkeypatch):
    assert net.data
    monkeypatch.setenv("VITZOO_ENDPOINTS", f"{cdn.endpoint}, {hub.endpoint}")
    return cdn, hub


def test_mirror_with_wrong_bytes_is_skipped(net, mirrors, faults, caplog):
    bad, good = mirrors
    bad.always = faults.other(bytes(len(net.data)))
    net.assert_right(net.create())
    assert (len(bad.requests), good.ranges) == (2, [None])  # nothing of the bad one is continued
    (line,) = [line for line in caplog.messages if bad.endpoint in line]
    assert "faulty/net:main" in line
    assert net.sha256 in line
    assert net.stored.read_bytes() == net.data
    assert net.strays() == []


def test_mirror_without_the_file_is_skipped(net, mirrors, faults, caplog):
    bad, good = mirrors
    bad.always = faults.answer(404, {"X-Error-Code": "RevisionNotFound"})
    net.assert_right(net.create())
    assert (len(bad.requests), good.ranges) == (1, [None])
    assert f"revision {COMMIT}" in caplog.text


@pytest.mark.usefixtures("clock")
def test_second_mirror_resumes_the_download_of_the_first(net, mirrors, faults):
    bad, good = mirrors
    net.limit(attempts=2)
    bad.always = faults.cut(8000)
    net.assert_right(net.create())
    assert good.ranges == ["bytes=8000-"]


@pytest.mark.usefixtures("clock")
def test_failure_of_every_mirror_is_reported(net, mirrors, faults):
    """Wrong bytes say more than a missing file; every mirror is reported."""
    bad, good = mirrors
    bad.always = faults.answer(404, {"X-Error-Code": "RevisionNotFound"})
    good.always = faults.other(bytes(len(net.data)))
    missing = (bad.endpoint, f"revision {COMMIT}", good.endpoint)
    net.fails(HashMismatch, *missing, net.sha256)
    good.always = faults.answer(503)
    net.fails(ServerError, *missing, " 503")
    good.always = bad.always
    net.fails(RevisionNotFound, bad.endpoint, good.endpoint)
    net.recovers()


def test_mirrors_do_not_replace_the_trusted_endpoint(net, mirrors, monkeypatch):
    """Both mirrors agree on other bytes; only the trusted Hub endpoint states the sha256."""
    bad, good = mirrors
    monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", "http://127.0.0.1:9")
    net.first_use()
    with pytest.raises(TransferError, match=r"(?s)http://127\.0\.0\.1:9 .*mirror"):
        vitzoo.fetch(net.name)
    assert bad.requests == good.requests == []
