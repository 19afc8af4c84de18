"""The Hub as it answered in November 2026: redirects, a second host, limits and short outages.

Limits of time are faked. Where tokens come from is in test_logins.py.
"""

from __future__ import annotations

import json

import pytest

import vitzoo
from helpers import refuses, says
from vitzoo import settings
from vitzoo.errors import HashMismatch, InvalidOption, ServerError, SizeMismatch

ADDRESS = "hf://acme/net"
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
CONFIG = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 5,
    "global_pool": "token",
    "model_args": SIZES | {"mlp_ratio": 2},
    "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3},
}

pytestmark = pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")


@pytest.fixture
def official(net, hub, second_hub, clock, monkeypatch):
    """A repository with a config, whose weights are at a second host."""
    monkeypatch.delenv("VITZOO_TIMEOUT")
    hub.add("acme/net", "config.json", json.dumps(CONFIG).encode())
    hub.storage, hub.clock = second_hub, clock.monotonic
    assert net.hub is hub
    return hub


def limited(faults, bucket, seconds):
    policy = f'"fixed window";"{bucket}";q=500;w=300'
    headers = {"RateLimit": f'"{bucket}";r=0;t={seconds}', "RateLimit-Policy": policy}
    return faults.answer(429, headers)


def once(hub, behaviour):
    """Let the model API answer its next request with a behaviour."""

    def answer(handler, path):
        hub.api = None
        behaviour(handler, path)

    hub.api = answer


def kinds(hub):
    """Return what was requested: `api`, or the name of a file."""
    paths = (path.partition("?")[0] for _, path, _ in hub.requests)
    return ["api" if p.startswith("/api/models/") else p.rpartition("/")[2] for p in paths]


def test_each_file_is_requested_once(net, official, second_hub):
    """The config is redirected to the cache of the Hub, the weights to the second host."""
    net.assert_right(vitzoo.create(ADDRESS))
    assert kinds(official) == ["api", "config.json", "config.json", "model.safetensors"]
    assert kinds(second_hub) == ["model.safetensors"]
    official.requests.clear()
    net.assert_right(vitzoo.create(ADDRESS))
    assert official.requests == []


def test_each_file_is_requested_once_without_a_store(net, official, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    net.assert_right(vitzoo.create(ADDRESS))
    assert kinds(official) == ["api", "config.json", "config.json", "model.safetensors"]


def test_of_two_weights_files_the_first_is_locked_and_loaded(net, official, monkeypatch):
    official.add("acme/net", "open_clip_model.safetensors", b"another network")
    vitzoo.create(ADDRESS)
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    net.assert_right(vitzoo.create(ADDRESS))


OUTAGES = {
    "api503once": ("api", lambda faults: faults.answer(503), 0.4),
    "api429": ("api", lambda faults: limited(faults, "api", 8), 9.0),
    "api429long": ("api", lambda faults: limited(faults, "api", 200), 201.0),
    "file429-hub": ("hub", lambda faults: limited(faults, "resolvers", 45), 46.0),
    "file429-storage": ("storage", lambda faults: faults.answer(429, {"Retry-After": "45"}), 45.0),
    "slowapi": ("api", lambda faults: faults.silent, 0.4),
    "slowcdn-hub": ("hub", lambda faults: faults.silent, 0.4),
    "slowcdn-storage": ("storage", lambda faults: faults.silent, 0.4),
}


@pytest.mark.parametrize("row", OUTAGES.values(), ids=OUTAGES)
def test_a_short_outage_ends_with_the_right_weights(
    net, official, second_hub, faults, clock, caplog, row
):
    """The API, the Hub as it serves files, or the second host fails once."""
    place, behaviour, wait = row
    if behaviour(faults) is faults.silent:
        net.limit(metadata=0.4, first_byte=0.4, stall=0.4)
    if place == "api":
        once(official, behaviour(faults))
    else:  # the config is the first file of the Hub
        script = second_hub.script if place == "storage" else official.script
        script.extend([None, behaviour(faults)] if place == "hub" else [behaviour(faults)])
    net.assert_right(vitzoo.create(ADDRESS))
    assert clock.slept == [pytest.approx(wait, abs=0.01)]
    said = [r.getMessage() for r in caplog.records if "trying again" in r.getMessage()]
    assert len(said) == (wait > 2)
    if said:
        says(said[0], "hf://acme/net@main/", official.host, "429", f"{wait} s")


@pytest.mark.parametrize("status", [500, 503])
def test_an_outage_of_the_api_ends_after_five_tries(net, official, faults, clock, status):
    official.api = faults.answer(status)
    with refuses(ServerError, "hf://acme/net@main", official.host, f" {status}"):
        vitzoo.create(ADDRESS)
    assert clock.slept == pytest.approx([0.4, 0.8, 1.6, 3.2])
    assert kinds(official) == ["api"] * 5
    assert not (net.home / "vitzoo.lock").exists()


def test_a_full_bucket_is_waited_for(net, official, clock):
    """Twenty requests in five seconds are answered; others took them already."""
    official.buckets, official.window = {"api": 20, "resolvers": 20}, 5.0
    official.clock = lambda: 100.0 + sum(clock.slept)
    import urllib.request

    for _ in range(20):
        urllib.request.urlopen(f"{official.endpoint}/api/models/acme/net").close()
    net.assert_right(vitzoo.create(ADDRESS))
    assert clock.slept == [7.0]  # the header rounds up to 6 s


@pytest.mark.parametrize("etag", ['"%s"', "%s"])
def test_a_redirect_to_other_bytes_is_refused_before_the_body(
    net, official, second_hub, faults, etag
):
    headers = {"Location": f"{second_hub.endpoint}/blob", "X-Linked-ETag": etag % ("e" * 64)}
    official.script.extend([None, faults.answer(302, headers)])
    with refuses(HashMismatch, net.sha256, "e" * 64, official.host, "redirects"):
        vitzoo.create(ADDRESS)
    assert second_hub.requests == []
    assert net.sha256 not in (net.home / "vitzoo.lock").read_text()


@pytest.mark.parametrize(
    "etag", ["", '"main"', '"%s"' % ("E" * 64), 'W/"%s"' % ("e" * 64), "e" * 40]
)
def test_another_etag_of_a_redirect_is_ignored(net, official, second_hub, faults, etag):
    second_hub.anything = net.data
    headers = {"Location": f"{second_hub.endpoint}/blob", "X-Linked-ETag": etag}
    official.script.extend([None, faults.answer(302, headers)])
    net.assert_right(vitzoo.create(ADDRESS))


def test_the_next_endpoint_is_tried_after_a_redirect_to_other_bytes(
    net, hub, second_hub, faults, monkeypatch
):
    """What an earlier endpoint sent is kept."""
    monkeypatch.setenv("VITZOO_ENDPOINTS", f"{second_hub.endpoint} {hub.endpoint}")
    second_hub.always = faults.answer(302, {"Location": "/blob", "X-Linked-ETag": "e" * 64})
    net.assert_right(net.create())
    assert len(second_hub.requests) == 1


NEWER = ("acme/net", "update vitzoo", "hf://acme/net@COMMIT/model.safetensors")


@pytest.mark.parametrize("seen", ["redirect", "bytes", "size"])
def test_a_newer_file_on_a_branch_is_explained(net, hub, faults, seen):
    """An entry that names a sha256 and no commit."""
    net.register(revision=None, pin="reported")
    hub.always = faults.other(net.data[:-1] + (b"longer" if seen == "size" else b"x"))
    if seen == "redirect":
        hub.always = faults.answer(302, {"Location": "/blob", "X-Linked-ETag": "e" * 64})
    kind, known = (SizeMismatch, len(net.data)) if seen == "size" else (HashMismatch, net.sha256)
    net.fails(kind, str(known), "main of acme/net may have a newer file", *NEWER)


@pytest.mark.parametrize(
    ("variables", "file", "metadata", "waits"),
    [
        ({}, 10, 10, 330),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "40", "HF_HUB_ETAG_TIMEOUT": "30"}, 40, 30, 330),
        ({"VITZOO_TIMEOUT": "5", "HF_HUB_ETAG_TIMEOUT": "30"}, 5, 5, 5),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "0", "HF_HUB_ETAG_TIMEOUT": "soon"}, 10, 10, 330),
    ],
    ids=["default", "huggingface_hub", "vitzoo", "invalid"],
)
def test_limits_of_huggingface_hub_are_used(monkeypatch, variables, file, metadata, waits):
    for name in ("VITZOO_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    limits = settings.limits()
    assert (limits.first_byte, limits.stall) == (file, file)
    assert (limits.metadata, limits.retry_after) == (metadata, waits)


def test_a_limit_that_is_no_time_is_refused(net, monkeypatch):
    monkeypatch.setenv("VITZOO_TIMEOUT", "soon")
    with refuses(InvalidOption, "VITZOO_TIMEOUT", "'soon'"):
        net.create()
