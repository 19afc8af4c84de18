"""Wrong, short, long, encoded, cut and slow bodies."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
import zlib
from dataclasses import replace

import h11
import pytest
import safetensors.torch

from internals import from_address
from vitzoo.errors import (
    HashMismatch,
    RefusedResponse,
    ServerError,
    SizeMismatch,
    TransferError,
)
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain
from vitzoo.testing.hub import COMMIT

REPO = "acme/large"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def large(net):
    """A file of 4 MB on the Hub, with its bytes."""
    data = os.urandom(4 * 1024 * 1024)
    sha256 = net.hub.add(REPO, "large", data)
    entry = replace(from_address(f"hf://{REPO}@{COMMIT}/large"), sha256=sha256, size=len(data))
    return HubFile(entry, "large"), data


@pytest.fixture
def parsed(monkeypatch):
    """The number of bytes in each call of the parser of httpx2."""
    real, sizes = h11.Connection.receive_data, []

    def receive(self, data):
        sizes.append(len(data))
        return real(self, data)

    monkeypatch.setattr(h11.Connection, "receive_data", receive)
    return sizes


def obtained(file):
    with os.fdopen(obtain(file)[0], "rb") as opened:
        return opened.read()


def test_body_of_known_length_is_not_parsed(large, parsed):
    """The head and the first piece of the body are parsed, and the rest is read as it is."""
    file, data = large
    assert obtained(file) == data
    assert 0 < sum(parsed) < 200_000


@pytest.mark.parametrize("length", [False, True])
def test_body_in_chunks_is_parsed(large, hub, faults, parsed, length):
    file, data = large
    stated = b"\r\nContent-Length: %d\r\n\r\n" % len(data)
    head = CHUNKED.replace(b"\r\n\r\n", stated) if length else CHUNKED
    hub.script.append(faults.raw([head, b"%x\r\n" % len(data), data, b"\r\n0\r\n\r\n"]))
    assert obtained(file) == data
    assert sum(parsed) > len(data)
    assert hub.ranges == [None]


def test_body_is_parsed_after_wrong_bytes(large, hub, faults, parsed):
    """Were a byte lost between the parser and the rest, the second try would still be right."""
    file, data = large
    hub.script.append(faults.other(bytes(len(data))))
    assert obtained(file) == data
    assert sum(parsed) > len(data)
    assert len(hub.ranges) == 2


@pytest.mark.parametrize("reset", [False, True])
def test_body_that_ends_in_its_middle_is_resumed(large, hub, faults, reset):
    file, data = large
    hub.script.append(faults.cut(3_000_000, reset=reset))
    assert obtained(file) == data
    first, again = hub.ranges
    kept = int(again.removeprefix("bytes=").removesuffix("-"))
    assert first is None
    assert kept <= 3_000_000 if reset else kept == 3_000_000


def test_body_that_stalls_in_its_middle_is_resumed(net, large, hub, faults):
    net.limit(stall=0.3)
    file, data = large
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)

    def stall(handler, data):
        handler.wfile.write(head + data[:3_000_000])
        faults.silent(handler, data)

    hub.script.append(stall)
    assert obtained(file) == data
    assert hub.ranges == [None, "bytes=3000000-"]


def flipped(net):
    data = bytearray(net.data)
    data[-100] ^= 1
    return bytes(data)


def renamed(net):
    """Another valid safetensors of the same size: the right names, other numbers."""
    return safetensors.torch.save({k: v + 1 for k, v in net.model.state_dict().items()})


WRONG = {"bit-flip": flipped, "other-safetensors": renamed}


@pytest.fixture(params=WRONG.values(), ids=WRONG)
def wrong(request, net):
    data = request.param(net)
    assert len(data) == len(net.data)
    assert data != net.data
    return data


def test_wrong_bytes_are_refused(net, hub, faults, wrong):
    hub.always = faults.other(wrong)
    actual = hashlib.sha256(wrong).hexdigest()
    message = net.fails(
        HashMismatch,
        "application/octet-stream",
        f"expected {len(net.data)} bytes",
        "registry",
    )
    assert re.search(f"{len(wrong)} bytes.*{actual}.*expected.*{net.sha256}", message)
    assert hub.ranges == [None, None]  # one clean retry
    assert net.kept == b""
    assert not net.stored.exists()
    net.recovers()
    assert len(hub.ranges) == 3


def test_wrong_bytes_once_are_fetched_again(net, hub, faults, wrong):
    hub.script.append(faults.other(wrong))
    net.assert_right(net.create())
    assert hub.ranges == [None, None]
    assert net.stored.read_bytes() == net.data


def test_wrong_bytes_of_a_file_of_unknown_size_are_refused(net, hub, faults, wrong):
    net.register(pin="reported", size=None, predicted_size=len(net.data))
    hub.always = faults.other(wrong)
    net.fails(HashMismatch, f"expected at most {len(net.data) + 4096} bytes", net.sha256)
    assert hub.ranges == [None, None]
    net.recovers()


def test_wrong_bytes_for_a_hub_address_are_refused(net, hub, faults, wrong):
    """The trusted Hub endpoint states the sha256; a mirror that serves other bytes is refused."""
    import vitzoo

    hub.always = faults.other(wrong)
    with pytest.raises(HashMismatch, match=r"hf://acme/net@main/model\.safetensors"):
        vitzoo.fetch("hf://acme/net@main/model.safetensors")
    lock = json.loads((net.home / "vitzoo.lock").read_text())["weights"]
    assert all(pin["size"] == 0 for pin in lock.values())  # nothing is trusted that was not seen
    assert net.kept == b""


def test_short_body_is_refused_by_its_content_length(net, hub, faults):
    length = str(len(net.data) - 100)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    hub.always = faults.raw([head.encode()])  # and no body: it is not waited for
    net.fails(
        SizeMismatch,
        f"{length} bytes",
        "text/plain",
        f"expected {len(net.data)} bytes",
        "page",
    )
    assert hub.ranges == [None]
    assert net.kept == b""
    net.recovers()


def test_body_shorter_than_its_content_length_is_resumed(net, hub, faults):
    hub.script.append(faults.cut(1000))
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=1000-"]


def test_body_always_shorter_than_its_content_length_is_an_error(net, hub, faults, clock):
    net.limit(first_byte=30)
    hub.always = faults.cut(1000)
    net.fails(
        TransferError, "RemoteProtocolError", "1000 bytes", "VITZOO_ENDPOINTS", "vitzoo import"
    )
    assert hub.ranges == [None, *["bytes=1000-"] * 4]
    assert clock.slept == pytest.approx([0.4, 0.8, 1.6, 3.2])
    assert net.kept == net.data[:1000]
    net.recovers()
    assert hub.ranges[-1] == "bytes=1000-"


def test_short_body_without_content_length_is_resumed(net, hub, faults):
    hub.script.append(faults.raw([ENDLESS, net.data[:1000]]))
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=1000-"]


def test_long_body_is_refused_by_its_content_length(net, hub, faults):
    hub.always = faults.other(net.data + b"more")
    net.fails(SizeMismatch, f"{len(net.data) + 4} bytes", f"expected {len(net.data)} bytes")
    assert hub.ranges == [None]
    assert net.kept == b""
    net.recovers()


@pytest.mark.parametrize("head", [CHUNKED, ENDLESS], ids=["chunked", "until-closed"])
@pytest.mark.parametrize("known", [True, False], ids=["size-known", "size-predicted"])
def test_endless_body_is_stopped_at_the_pinned_size(net, hub, faults, monkeypatch, head, known):
    from vitzoo.store import partial_file

    if not known:
        net.register(pin="reported", size=None, predicted_size=len(net.data))
    bound = len(net.data) + (0 if known else 4096)
    sizes, sent = [], itertools.count()
    write = partial_file.Partial.write

    def watched(self, chunk):
        write(self, chunk)
        sizes.append(self.size)

    def pieces():
        yield head
        yield (
            b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in [net.data])
            if head == CHUNKED
            else (net.data)
        )
        while next(sent) < 10_000:
            yield b"2000\r\n" + bytes(0x2000) + b"\r\n" if head == CHUNKED else bytes(0x2000)

    monkeypatch.setattr(partial_file.Partial, "write", watched)
    hub.script.append(faults.raw(pieces()))
    net.fails(SizeMismatch, f"more than {'' if known else 'at most '}{bound} bytes")
    assert max(sizes) <= bound
    assert len(hub.ranges) == 1
    assert net.kept == b""
    net.recovers()
    assert next(sent) < 5000  # 40 MB: what fits into socket buffers, not more


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unheard"])
def test_compressed_body_is_refused(net, hub, faults, encoding):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding, bytes)
    body, more = pack(net.data), {"Content-Encoding": encoding}
    hub.always = faults.answer(200, more, body)
    net.fails(RefusedResponse, repr(encoding), "expected", "proxy")
    assert hub.ranges == [None]
    assert hub.requests[0][2]["accept-encoding"] == "identity"
    assert net.kept == b""
    net.recovers()


def test_gzip_bomb_is_not_inflated(net, hub, faults, monkeypatch):
    """A kilobyte that inflates to the right size, and beyond, is never inflated."""
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    hub.always = faults.answer(
        200, {"Content-Encoding": "gzip", "Content-Length": str(len(net.data))}, bomb
    )
    monkeypatch.setattr(zlib, "decompressobj", None)
    net.fails(RefusedResponse, "'gzip'")
    assert net.kept == b""
    net.recovers()


@pytest.mark.parametrize("status", [401, 403, 404, 416, 418, 500])
def test_gzip_bomb_in_an_error_answer_is_not_inflated(net, hub, faults, monkeypatch, status):
    """The body of an error is neither read nor inflated: it may be of any size."""
    from vitzoo.errors import NetworkError

    head = f"HTTP/1.1 {status} No\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    block = gzip.compress(bytes(1024 * 1024))
    sent = itertools.count()

    def pieces():
        yield head.encode()
        while next(sent) < 100_000:
            yield b"%x\r\n%b\r\n" % (len(block), block)

    net.limit(attempts=1)
    monkeypatch.setattr(zlib, "decompressobj", None)
    hub.always = faults.raw(pieces())
    with pytest.raises(NetworkError, match=f"{hub.host}.* {status}"):
        net.create()
    assert len(hub.ranges) == 1
    assert net.kept == b""
    assert next(sent) < 50_000
    net.recovers()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("share", [0.01, 0.6, 1.0])
def test_connection_closed_or_reset_in_the_body_is_resumed(net, hub, faults, reset, share):
    end = min(int(share * len(net.data)), len(net.data) - 1)
    hub.script.append(faults.cut(end, reset=reset))
    net.assert_right(net.create())
    assert hub.ranges == [None, f"bytes={end}-"]
    assert net.strays() == []


def test_connection_closed_several_times_is_resumed(net, hub, faults):
    net.limit(first_byte=30)
    ends = [1000, 2000, 2001, 50_000]
    hub.script.extend(faults.cut(end) for end in ends)
    net.assert_right(net.create())
    assert hub.ranges == [None, *(f"bytes={end}-" for end in ends)]


def test_partial_file_is_resumed_by_a_later_run(net, hub, faults):
    net.limit(attempts=1)
    hub.always = faults.cut(5000)
    net.fails(TransferError)
    hub.always = faults.cut(9000)
    net.fails(TransferError, "9000 bytes")
    net.recovers()
    assert hub.ranges == [None, "bytes=5000-", "bytes=9000-"]


def test_complete_partial_file_needs_no_request(net, hub):
    """A whole file left by a killed process is proven and used without a request."""
    partial = net.home / "partial" / net.sha256
    for known in (True, False):
        if not known:
            net.stored.unlink()
            net.register(pin="reported", size=None, predicted_size=len(net.data))
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(net.data)
        net.recovers()
        assert hub.ranges == []


def test_connection_reset_before_the_status_is_retried(net, hub, faults):
    hub.script.extend([faults.reset, faults.reset])
    net.assert_right(net.create())
    assert hub.ranges == [None] * 3


def test_repeated_connection_resets_are_an_error(net, hub, faults):
    net.limit(first_byte=30)
    hub.always = faults.reset
    net.fails(TransferError, " 0 bytes", "VITZOO_ENDPOINTS", "vitzoo import")
    assert hub.ranges == [None] * 5
    net.recovers()


def test_ignored_range_restarts_the_download(net, hub, faults):
    hub.script.extend([faults.cut(60_000), faults.answer(200, {}, net.data)])
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=60000-"]
    assert net.stored.read_bytes() == net.data


def test_login_page_in_answer_to_a_range_keeps_the_partial_file(net, hub, faults):
    """A page in answer to a range costs nothing of what is there."""
    page = b"<html>log in"
    hub.script.extend([faults.cut(60_000), faults.answer(200, {"Content-Type": "text/html"}, page)])
    net.fails(SizeMismatch, f"{len(page)} bytes", "text/html", f"expected {len(net.data)} bytes")
    assert net.kept == net.data[:60_000]
    net.recovers()
    assert hub.ranges[-1] == "bytes=60000-"


RANGES = {
    "none": None,
    "other-start": "bytes 0-{last}/{size}",
    "later-start": "bytes 50001-{last}/{size}",
    "no-total": "bytes 50000-{last}/*",
    "no-numbers": "bytes */{size}",
    "other-unit": "items 50000-{last}/{size}",
    "junk": "bytes 50000",
    "negative": "bytes -50000-{last}/{size}",
    "huge": "bytes 50000-{last}/99999999999999999999",
    "digits": "bytes \u0665-{last}/{size}",
}


@pytest.mark.parametrize("text", RANGES.values(), ids=RANGES)
def test_wrong_content_range_is_never_appended(net, hub, faults, text):
    size = len(net.data)
    said = (text or "").format(last=size - 1, size=size)
    hub.script.append(faults.cut(50_000))
    header = {"Content-Range": said.encode("utf-8").decode("latin-1") if text else None}
    hub.always = faults.answer(206, header, net.data[50_000:])
    net.fails(RefusedResponse, repr(said), " byte 50000 ", f" {size} bytes", "VITZOO_ENDPOINTS")
    assert hub.ranges == [None, "bytes=50000-"]
    assert net.kept == net.data[:50_000]
    net.recovers()
    assert hub.ranges[-1] == "bytes=50000-"


def test_content_range_with_a_wrong_total_is_refused(net, hub, faults):
    size = len(net.data)
    hub.script.append(faults.cut(50_000))
    hub.always = faults.answer(206, {"Content-Range": f"bytes 50000-{size}/{size + 1}"}, b"x" * 9)
    net.fails(SizeMismatch, f"{size + 1} bytes", f"expected {size} bytes")
    assert net.kept == net.data[:50_000]
    net.recovers()


def test_partial_content_without_a_range_request_is_refused(net, hub, faults):
    size = len(net.data)
    hub.always = faults.answer(206, {"Content-Range": f"bytes 0-{size - 1}/{size}"}, net.data)
    net.fails(RefusedResponse, f"bytes 0-{size - 1}/{size}", "byte 0")
    net.recovers()


def test_wrong_bytes_after_a_resume_are_fetched_again(net, hub, faults):
    """The appended bytes are of another file: found by the hash, fetched anew from the start."""
    hub.script.extend([faults.cut(50_000), faults.other(flipped(net))])
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=50000-", None]


def test_range_not_satisfiable_restarts_once(net, hub, faults):
    hub.script.extend([faults.cut(50_000), faults.answer(416)])
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=50000-", None]


def test_repeated_range_not_satisfiable_is_an_error(net, hub, faults):
    hub.script.append(faults.cut(50_000))
    hub.always = faults.answer(416)
    net.fails(ServerError, " 416", "expected")
    assert hub.ranges == [None, "bytes=50000-", None]
    net.recovers()


def test_stalled_body_is_resumed(net, hub, faults):
    """It lasts as long as a try for the first byte, as by default, and is resumed."""
    net.limit(first_byte=0.5, stall=0.5)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(net.data)

    def stall(handler, data):
        handler.wfile.write(head + data[:3000])
        faults.silent(handler, data)

    hub.script.append(stall)
    net.assert_right(net.create())
    assert hub.ranges == [None, "bytes=3000-"]


def test_server_that_never_answers_times_out(net, hub, faults):
    net.limit(first_byte=0.5, stall=0.5, attempts=2)
    hub.always = faults.silent
    net.fails(TransferError, "ReadTimeout: ")  # of the socket or of the clock, whichever is first
    assert hub.ranges == [None, None]
    net.recovers()


def test_transfer_below_the_minimum_rate_is_an_error(net, hub, faults):
    """Every read brings a byte, so no read times out; the rate is too low."""
    net.limit(window=0.3, min_rate=4096)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(net.data)
    bytewise = (net.data[i : i + 1] for i in range(len(net.data)))
    hub.script.append(faults.raw(itertools.chain([head], bytewise), pause=0.02))
    net.fails(TransferError, "bytes per second", " 4096 ", "VITZOO_ENDPOINTS", "vitzoo import")
    assert len(hub.ranges) == 1
    assert 0 < len(net.kept) < 300
    net.recovers()


HEADS = {
    "drip": (b"HTTP/1.1 200 OK\r\n", b"X-Drip: 1\r\n"),
    "informational": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize(("first", "again"), HEADS.values(), ids=HEADS)
def test_endless_response_head_times_out(net, hub, faults, first, again):
    """An answer whose head never ends is bounded by the time of one try."""
    net.limit(first_byte=0.5, attempts=1)
    hub.script.append(
        faults.raw(itertools.chain([first], itertools.repeat(again, 200)), pause=0.02)
    )
    net.fails(TransferError, " 0.5 s")
    assert len(hub.ranges) == 1
    net.recovers()
