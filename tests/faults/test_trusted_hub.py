"""Metadata of the trusted Hub: redirects, and the size and duration of an answer."""

from __future__ import annotations

import itertools
import json
import tracemalloc
import zlib

import httpx2
import pytest

import vitzoo
from vitzoo.errors import NetworkError, RefusedResponse, TransferError

ADDRESS = "hf://acme/net@main/model.safetensors"
API = "/api/models/acme/net/revision/main"


class Web:
    """Serves https and http hosts without sockets, and records each requested address."""

    def __init__(self):
        self.redirects = {}
        self.metadata = b""
        self.requests = []

    def __call__(self, request):
        address = str(request.url)
        self.requests.append(address)
        status, target = self.redirects.get(address.partition("?")[0], (200, None))
        headers = {"Location": target} if target else {}
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(self.metadata))


@pytest.fixture
def web(net, monkeypatch):
    """The trusted Hub is https://trusted.example; every host states the same sha256."""
    from huggingface_hub.utils import _http

    hosts = Web()
    lfs = {"size": len(net.data), "sha256": net.sha256, "pointerSize": 134}
    siblings = [{"rfilename": "model.safetensors", "lfs": lfs}]
    hosts.metadata = json.dumps({"id": "acme/net", "sha": "a" * 40, "siblings": siblings}).encode()
    client = httpx2.Client(transport=httpx2.MockTransport(hosts), follow_redirects=True)
    monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)
    monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", "https://trusted.example")
    monkeypatch.setenv("VITZOO_ENDPOINTS", "https://mirror.example")
    return hosts


REDIRECTS = [301, 302, 303, 307, 308]
PLAIN = "http://plain.example" + API


@pytest.mark.parametrize(
    ("status", "target"),
    [(status, PLAIN) for status in REDIRECTS]
    + [
        (307, target)
        for target in (
            "http://trusted.example" + API,
            "https://other.example" + API,
            "https://trusted.example:444" + API,
            "https://trusted.example@other.example" + API,
            "//other.example" + API,
            "file:///etc/passwd",
        )
    ],
)
def test_metadata_redirect_to_another_host_or_scheme_is_refused(net, web, status, target):
    start = f"https://trusted.example{API}"
    web.redirects[start] = (status, target)
    with pytest.raises(RefusedResponse) as caught:
        vitzoo.fetch(ADDRESS)
    message = str(caught.value)
    assert all(text in message for text in ("https://trusted.example", repr(target), ADDRESS))
    assert [address.partition("?")[0] for address in web.requests] == [start]
    assert not (net.home / "vitzoo.lock").exists()
    assert net.strays() == []


@pytest.mark.usefixtures("net", "clock")
@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("host", ["https://trusted.example", "https://TRUSTED.example:443", ""])
def test_metadata_redirect_on_the_same_host_is_followed(web, status, host):
    """A repository was renamed."""
    web.redirects[f"https://trusted.example{API}"] = (status, f"{host}/api/models/acme/new")
    with pytest.raises(NetworkError):
        vitzoo.fetch(ADDRESS)  # the mirror sends metadata instead of the file
    assert web.requests[1].startswith("https://trusted.example/api/models/acme/new")


def test_metadata_redirect_loop_ends(net, web):
    web.redirects[f"https://trusted.example{API}"] = (302, API)
    with pytest.raises(RefusedResponse, match="8"):
        vitzoo.fetch(ADDRESS)
    assert len(web.requests) == 9
    assert net.strays() == []


def test_endless_metadata_is_cut(net, hub, faults):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    sent = []

    def chunks():
        yield head
        for _ in range(1000):  # 1 GB
            sent.append(1_000_000)
            yield b"[" * 1_000_000

    hub.api = faults.raw(chunks())
    with pytest.raises(RefusedResponse) as caught:
        vitzoo.fetch(ADDRESS)
    assert "8388608 bytes" in str(caught.value)
    assert sum(sent) < 64_000_000
    assert net.strays() == []


HEADS = {
    "no-length": b"",
    "length": b"Content-Length: 4000000000\r\n",
    "chunked": b"Transfer-Encoding: chunked\r\n",
    "gzip": b"Content-Encoding: gzip\r\n",
    "more-gzip": b"Content-Encoding: identity, gzip, gzip\r\n",
    "redirect": b"Location: /api/models/acme/net\r\nContent-Length: 4000000000\r\n",
}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("status", ["200 OK", "307 Moved", "404 Not Found", "500 Oops"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_endless_answer_is_cut(net, hub, faults, status, head):
    """Few of the sent bytes are read, fewer are kept, and none are inflated."""
    sent = []
    member = zlib.compress(b"[" * 10_000_000, wbits=31)  # 10 KB
    body = member * 100 if b"gzip" in head else b"[" * 1_000_000
    piece = b"%x\r\n%s\r\n" % (len(body), body) if b"chunked" in head else body

    def chunks():
        yield f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n".encode()
        yield head + b"\r\n"
        for _ in range(1000):
            sent.append(len(piece))
            yield piece

    def answer(handler, path):
        faults.raw(chunks())(handler, path)

    hub.api = answer
    tracemalloc.start()
    try:
        with pytest.raises(NetworkError) as caught:
            vitzoo.fetch(ADDRESS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert hub.host in str(caught.value)
    assert peak < 32_000_000
    assert sum(sent) < 9 * 24_000_000, "8 MiB and what sockets buffer, for each redirect"
    assert net.strays() == []


def test_slow_metadata_meets_the_deadline(net, hub, faults):
    """A byte comes every 0.1 s, so that no single read is late."""
    net.limit(metadata=1.0, attempts=1)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    hub.api = faults.raw(itertools.chain([head], itertools.repeat(b" ", 300)), pause=0.1)
    with pytest.raises(TransferError, match=r"no answer within") as caught:
        vitzoo.fetch(ADDRESS)
    assert hub.endpoint in str(caught.value)
    assert net.strays() == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_metadata_is_refused(net, hub, faults, encoding):
    bomb = zlib.compress(b"[" * 10_000_000, wbits=31 if encoding == "gzip" else 15)
    hub.api = faults.answer(200, {"Content-Encoding": encoding}, bomb)
    with pytest.raises(RefusedResponse, match=encoding):
        vitzoo.fetch(ADDRESS)
    assert net.strays() == []
