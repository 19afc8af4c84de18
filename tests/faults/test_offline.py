"""No network, a dead proxy, and other tools' caches."""

from __future__ import annotations

import importlib
import os
import re
import socket
import stat
import traceback
from pathlib import Path

import httpx2
import pytest

import vitzoo
from helpers import refuses
from internals import COMMIT
from vitzoo.errors import (
    IntegrityError,
    InvalidOption,
    Offline,
    RefusedResponse,
    TransferError,
)

PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY")


@pytest.fixture
def dead_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.fixture
def proxy(second_hub):
    return second_hub


def test_refused_connection_is_an_error(net, clock, monkeypatch, dead_port):
    net.limit(first_byte=5)
    monkeypatch.setenv("VITZOO_ENDPOINTS", f"http://{dead_port}")
    words = ("net:main", f"{dead_port}: ConnectError", "refused", "VITZOO_ENDPOINTS")
    with refuses(TransferError, *words):
        net.create()
    assert 1 <= len(clock.slept) <= 4
    assert sum(clock.slept) <= 3
    assert net.strays() == []


@pytest.mark.parametrize("first_use", [False, True])
def test_no_network_is_one_short_error(net, clock, monkeypatch, dead_port, first_use):
    """Nothing is said of the libraries below, and the message names what people have to set."""
    for name in ("VITZOO_ENDPOINTS", "VITZOO_TRUST_ENDPOINT"):
        monkeypatch.setenv(name, f"http://{dead_port}")
    monkeypatch.delenv("VITZOO_TIMEOUT")
    if first_use:
        net.first_use()
    link = f"https://huggingface.co/acme/net/resolve/{COMMIT}/model.safetensors"
    bring = (link, "vitzoo import FILE")
    needed = ("VITZOO_LOCK",) if first_use else ("0.0989 MB", "VITZOO_ENDPOINTS", *bring)
    words = ("net:main", dead_port, "HTTPS_PROXY", "SSL_CERT_FILE", "docs/trust.md", *needed)
    with refuses(TransferError, *words) as caught:
        net.create()
    assert sum(clock.slept) <= 3
    what, *fixes = str(caught.value).splitlines()
    assert what.startswith("cannot ask " if first_use else "cannot download ")
    assert len(what) < 160
    assert len(fixes) == 2
    trace = "".join(traceback.format_exception(caught.value))
    assert (trace.count("Traceback"), trace.count("httpx2/")) == (1, 0)


def test_a_host_that_has_answered_gets_all_retries(net, hub, clock, faults, monkeypatch):
    """A server that restarts refuses connections for some seconds."""
    module, real = importlib.import_module("vitzoo.store.exchange"), []

    def refused(*arguments, **options):
        real.append(arguments)
        if 1 < len(real) < 5:
            raise httpx2.ConnectError("[Errno 111] Connection refused")
        return send(*arguments, **options)

    send = module.send
    monkeypatch.setattr(module, "send", refused)
    net.limit(first_byte=10)
    hub.script.append(faults.cut(len(net.data) // 2))
    net.assert_right(net.create())
    assert clock.slept == pytest.approx([0.4, 0.8, 1.6, 3.2])


def test_dns_failure_is_an_error(net, clock, monkeypatch):
    net.limit(connect=1)
    monkeypatch.setenv("VITZOO_ENDPOINTS", "http://vitzoo.invalid")
    with refuses(TransferError, "net:main", " vitzoo.invalid: ", "VITZOO_ENDPOINTS"):
        net.create()
    assert sum(clock.slept) <= 1


def test_hanging_dns_lookup_times_out(net, clock, monkeypatch):
    """Looking a name up has no timeout of its own; it counts as no network."""
    import threading

    net.limit(first_byte=0.3, connect=1.0)
    released = threading.Event()

    def hang(*_arguments, **_options):
        released.wait(20)
        raise OSError("too late")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", hang)
        patch.setenv("VITZOO_ENDPOINTS", "http://slow.example")
        with pytest.raises(TransferError, match=r"slow\.example: ReadTimeout: .* 0\.3 s"):
            net.create()
        released.set()
    assert clock.slept == pytest.approx([0.4])  # another wait of 0.8 s would be too long
    net.recovers()


def test_malformed_endpoint_host_is_refused(net, monkeypatch):
    for host in ("a..b", f"{'a' * 70}.example", "half:port", "[::1"):
        monkeypatch.setenv("VITZOO_ENDPOINTS", f"http://{host}")
        with pytest.raises((InvalidOption, RefusedResponse), match=re.escape(host)):
            net.create()


@pytest.mark.parametrize("variable", PROXIES[:3])
def test_dead_proxy_is_named_without_its_password(
    net, hub, clock, monkeypatch, dead_port, variable
):
    monkeypatch.setenv(variable, f"http://user:secret@{dead_port}/")
    monkeypatch.setenv("NO_PROXY", "elsewhere.example")
    message = net.fails(TransferError, f"(proxy {dead_port})")
    assert "secret" not in message
    assert "elsewhere" not in message
    assert sum(clock.slept) <= 2
    assert hub.requests == []


def test_dead_proxy_on_the_way_to_the_trusted_endpoint_is_named(net, hub, monkeypatch, dead_port):
    monkeypatch.setenv("HTTP_PROXY", dead_port)
    net.first_use()
    with refuses(TransferError, hub.host, f"(proxy {dead_port})"):
        net.create()


def test_proxy_that_requires_a_password_is_named(net, hub, proxy, faults, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"user:secret@{proxy.host}")
    proxy.always = faults.answer(407, {"Proxy-Authenticate": "Basic"})
    message = net.fails(TransferError, "proxy", " 407", f"(proxy {proxy.host})")
    assert "secret" not in message
    assert (len(proxy.requests), hub.requests) == (1, [])


def test_https_proxy_that_requires_a_password_is_named(net, proxy, faults, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
    monkeypatch.setenv("VITZOO_ENDPOINTS", "https://hub.example")
    proxy.always = faults.answer(407, {"Proxy-Authenticate": "Basic"})
    with refuses(TransferError, " hub.example: ", "407", f"(proxy {proxy.host})"):
        net.create()
    assert [method for method, _, _ in proxy.requests] == ["CONNECT"]


@pytest.mark.parametrize("address", ["junk://127.0.0.1:1", "socks9://127.0.0.1:1"])
def test_proxy_of_an_unknown_scheme_is_an_error(net, hub, monkeypatch, address):
    monkeypatch.setenv("ALL_PROXY", address)
    net.fails(TransferError, "SSL_CERT_FILE", "(proxy 127.0.0.1:1)")
    assert hub.requests == []
    net.first_use()
    with refuses(TransferError, "SSL_CERT_FILE", "(proxy 127.0.0.1:1)"):
        net.create()


def test_missing_certificate_file_is_an_error(net, hub, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    net.fails(TransferError, "SSL_CERT_FILE")
    assert hub.requests == []


def test_socks_proxy_without_its_library_is_an_error(net, hub, monkeypatch, dead_port):
    monkeypatch.setenv("ALL_PROXY", f"socks5://{dead_port}")
    net.fails(TransferError, f"(proxy {dead_port})")
    assert hub.requests == []


def test_working_proxy_is_used(net, hub, proxy, faults, monkeypatch):
    proxy.always = faults.other(net.data)
    monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
    net.assert_right(net.create())
    assert (len(proxy.requests), hub.requests) == (1, [])


@pytest.fixture
def no_sockets(monkeypatch):
    """Count and refuse every use of the network."""
    used = []

    def refuse(*arguments, **_options):
        used.append(arguments)
        raise AssertionError(f"a socket was used: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    yield used
    assert used == []


OFFLINE = ("VITZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("variable", OFFLINE)
def test_offline_without_the_file_is_an_error_without_a_socket(net, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    for _ in range(2):
        link = f"https://huggingface.co/acme/net/resolve/{COMMIT}/model.safetensors"
        place = ("faulty/net:main", link, "the store", "offline")
        file = (f"sha256 {net.sha256}", f"{len(net.data)} bytes")
        fixes = ("vitzoo fetch faulty/net --weights main", "vitzoo import FILE")
        with refuses(Offline, *place, *file, *fixes):
            net.create()
    assert net.strays() == []
    assert net.kept == b""


@pytest.mark.usefixtures("no_sockets")
def test_offline_without_a_pin_is_an_error_without_a_socket(net, monkeypatch):
    net.first_use()
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with refuses(Offline, "hf://acme/net@main/model.safetensors", "sha256", "offline"):
        net.create()
    with pytest.raises(Offline):
        vitzoo.fetch("hf://acme/net@main/model.safetensors")


@pytest.mark.parametrize("variable", OFFLINE)
def test_offline_with_the_file_opens_no_socket(net, hub, monkeypatch, request, variable):
    net.create()
    monkeypatch.setenv(variable, "1")
    request.getfixturevalue("no_sockets")
    net.assert_right(net.create())
    assert vitzoo.fetch(net.name) == net.stored
    assert len(hub.requests) == 1


def test_offline_with_a_locked_file_opens_no_socket(net, hub, monkeypatch, request):
    net.first_use()
    net.create()
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    request.getfixturevalue("no_sockets")
    net.assert_right(net.create())
    assert len(hub.requests) == 2


def test_offline_with_a_damaged_file_is_a_mismatch(net, monkeypatch, request):
    """The first error reports the damage, the second one the missing file."""
    net.create()
    net.stored.chmod(0o644)
    net.stored.write_bytes(net.data[:-1] + b"\x01")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with monkeypatch.context() as patch:
        request.getfixturevalue("no_sockets")
        with pytest.raises(IntegrityError, match=f"damaged.*{net.sha256}") as caught:
            net.create()
        assert "network" not in str(caught.value)
        with pytest.raises(Offline):
            net.create()
        patch.undo()


def test_damaged_file_is_fetched_when_online_again(net, hub, monkeypatch):
    net.create()
    net.stored.chmod(0o644)
    net.stored.write_bytes(net.data[:-1] + b"\x01")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with pytest.raises(IntegrityError):
        net.create()
    monkeypatch.delenv("VITZOO_OFFLINE")
    net.assert_right(net.create())
    assert len(hub.requests) == 2


def test_huggingface_hub_imported_offline_is_named(net, hub, monkeypatch):
    """huggingface_hub remembers at import that it is offline; that is named, and no traceback."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    net.fails(Offline, "huggingface_hub", "offline", "HF_HUB_OFFLINE")
    net.first_use()
    with refuses(Offline, "hf://acme/net@main", "huggingface_hub", "HF_HUB_OFFLINE"):
        net.create()
    assert hub.requests == []


XET = "ab" * 32


@pytest.mark.parametrize("state", ["wrong-bytes", "down"])
def test_xet_headers_are_ignored(net, hub, second_hub, faults, state):
    """The file comes over HTTP from the endpoint; what is said of a Xet store is not followed."""
    wrong = faults.other(bytes(len(net.data)))
    second_hub.always = wrong if state == "wrong-bytes" else faults.reset
    route = f"{second_hub.endpoint}/api/models/acme/net/xet-read-token/main"
    hub.always = faults.headers(
        X_Xet_Hash=XET,
        X_Xet_Refresh_Route=route,
        X_Xet_Cas_Url=second_hub.endpoint,
        Link=f'<{route}>; rel="xet-auth", <{route}/x>; rel="xet-reconstruction-info"',
    )
    net.assert_right(net.create())
    assert second_hub.requests == []
    assert [method for method, _, _ in hub.requests] == ["GET"]
    assert net.strays() == []


def blob(net, data):
    """Put a blob into the user's Hub cache under the name of the right file."""
    path = net.hub_cache / "models--acme--net" / "blobs" / net.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def tree(net):
    """Everything in the user's Hub cache, and when it was changed."""
    return {
        path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns, path.lstat().st_nlink)
        for path in net.hub_cache.rglob("*")
    }


def test_hub_cache_blob_is_copied(net, hub):
    path = blob(net, net.data)
    before = tree(net)
    net.assert_right(net.create())
    assert hub.requests == []
    assert tree(net) == before
    assert path.stat().st_ino != net.stored.stat().st_ino  # a copy: neither linked nor mapped
    path.write_bytes(bytes(len(net.data)))
    net.assert_right(net.create())


def test_hub_cache_blob_is_copied_offline(net, hub, monkeypatch):
    blob(net, net.data)
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    net.assert_right(net.create())
    assert hub.requests == []


DAMAGE = {
    "flip": lambda data: data[:-1] + b"\x01",
    "zeros": lambda data: bytes(len(data)),
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
    "empty": lambda _data: b"",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("known", [True, False], ids=["size-known", "size-predicted"])
def test_damaged_hub_cache_blob_is_ignored_and_kept(net, hub, caplog, damage, known):
    if not known:
        net.register(pin="reported", size=None, predicted_size=len(net.data))
    path = blob(net, damage(net.data))
    before = tree(net)
    net.assert_right(net.create())
    assert hub.ranges == [None]
    assert tree(net) == before
    assert path.read_bytes() == damage(net.data)
    assert str(path) in caplog.text
    assert net.stored.read_bytes() == net.data


def test_poisoned_shared_xet_blob_is_ignored(net, hub):
    """Another repository put wrong bytes under the Xet hash that both share."""
    shared = net.hub_cache / "blobs" / XET[:2] / XET
    shared.parent.mkdir(parents=True)
    shared.write_bytes(bytes(len(net.data)))
    for repo in ("models--acme--net", "models--other--repo"):
        folder = net.hub_cache / repo / "blobs"
        folder.mkdir(parents=True)
        (folder / net.sha256).symlink_to(os.path.relpath(shared, folder))
    before = tree(net)
    net.assert_right(net.create())
    assert hub.ranges == [None]
    assert tree(net) == before
    assert shared.read_bytes() == bytes(len(net.data))


ODD_BLOBS = {
    "folder": Path.mkdir,
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("make", ODD_BLOBS.values(), ids=ODD_BLOBS)
def test_hub_cache_blob_that_is_no_file_is_ignored(net, hub, make):
    path = net.hub_cache / "models--acme--net" / "blobs" / net.sha256
    path.parent.mkdir(parents=True)
    make(path)
    mode = path.lstat().st_mode
    net.assert_right(net.create())
    assert hub.ranges == [None]
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFMT(mode)


@pytest.mark.parametrize("name", ["VITZOO_OFFLINE", "VITZOO_FROZEN"])
def test_unknown_value_of_a_switch_is_refused(monkeypatch, name):
    from vitzoo import settings
    from vitzoo.errors import InvalidOption

    monkeypatch.setenv(name, "maybe")
    with pytest.raises(InvalidOption, match=f"{name} must be 1 or 0.*'maybe'"):
        settings.offline() if name == "VITZOO_OFFLINE" else settings.frozen()
