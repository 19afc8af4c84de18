"""Weights at an https address that a user's registry file names, served over TLS on loopback."""

from __future__ import annotations

import hashlib
import itertools
import logging
import ssl
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses, says
from internals import import_file, reply
from vitzoo.errors import (
    AccessDenied,
    EntryNotFound,
    HashMismatch,
    IntegrityError,
    NetworkError,
    Offline,
    RefusedResponse,
    RegistryError,
    ServerError,
    SizeMismatch,
    TransferError,
)
from vitzoo.testing import Hub

# A certificate for 127.0.0.1 and its key, for tests only; it is its own authority.
CERTIFICATE = Path(__file__).with_name("loopback.pem")
SECRET = "sig=s3cret"


class Entry:
    """The entry `local/net:main`, whose file a server on loopback has.

    Attributes:
        server: the server, a `Hub` behind TLS.
        url: the address of the file.
    """

    def __init__(self, net, server):
        self.net, self.server = net, server
        self.url = f"https://{server.host}/files/net.safetensors"
        self.file = self.write()

    def write(self, **changes):
        """Write the registry file; `changes` replace keys of the entry (None removes)."""
        return self.net.register_own(**({"url": self.url} | changes))

    def fails(self, kind, *words):
        """Check that creating fails with this error, and that nothing of the file is kept."""
        with pytest.raises(kind) as caught:
            self.net.create()
        assert type(caught.value) is kind
        says(str(caught.value), "local/net:main", self.url, *words)
        assert not self.net.stored.exists()
        return str(caught.value)

    def headers(self, *names):
        """Return these headers of all requests to the server."""
        return [
            {k: v for k, v in headers.items() if k.lower() in names}
            for _, _, headers in self.server.requests
        ]


@pytest.fixture
def tls():
    """A server on loopback that speaks https, which serves every path."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with Hub() as server:
        plain = server._server.socket
        server._server.socket = context.wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False
        )
        yield server


@pytest.fixture
def entry(net, tls, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    tls.anything = net.data
    return Entry(net, tls)


def test_a_file_at_an_https_address_is_fetched_once(entry, net, hub):
    net.assert_right(net.create())
    net.assert_right(net.create())
    assert [path for _, path, _ in entry.server.requests] == ["/files/net.safetensors"]
    assert hub.requests == []  # no mirror, and no trusted Hub endpoint
    assert net.stored.read_bytes() == net.data
    assert not (net.home / "vitzoo.lock").exists()
    assert [row.state for row in vitzoo.verify("local/net")] == ["ok"]
    assert vitzoo.fetch("local/net:main") == net.stored


def test_an_interrupted_download_is_resumed_at_the_exact_byte(entry, net, faults):
    entry.server.script.append(faults.cut(7000))
    net.assert_right(net.create())
    assert entry.headers("range") == [{}, {"Range": "bytes=7000-"}]


def test_no_token_password_or_cookie_is_sent(entry, net, monkeypatch):
    """Not even to a host that may see the Hub token, and not after a redirect."""
    from huggingface_hub.utils import get_session

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", entry.server.host)
    get_session().cookies.set("session", "s3cret", domain="127.0.0.1")
    monkeypatch.setitem(get_session().headers, "authorization", "Bearer of-the-client")
    away = f"https://user:s3cret@{entry.server.host}/elsewhere/net.safetensors"
    moved = {"Location": away, "Set-Cookie": "session=s3cret; Path=/"}
    entry.server.script.append(lambda handler, _: reply(handler, 302, moved))
    net.assert_right(net.create())
    assert len(entry.server.requests) == 2
    assert entry.headers("authorization", "cookie") == [{}, {}]


def test_a_query_is_sent_and_never_shown(entry, faults, caplog):
    entry.write(url=f"{entry.url}?{SECRET}", license="proprietary")
    target = f"https://{entry.server.host}/blob?{SECRET}"
    entry.server.script.extend([faults.answer(302, {"Location": target}), faults.answer(404)])
    with caplog.at_level(logging.DEBUG, logger="vitzoo"):
        message = entry.fails(EntryNotFound, "404", "url")
    assert entry.server.requests[0][1].endswith(SECRET)
    says(caplog.text, "license proprietary", entry.url)
    assert "s3cret" not in message + caplog.text
    entry.server.script.append(faults.answer(302, {"Location": f"http://h.example/x?{SECRET}"}))
    assert "s3cret" not in entry.fails(RefusedResponse, "'http://h.example/x'", "https")


@pytest.mark.parametrize("target", ["http", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirect_to_anything_but_https_is_refused(entry, hub, faults, target):
    hub.anything = entry.net.data
    target = f"{hub.endpoint}/net.safetensors" if target == "http" else target
    entry.server.always = faults.answer(302, {"Location": target})
    entry.fails(RefusedResponse, repr(target), "https", "url")
    assert hub.requests == []


def test_endless_redirects_are_refused(entry, faults):
    entry.server.always = faults.answer(302, {"Location": "/again"})
    entry.fails(RefusedResponse, "8", "url")
    assert len(entry.server.requests) == 9


def test_wrong_bytes_are_refused(entry, net, faults):
    entry.server.always = faults.other(net.data[:-1] + b"?")
    wrong = hashlib.sha256(net.data[:-1] + b"?").hexdigest()
    entry.fails(HashMismatch, wrong, net.sha256)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_refused(entry, net, faults, change):
    entry.server.always = faults.other(net.data[:-1] if change < 0 else net.data + b"?")
    entry.fails(SizeMismatch, len(net.data) + change, len(net.data))
    assert net.kept == b""


def test_an_endless_body_is_stopped_at_the_pinned_size(entry, net, faults):
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    body = itertools.repeat(net.data)
    entry.server.always = faults.raw(itertools.chain([head], body))
    entry.fails(SizeMismatch, len(net.data))
    assert net.kept == b""


@pytest.mark.usefixtures("clock")
def test_a_huge_header_is_an_error(entry, faults):
    long = b"X-Long: " + b"x" * 1_000_000 + b"\r\n\r\n"
    entry.net.limit()
    entry.server.always = faults.raw([b"HTTP/1.1 200 OK\r\n", long])
    entry.fails(TransferError)


def test_a_server_that_never_answers_times_out(entry, faults):
    entry.net.limit(first_byte=0.5)
    entry.server.always = faults.silent
    message = entry.fails(TransferError, "vitzoo import")
    assert "VITZOO_ENDPOINTS" not in message  # mirrors have no such file


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, AccessDenied, ("token", "private repository")),
        (403, AccessDenied, ("token", "private repository")),
        (404, EntryNotFound, ("registry file",)),
        (410, EntryNotFound, ("registry file",)),
        (418, ServerError, ()),
    ],
)
def test_a_refusal_is_not_retried(entry, faults, status, kind, words):
    entry.server.always = faults.answer(status)
    message = entry.fails(kind, status, *words)
    assert "hf auth login" not in message
    assert len(entry.server.requests) == 1


def test_an_unknown_certificate_is_an_error(entry, monkeypatch):
    from huggingface_hub.utils import close_session

    monkeypatch.delenv("SSL_CERT_FILE")
    close_session()
    entry.fails(TransferError, "CERTIFICATE_VERIFY_FAILED")
    assert entry.server.requests == []


def test_offline_opens_no_socket(entry, net, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    entry.fails(Offline, net.sha256, len(net.data), "vitzoo import")
    copy = net.root / "copy"
    copy.write_bytes(net.data)
    assert import_file(copy) == ["faulty/net:main", "local/net:main"]
    net.assert_right(net.create())
    assert entry.server.requests == []


def test_mirrors_and_first_use_do_not_apply(entry, net, hub, monkeypatch):
    """Neither a mirror nor the trusted Hub endpoint is asked when the server fails."""
    hub.anything = net.data
    monkeypatch.setenv("VITZOO_ENDPOINTS", hub.endpoint)
    entry.server.anything = None
    with pytest.raises(NetworkError):
        net.create()
    assert hub.requests == []


def test_a_damaged_file_in_the_store_is_fetched_again(entry, net):
    net.create()
    net.stored.chmod(0o600)
    net.stored.write_bytes(b"x" * len(net.data))
    assert [row.state for row in vitzoo.verify("local/net")] == ["damaged"]
    net.assert_right(net.create())
    assert len(entry.server.requests) == 2
    net.monkeypatch.setenv("VITZOO_OFFLINE", "1")
    net.stored.chmod(0o600)
    net.stored.write_bytes(b"x" * len(net.data))
    with pytest.raises(IntegrityError):
        net.create()


PINS = {
    "sha256": ({"sha256": None}, "sha256"),
    "size": ({"size": None}, "size"),
    "predicted": ({"size": None, "predicted_size": 5}, "size"),
    "first-use": ({"pin": "first-use", "sha256": None}, "first use"),
    "short-hash": ({"sha256": "ab" * 31}, "64"),
    "revision": ({"revision": "ab" * 20}, "revision"),
    "gated": ({"gated": True}, "repo"),
    "file": ({"file": "model.safetensors"}, "file"),
    "repo": ({"repo": "acme/net", "file": "model.safetensors"}, "repo"),
    "path": ({"path": "model.safetensors"}, "path"),
}


@pytest.mark.parametrize(("changes", "word"), PINS.values(), ids=PINS)
def test_an_entry_without_a_complete_pin_is_refused(entry, net, changes, word):
    entry.write(**changes)
    with refuses(RegistryError, str(entry.file), "[variants.net.weights.main]", word):
        net.create()
    assert entry.server.requests == []


ADDRESSES = {
    "http": "http://host.example/x",
    "upper": "HTTPS://host.example/x",
    "file": "file:///etc/passwd",
    "ftp": "ftp://host.example/x",
    "user": "https://user@host.example/x",
    "password": "https://user:s3cret@host.example/x",
    "password-odd": "https://user:s3?cret@host.example/x",
    "password-slash": "https://user:s3/cret@host.example:1/x",
    "no-host": "https:///x",
    "no-path": "https://host.example",
    "folder": "https://host.example/",
    "port": "https://host.example:99999/x",
    "port-0": "https://host.example:0/x",
    "empty-label": "https://a..b/x",
    "long-label": f"https://{'a' * 70}.example/x",
    "umlaut": "https://hö.example/x",
    "cyrillic": "https://h\u043est.example/x",
    "control": "https://host.example/x\x01?s3cret",
    "newline": "https://host.example/x\n",
    "space": "https://host.example/a b",
    "backslash": "https://host.example\\@evil.example/x",
    "fragment": "https://host.example/x#y",
    "secret": "https://host.example:x/x?s3cret",
    "long": "https://host.example/" + "x" * 2048,
    "empty": "",
}


@pytest.mark.parametrize("url", ADDRESSES.values(), ids=ADDRESSES)
def test_an_unsafe_address_is_refused_without_its_secrets(entry, url):
    entry.write(url=url)
    with pytest.raises(RegistryError) as caught:
        entry.net.create()
    says(str(caught.value), "[variants.net.weights.main]", "url", "https address", "password")
    assert "s3" not in str(caught.value)
    assert entry.server.requests == []


@pytest.mark.parametrize(
    "url",
    ["https://a/x", "https://a.b-c.example:8443/x/y%20z/n.npz", "https://h.example/x?v=1&t=a/b"],
)
def test_ordinary_addresses_are_accepted(entry, url):
    entry.write(url=url)
    assert vitzoo.describe("local/net").weights[0].url == url


def test_registry_add_downloads_once_what_the_published_hash_names(entry, net, run, faults):
    """Size and network are measured; without the right hash nothing is written."""
    given = ("--variant", "faulty/net", "--license", "mit", "--source", "acme", "--json")
    before = entry.file.read_bytes()
    command = ("registry", "add", "products", f"{entry.url}?{SECRET}", *given, "--sha256")
    code, _, err = run(*command, "0" * 64)
    assert code == 3
    says(err, "local/products:main", net.sha256, "0" * 64)
    entry.server.script.append(
        faults.raw([b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n"])
    )
    code, _, more = run(*command, net.sha256)
    assert code == 3
    says(more, "99999999999999")
    assert entry.file.read_bytes() == before
    asked = len(entry.server.requests)
    code, out, last = run(*command, net.sha256)
    assert code == 0, last
    assert len(entry.server.requests) == asked + 1
    assert "s3cret" not in err + more + last
    assert f"{entry.url}?{SECRET}" in out  # the tables have the whole address
    net.forget()
    row = vitzoo.describe("local/products").default_weights
    assert (row.url, row.size, row.sha256) == (f"{entry.url}?{SECRET}", len(net.data), net.sha256)
    net.name = "local/products"
    net.assert_right(net.create())
    assert len(entry.server.requests) == asked + 1


def test_registry_add_is_offline_too(entry, net, run, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    given = ("--variant", "faulty/net", "--license", "mit", "--source", "acme")
    code, _, err = run("registry", "add", "products", entry.url, *given, "--sha256", net.sha256)
    assert code == 4
    says(err, entry.url, "offline", "path")
    assert entry.server.requests == []
